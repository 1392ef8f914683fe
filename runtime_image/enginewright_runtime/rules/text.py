"""Names out of a model, made safe to show: whoever wrote the model chose every byte of them."""

import re
from collections.abc import Iterable
from typing import Final

from enginewright.contract.report import name_nodes

LONGEST_NAME: Final = 120  # characters of one name in a message
# C0, DEL and C1, which terminals obey; and the two separators that end a line elsewhere
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def has_control_characters(text: str) -> bool:
    """Tell whether a terminal or a log would not show the text as it is."""
    return _CONTROL.search(text) is not None


def printable(text: str) -> str:
    r"""Return the text with what is not shown, or shown out of place, written out, as \x1b."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def shown(name: str) -> str:
    """Return a name for a message: printable, and not longer than `LONGEST_NAME`."""
    if len(name) > LONGEST_NAME:
        name = name[:LONGEST_NAME] + "…"
    return printable(name)


def quoted(names: Iterable[str]) -> str:
    """Return the first names, in quotes, and a count of the rest."""
    return name_nodes([f"'{shown(name)}'" for name in names])
