"""A disk that is full."""

import errno
from typing import Final

from enginewright.contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import in_words

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def no_room(what: str, size: int | None, free: int) -> StageFailure:
    """Return the failure for a file that the work folder cannot hold."""
    has = f"has {in_words(size)}" if size else "is larger than that"
    return StageFailure(
        Reason.MODEL_TOO_LARGE,
        f"the work folder has {in_words(free)} free and {what} {has}",
        remedy="give the node more ephemeral storage, or the pod a higher limit for it",
    )
