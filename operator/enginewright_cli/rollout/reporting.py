"""How the commands end: messages and exit codes. 0: done, 1: refused, rejected or stalled, 2: not carried out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from enginewright_cli import installing, output
from enginewright_cli.preflight.formatting import visible

REFUSED: Final = 1
NOT_CARRIED_OUT: Final = 2


class NotCarriedOut(Exception):  # noqa: N818 - names what happened
    """There is no cluster, no such model or no access; the message states the cause and the remedy."""

    code: int = NOT_CARRIED_OUT


class Refused(NotCarriedOut):
    """A decision that the model's state does not allow; the message states the cause and what to do."""

    code = REFUSED


@contextmanager
def report_errors(command: str) -> Iterator[None]:
    """Exit with a message and a code where a command cannot be carried out."""
    try:
        yield
    except ImportError as error:
        message = f"it needs {error.name}, which is not installed; {installing.remedy('cli')}"
        code = NOT_CARRIED_OUT
    except NotCarriedOut as error:
        message, code = str(error), error.code
    else:
        return
    output.print_error(command, visible(message))
    raise typer.Exit(code)
