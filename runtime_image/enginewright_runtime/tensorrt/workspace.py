"""How much device memory a build may use, after one that failed for want of it. Pure.

The same words have two causes, told apart by the size in them: more than the limit, and the limit
was too small for any kernel; not more, and the device had less free than that.
"""

import re
from collections.abc import Collection, Sequence
from typing import Final

_SIZE: Final = re.compile(r"OutOfMemory \(Requested size was (\d+) bytes")
_NO_MEMORY: Final = "OutOfMemory"
_TOO_SMALL: Final = (  # without a size
    "insufficient workspace",
    "Please increase the workspace memory",
    "within workspace limit",
)
_LEAST: Final = 16 << 20  # bytes; below it builds fail, or give slow engines


def wants_memory(errors: Sequence[str]) -> bool:
    """Tell whether a build failed for want of device memory."""
    return any(words in error for error in errors for words in (_NO_MEMORY, *_TOO_SMALL))


def wanted(errors: Sequence[str]) -> int | None:
    """Return the bytes that the library has asked for at most; None: it named none."""
    found = [int(match.group(1)) for error in errors for match in _SIZE.finditer(error)]
    return max(found, default=None)


def next_limit(errors: Sequence[str], used: int, most: int, tried: Collection[int]) -> int | None:
    """Return the limit in bytes to try next, None when there is none.

    Args:
        errors: of the build that failed.
        used: its limit.
        most: what may be used: the first build's limit.
        tried: all limits so far; none is tried twice.
    """
    size = wanted(errors)
    if size is None and any(words in error for error in errors for words in _TOO_SMALL):
        return None
    if size is not None and size > used:
        limit = size
    else:
        limit = (used if size is None else size) // 2
        if limit < _LEAST:
            return None
    return None if limit > most or limit in tried else limit
