"""Names from a model, made safe to show: its author, who is not trusted, chose every byte."""

import re
from collections.abc import Iterable
from typing import Final

from enginewright_contract.report import name_nodes

LONGEST_NAME: Final = 120  # characters of one name in a message
# C0, DEL and C1, which terminals interpret; and Unicode's line and paragraph separators
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def has_control_characters(text: str) -> bool:
    """Tell whether a terminal or a log would show the text differently."""
    return _CONTROL.search(text) is not None


def printable(text: str) -> str:
    r"""Return the text with unprintable characters escaped, for example as \x1b."""
    if text.isprintable():
        return text
    return "".join(
        item if item.isprintable() else item.encode("unicode_escape").decode() for item in text
    )


def show(name: str) -> str:
    """Return a name for a message: printable, and not longer than `LONGEST_NAME`."""
    if len(name) > LONGEST_NAME:
        name = name[:LONGEST_NAME] + "…"
    return printable(name)


def quote(names: Iterable[str]) -> list[str]:
    """Return the names in quotes."""
    return [f"'{show(name)}'" for name in names]


def join_quoted(names: Iterable[str]) -> str:
    """Return the first names, in quotes, and a count of the rest."""
    return name_nodes(quote(names))
