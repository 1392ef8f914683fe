"""The files of a Secret's volume, which the kubelet replaces all at once when the Secret changes.

The kubelet writes a new folder, then makes the link `..data` point to it, so files that are read through one
resolved link belong together. Folders without that link, outside of pods, are read as they are.
"""

from pathlib import Path
from typing import Final, TypeAlias

_CURRENT: Final = "..data"
_State: TypeAlias = tuple[str, tuple[tuple[str, int, int, int], ...]]


class MountedSecret:
    """One volume; `state` tells whether anything has changed since."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def folder(self) -> Path:
        """Return the folder whose files belong together; raise OSError if there is none."""
        current = self._path / _CURRENT
        return current.resolve(strict=True) if current.is_symlink() else self._path

    def state(self) -> _State | None:
        """Return a value that differs once a file has been replaced, or None if the volume cannot be read."""
        try:
            folder = self.folder()
            stats = [(file.name, file.stat()) for file in sorted(self._files(folder))]
        except OSError:
            return None
        return str(folder), tuple(
            (name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in stats
        )

    def read(self) -> dict[str, bytes]:
        """Return the contents by key, {} if the Secret does not exist; raise OSError if they cannot be read."""
        try:
            return self._read()
        except FileNotFoundError:  # replaced meanwhile
            return self._read() if self._path.exists() else {}

    def _read(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self._files(self.folder())}

    @staticmethod
    def _files(folder: Path) -> list[Path]:
        return [path for path in folder.iterdir() if not path.name.startswith("..")]
