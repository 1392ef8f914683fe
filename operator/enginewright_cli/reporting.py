"""How the commands end when they cannot be carried out: one message and one exit code.

0: done. 1: the answer is no: refused, not deployable, damaged, not a model. 2: not carried out or not found out. 64: wrong usage, which
includes a file that is not there. 130: interrupted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer

from enginewright_cli import installing, output
from enginewright_cli.formatting import visible

REFUSED: Final = 1
NOT_CARRIED_OUT: Final = 2
WRONG_USAGE: Final = 64  # EX_USAGE of sysexits.h
INTERRUPTED: Final = 130


class CommandError(Exception):
    """A command cannot be carried out; the message states the cause and the remedy."""

    code: int = NOT_CARRIED_OUT


class WrongUsage(CommandError):  # noqa: N818 - names what happened
    """What was typed cannot be carried out anywhere; the message states what to write instead."""

    code = WRONG_USAGE


class Refused(CommandError):  # noqa: N818 - names what happened
    """A decision that the model's state does not allow; the message states the cause and what to do."""

    code = REFUSED


def unreadable(path: Path, error: OSError) -> CommandError:
    """Return why a file that was named, or one in it, cannot be read."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return WrongUsage(f"{error.filename or path}: no such file or folder")
    return CommandError(f"{error.filename or path} cannot be read: {error.strerror or error}")


@contextmanager
def report_errors(command: str, extras: str = "cli") -> Iterator[None]:
    """Exit with a message and a code where a command, which needs `extras`, cannot be carried out."""
    try:
        yield
    except ImportError as error:
        message = f"it needs {error.name}, which is not installed; {installing.remedy(extras)}"
        code = NOT_CARRIED_OUT
    except CommandError as error:
        message, code = str(error), error.code
    except KeyboardInterrupt:
        message, code = "interrupted", INTERRUPTED
    else:
        return
    output.print_error(command, visible(message))
    raise typer.Exit(code)
