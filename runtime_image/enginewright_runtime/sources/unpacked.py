"""What an archive held, as a source: files move out of it, since two copies may not fit the disk."""

from pathlib import Path

from enginewright_runtime.core.digests import Copied, file_sha256
from enginewright_runtime.sources.base import Entry, Missing
from enginewright_runtime.sources.quota import DiskQuota


class UnpackedSource:
    """A folder of plain files of our own, on the disk that they move on."""

    pin = None

    def __init__(self, folder: Path, shown: str) -> None:
        self._folder = folder
        self.shown = shown

    def find(self) -> str | None:
        """Return None: it is a folder."""
        return None

    def files(self, *, deep: bool) -> list[Entry]:
        """Return the files."""
        paths = self._folder.rglob("*") if deep else self._folder.iterdir()
        return sorted(
            (
                Entry(path.relative_to(self._folder).as_posix(), path.stat().st_size)
                for path in paths
                if path.is_file()
            ),
            key=lambda entry: entry.path,
        )

    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        """Move a file."""
        del quota  # it was counted when it was unpacked
        origin = self._folder / path
        if not origin.is_file():
            raise Missing(f"{self.shown} has no file {path!r} there")
        copied = file_sha256(origin)
        origin.replace(target)
        return copied
