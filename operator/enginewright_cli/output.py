"""What the commands print: results rendered first, then written in one piece; errors on stderr."""

import os
import sys
from collections.abc import Callable
from typing import Final

from enginewright_contract.base import Message
from rich.console import Console
from rich.table import Table

_UNWRAPPED: Final = (
    1 << 20
)  # columns, where standard output is not a terminal: no line is broken in two


def render(show: Callable[[Console], None]) -> str:
    """Return what `show` prints, with colours on a terminal only, without the final newline."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    console = Console(width=None if is_terminal else _UNWRAPPED)
    with console.capture() as captured:
        show(console)
    text = captured.get().removesuffix("\n")
    return text if is_terminal else "\n".join(line.rstrip() for line in text.split("\n"))


def table(*names: str, no_wrap: bool = False) -> Table:
    """Return a table without lines, whose columns fold long values unless `no_wrap`."""
    rows = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        rows.add_column(name, no_wrap=no_wrap, overflow="ellipsis" if no_wrap else "fold")
    return rows


def print_message(console: Console, text: str, *, failed: bool = False) -> None:
    """Print a text as it is, in red on a terminal if something `failed`."""
    style = "red" if failed else None
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_error(command: str, message: str) -> None:
    """Print why a command failed."""
    print_message(Console(stderr=True), f"enginewright {command}: {message}", failed=True)


def write_message(message: Message, chosen: str | None, show: Callable[[Console], None]) -> None:
    """Write a message as `chosen`, json or yaml; by default as text for people."""
    if chosen == "yaml":
        import yaml  # noqa: PLC0415 - takes a while

        document = message.model_dump(mode="json", exclude_none=True)
        write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True).removesuffix("\n"))
    else:
        write(message.to_json() if chosen == "json" else render(show))


def write(text: str) -> None:
    """Write a text and a newline; does nothing where standard output or its reader is closed."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit, and would report the broken pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
