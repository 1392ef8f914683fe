"""Limits what is written: by the free disk space, and by limits against unbounded sources."""

import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from enginewright_contract.reasons import Reason

from enginewright_runtime.core.disk import disk_full
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import format_bytes

_RESERVE_BYTES: Final = 1 << 30  # a node with a full disk evicts pods, including those of others
_RESERVE_SHARE: Final = 0.05


class DiskQuota:
    """Counts what is written below a folder; `add` comes before the bytes are written."""

    def __init__(
        self, folder: Path, what: str, limit: int, largest: Mapping[str, int] | None = None
    ) -> None:
        self._folder = folder
        self._what = what
        self._limit = limit  # bytes in total
        self._largest = largest or {}  # bytes of one file, by suffix
        self._used = 0

    def check(self, name: str, size: int) -> None:
        """Raise StageFailure, ModelTooLarge or StorageFull, if a file of `size` bytes does not fit."""
        largest = self._largest.get(PurePosixPath(name).suffix.lower())
        if largest is not None and size > largest:
            raise StageFailure(
                Reason.MODEL_TOO_LARGE,
                f"{name} has {format_bytes(size)}; the limit for files of this type is {format_bytes(largest)}",
            )
        total, free = self._disk()
        reserve = _reserve(total)
        if size > total - reserve:
            raise StageFailure(
                Reason.STORAGE_FULL,  # retried: another node may have a larger disk
                f"{name} has {format_bytes(size)} and the disk of the work folder has"
                f" {format_bytes(total)} in all, of which {format_bytes(reserve)} stay free",
                remedy="give nodes a larger disk for ephemeral storage",
            )
        if size > free:
            raise disk_full(name, size, free)
        self._check_limit(name, size)

    def add(self, name: str, size: int) -> None:
        """Count `size` more bytes of a file; raises as `check`."""
        _, free = self._disk()
        if size > free:
            raise disk_full(name, None, free)
        self._check_limit(name, size)
        self._used += size

    def release(self, size: int) -> None:
        """Subtract `size` bytes that were removed."""
        self._used -= size

    def full(self, name: str) -> StageFailure:
        """Return the failure for a disk that is full despite the checks."""
        return disk_full(name, None, self._disk()[1])

    def _check_limit(self, name: str, size: int) -> None:
        if self._used + size > self._limit:
            raise StageFailure(
                Reason.MODEL_TOO_LARGE,
                f"{self._what} may have {format_bytes(self._limit)} in all, and with {name} it has more",
                remedy="give less",
            )

    def _disk(self) -> tuple[int, int]:
        disk = shutil.disk_usage(self._folder)
        return disk.total, max(0, disk.free - _reserve(disk.total))


def _reserve(total: int) -> int:
    return int(min(_RESERVE_BYTES, total * _RESERVE_SHARE))
