"""Errors of a full disk."""

import errno
from typing import Final

from enginewright_contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import format_bytes

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: BaseException) -> bool:
    """Return whether a write failed because a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def disk_full(what: str, size: int | None, free: int) -> StageFailure:
    """Return the failure for a file that does not fit into the work folder."""
    has = f"has {format_bytes(size)}" if size else "is larger than that"
    return StageFailure(
        Reason.STORAGE_FULL, f"the work folder has {format_bytes(free)} free and {what} {has}"
    )
