"""What goes to standard output: rendered first, then written at once to whoever still reads."""

import os
import sys
from collections.abc import Callable
from typing import Final

from rich.console import Console

_PLAIN_WIDTH: Final = 160  # columns, where there is no terminal to have a width


def rendered(show: Callable[[Console], None]) -> str:
    """Return what `show` prints, with colours where people see them, less its last line end."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    console = Console(width=None if is_terminal else _PLAIN_WIDTH)
    with console.capture() as captured:
        show(console)
    return captured.get().removesuffix("\n")


def write(text: str) -> None:
    """Write a text and a line end; nobody may listen, or may have had enough."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
