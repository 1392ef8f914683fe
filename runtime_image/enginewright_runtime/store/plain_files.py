"""Files and folders that others write to at the same time, without following links."""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder itself, not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def files_in(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files below a folder, with their bytes, that still exist."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            with suppress(FileNotFoundError):
                yield path, path.lstat().st_size


def last_written(folder: Path) -> float:
    """Return the last modification time in a folder, or now if it was just removed."""
    try:
        times = [folder.lstat().st_mtime]
        times += [path.lstat().st_mtime for path in folder.rglob("*")]
    except FileNotFoundError:
        return time.time()
    return max(times)
