"""The command `enginewright`, which kubectl also runs as `kubectl enginewright`.

One package per command. Heavy dependencies (Kubernetes' client, the runtime package) are imported
inside the functions that need them, so that `--help` is fast and a machine that lacks one gets a
message with what to install.
"""

import os
import sys
from contextlib import suppress
from typing import NoReturn

from enginewright_cli import installing


def main() -> None:
    """Run the command line and exit with the code of the command."""
    try:
        _run()
    except KeyboardInterrupt:  # before or after a command, which handles its own
        sys.exit(2)
    except SystemExit as end:
        if "obstore" in sys.modules and isinstance(end.code, int):
            _end(end.code)
        raise


def _end(code: int) -> NoReturn:
    """End the process without finalizing the interpreter, which threads of the object stores' client may crash."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the process at the other end of the pipe has ended
            stream.flush()
    os._exit(code)


def _run() -> None:
    try:
        from enginewright_cli.app import run  # noqa: PLC0415 - the operator's image has no Typer
    except ImportError as error:
        missing = f"enginewright needs {error.name}, which is not installed"
        print(f"{missing}; {installing.remedy('cli')}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run())
