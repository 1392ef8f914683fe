"""The workspace limit of a build, after one that ran out of device memory. Pure.

A message with a size beyond the limit means that the limit was too small for any kernel; else the
device had less free memory than that.
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
_MIN_BYTES: Final = 16 << 20  # below it builds fail, or produce slow engines


def is_out_of_memory(errors: Sequence[str]) -> bool:
    """Return whether a build failed because device memory ran out."""
    return any(sign in error for error in errors for sign in (_NO_MEMORY, *_TOO_SMALL))


def find_requested_bytes(errors: Sequence[str]) -> int | None:
    """Return the largest size that the library requested, in bytes, if it named one."""
    sizes = (int(match.group(1)) for error in errors for match in _SIZE.finditer(error))
    return max(sizes, default=None)


@dataclass(frozen=True)
class Workspace:
    """One limit that was tried, in bytes, and the bound of the next ones."""

    limit: int
    maximum: int  # to try: as requested, or less than the size that the device refused
    tried: frozenset[int] = frozenset()

    @classmethod
    def first(cls, limit: int) -> Self:
        """Return the workspace that a build starts with: more is never tried."""
        return cls(limit, limit, frozenset({limit}))

    def after(self, errors: Sequence[str]) -> Self | None:
        """Return the workspace to try after these errors, if another could help."""
        size = find_requested_bytes(errors)
        if size is None and any(sign in error for error in errors for sign in _TOO_SMALL):
            return None
        maximum = self.maximum
        if size is not None and size > self.limit:
            limit = size
        else:
            refused = self.limit if size is None else size
            limit, maximum = refused // 2, refused - 1
        if limit > maximum or limit < _MIN_BYTES or limit in self.tried:
            return None
        return type(self)(limit, maximum, self.tried | {limit})
