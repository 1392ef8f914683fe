"""Names and numbers as text for people, the same in every output format.

Names come from untrusted models: characters that move the cursor, change the text direction or are
invisible are escaped.
"""

import unicodedata
from typing import Final

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # Unicode's categories
_MOST: Final = 4000  # characters of a message
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_STEP: Final = 1000


def visible(text: str, limit: int = _MOST) -> str:
    """Return text with invisible characters escaped, truncated to `limit` characters."""
    cut = text[:limit]
    shown = "".join(map(_escape, cut)) if not cut.isprintable() else cut
    return shown + (" …" if len(text) > limit else "")


def _escape(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def size(count: int) -> str:
    """Return bytes as "4.75 MB"."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if value < _STEP:
            return f"{value:.3g} {unit}"
        value /= _STEP
    return f"{value:.3g} {_UNITS[-1]}"


def duration(seconds: float) -> str:
    """Return seconds as "12.3 ms"."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def share(value: float) -> str:
    """Return a share of 1 as "2.5%"."""
    return f"{value * 100:.3g}%"


def count_noun(count: int, noun: str) -> str:
    """Return "1 node", "2 nodes"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shape(dimensions: tuple[int | str | None, ...]) -> str:
    """Return "[batch, 3, ?, 224]"."""
    return "[" + ", ".join("?" if size is None else str(size) for size in dimensions) + "]"
