"""Errors of the disks that a store is read from and copied to, as failures."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from enginewright_contract.reasons import Reason

from enginewright_runtime.core.disk import is_full
from enginewright_runtime.core.failure import StageFailure

_CAUSES: Final = {
    errno.EROFS: "it is read-only",
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
}


@contextmanager
def available(written: str = "the store") -> Iterator[None]:
    """Report errors of a disk; `written` names what is written to."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise StageFailure(
                Reason.STORAGE_FULL, f"{written} is full: {error.strerror}"
            ) from error
        cause = _CAUSES.get(error.errno or 0, error.strerror or str(error))
        raise StageFailure(
            Reason.STORE_UNAVAILABLE, f"the store is unavailable: {cause}"
        ) from error
