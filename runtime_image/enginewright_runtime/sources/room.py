"""How much may be written: what the disk has, and bounds of our own against what never ends."""

import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from enginewright.contract.reasons import Reason

from enginewright_runtime.core.disk import no_room
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import in_words

_RESERVE_BYTES: Final = 1 << 30  # a node whose disk fills up evicts pods, ours and others'
_RESERVE_SHARE: Final = 0.05


class Room:
    """Counts what is written below a folder; `take` comes before the bytes do."""

    def __init__(
        self, folder: Path, what: str, limit: int, largest: Mapping[str, int] | None = None
    ) -> None:
        self._folder = folder
        self._what = what
        self._limit = limit  # bytes of all files together
        self._largest = largest or {}  # of one file, by the ending of its name
        self._used = 0

    def check(self, name: str, size: int) -> None:
        """Refuse a file of `size` bytes before it is begun.

        Raises:
            StageFailure: ModelTooLarge.
        """
        largest = self._largest.get(PurePosixPath(name).suffix.lower())
        if largest is not None and size > largest:
            raise StageFailure(
                Reason.MODEL_TOO_LARGE,
                f"{name} has {in_words(size)}, and such a file can have {in_words(largest)}",
            )
        self._hold(name, size, size)

    def take(self, name: str, size: int) -> None:
        """Count `size` more bytes of a file whose size nobody told.

        Raises:
            StageFailure: ModelTooLarge.
        """
        self._hold(name, size, None)
        self._used += size

    def give_back(self, size: int) -> None:
        """Count `size` bytes less: what was written was removed."""
        self._used -= size

    def full(self, name: str) -> StageFailure:
        """Return the failure for a disk that is full in spite of all."""
        return no_room(name, None, self._free())

    def _hold(self, name: str, size: int, told: int | None) -> None:
        free = self._free()
        if size > free:
            raise no_room(name, told, free)
        if self._used + size > self._limit:
            raise StageFailure(
                Reason.MODEL_TOO_LARGE,
                f"{self._what} may have {in_words(self._limit)} in all, and with {name} it has more",
                remedy="give less",
            )

    def _free(self) -> int:
        disk = shutil.disk_usage(self._folder)
        return max(0, disk.free - int(min(_RESERVE_BYTES, disk.total * _RESERVE_SHARE)))
