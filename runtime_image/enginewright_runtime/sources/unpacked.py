"""What an archive held, as a source: files move out of it, since two copies may not fit the disk."""

from collections.abc import Iterator
from pathlib import Path

from typing_extensions import override

from enginewright_runtime.core.digests import Copied, file_sha256
from enginewright_runtime.sources.base import Entry, Missing, ModelSource, local_files
from enginewright_runtime.sources.quota import DiskQuota


class UnpackedSource(ModelSource):
    """A folder of plain files of our own, on the disk that they move on."""

    def __init__(self, folder: Path, shown: str) -> None:
        self._folder = folder
        self.shown = shown

    @override
    def find(self) -> str | None:
        """Return None: it is a folder."""
        return None

    @override
    def _entries(self, *, deep: bool) -> Iterator[Entry]:
        return local_files(self._folder, deep=deep)

    @override
    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        """Move a file."""
        del quota  # it was counted when it was unpacked
        origin = self._folder / path
        if not origin.is_file():
            raise Missing(f"{self.shown} has no file {path!r} there")
        copied = file_sha256(origin)
        origin.replace(target)
        return copied
