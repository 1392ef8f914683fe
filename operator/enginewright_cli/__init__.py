"""The command `enginewright`, which kubectl also runs as `kubectl enginewright`.

One module a command; none imports another. What is heavy (Kubernetes' client, the runtime package)
is imported inside the functions that need it, so that `--help` answers at once and a machine
without it gets a message that names what to install.
"""

import sys

from enginewright_cli import installing


def main() -> None:
    """Run the command line; exits with the code of the command."""
    try:
        _run()
    except KeyboardInterrupt:  # before a command, or after it
        sys.exit(2)


def _run() -> None:
    try:
        from enginewright_cli.app import app  # noqa: PLC0415 - the operator's image has no Typer
    except ImportError as error:
        missing = f"enginewright needs {error.name}, which is not installed"
        print(f"{missing}; {installing.remedy('cli')}", file=sys.stderr)
        sys.exit(2)
    app(prog_name="enginewright")
