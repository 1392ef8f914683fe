"""What a place that holds models must be able to do."""

from pathlib import Path
from typing import Protocol

from enginewright.contract.reasons import Reason

from enginewright_runtime.digests import Copied
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.logs import in_words


class Source(Protocol):
    """One file and what lies beside it."""

    def copy_to(self, target: Path) -> Copied:
        """Copy the file itself to `target`.

        Raises:
            StageFailure: SourceUnreachable, or ModelTooLarge when the work folder is too small.
        """

    def copy_beside(self, location: str, target: Path) -> Copied:
        """Copy the file at `location`, relative to the first file's folder, to `target`.

        Raises:
            StageFailure: ExternalDataMissing when there is none, else as `copy_to`.
        """


def no_room(what: str, size: int | None, free: int) -> StageFailure:
    """Return the failure for a file that the work folder cannot hold."""
    has = f"has {in_words(size)}" if size else "is larger than that"
    return StageFailure(
        Reason.MODEL_TOO_LARGE,
        f"the work folder has {in_words(free)} free and {what} {has}",
        remedy="give the node more ephemeral storage, or the pod a higher limit for it",
    )
