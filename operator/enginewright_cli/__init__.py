"""The command `enginewright`, which kubectl also runs as `kubectl enginewright`.

One package per command. Heavy dependencies (Kubernetes' client, the runtime package) are imported
inside the functions that need them, so that `--help` is fast and a machine that lacks one gets a
message with what to install.
"""

import sys

from enginewright_cli import installing


def main() -> None:
    """Run the command line and exit with the code of the command."""
    try:
        _run()
    except KeyboardInterrupt:  # before or after a command, which handles its own
        sys.exit(2)


def _run() -> None:
    try:
        from enginewright_cli.app import app  # noqa: PLC0415 - the operator's image has no Typer
    except ImportError as error:
        missing = f"enginewright needs {error.name}, which is not installed"
        print(f"{missing}; {installing.remedy('cli')}", file=sys.stderr)
        sys.exit(2)
    app(prog_name="enginewright")
