"""The workspace limit of a build, after one that ran out of device memory. Pure.

The same message has two causes, distinguished by the size in it: if it exceeds the limit, the limit
was too small for any kernel; if not, the device had less free memory than that.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

_SIZE: Final = re.compile(r"OutOfMemory \(Requested size was (\d+) bytes")
_NO_MEMORY: Final = "OutOfMemory"
_TOO_SMALL: Final = (  # without a size
    "insufficient workspace",
    "Please increase the workspace memory",
    "within workspace limit",
)
_LEAST: Final = 16 << 20  # bytes; below it builds fail, or give slow engines


def wants_memory(errors: Sequence[str]) -> bool:
    """Tell whether a build failed because device memory ran out."""
    return any(sign in error for error in errors for sign in (_NO_MEMORY, *_TOO_SMALL))


def wanted(errors: Sequence[str]) -> int | None:
    """Return the largest size that the library requested, in bytes; None if it named none."""
    found = [int(match.group(1)) for error in errors for match in _SIZE.finditer(error)]
    return max(found, default=None)


@dataclass(frozen=True)
class Workspace:
    """One limit that was tried, in bytes, and what is known since."""

    limit: int
    most: int  # what may be tried: as requested, or less than the device has refused
    tried: frozenset[int] = frozenset()

    @classmethod
    def first(cls, limit: int) -> Self:
        """Return the one that a build begins with: more is never tried."""
        return cls(limit, limit, frozenset({limit}))

    def after(self, errors: Sequence[str]) -> Self | None:
        """Return the workspace to try after these errors; None if no other would help."""
        size = wanted(errors)
        if size is None and any(sign in error for error in errors for sign in _TOO_SMALL):
            return None
        most = self.most
        if size is not None and size > self.limit:
            limit = size
        else:
            refused = self.limit if size is None else size
            limit, most = refused // 2, refused - 1
        if limit > most or limit < _LEAST or limit in self.tried:
            return None
        return type(self)(limit, most, self.tried | {limit})
