"""The cache's folder: a file is there completely or not at all, and all of them fit.

Files are named `<scope>-<sha256>`. They are checked while they are written, and not again when the
process restarts: a pod that reads one compares it with its digest.
"""

import asyncio
import hashlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from enginewright.node_cache.entries import Entries, count_occupied
from enginewright.node_cache.metrics import CacheMetrics

_log: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(r"[0-9a-f]{64}-[0-9a-f]{64}")
_PARTIAL: Final = "partial"


def file_name(scope: str, sha256: str) -> str:
    """Return the name of a file in the folder."""
    return f"{scope}-{sha256}"


class NoRoom(Exception):  # noqa: N818 - read as a sentence where it is raised
    """A file does not fit, even if all files that no pod reads are evicted."""


class Damaged(Exception):  # noqa: N818 - likewise
    """What was received is not what it is said to be."""


class CacheFolder:
    """The files of the cache, of one process.

    `capacity` is in bytes, `kept_free` a share of the disk. Other files in `root` are neither touched nor counted.
    """

    def __init__(self, root: Path, capacity: int, metrics: CacheMetrics, kept_free: float) -> None:
        self._root = root
        self.capacity: Final = capacity
        self._metrics = metrics
        self._kept_free = kept_free
        self.entries: Final = Entries()
        shutil.rmtree(root / _PARTIAL, ignore_errors=True)  # of a process that was killed
        (root / _PARTIAL).mkdir(parents=True)
        for name, size in _find_files(root):
            self.entries.add(name, size)
        self.trim()  # it may have become smaller

    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if it is not there."""
        if name not in self.entries:
            return None
        try:
            return (self._root / name).stat().st_size
        except OSError as error:
            _log.warning("%s cannot be read: %s", name, error)
            self.entries.remove(name)
            return None

    @contextmanager
    def open_file(self, name: str) -> Iterator[BinaryIO]:
        """Open a file, which is used now and stays meanwhile; raises OSError."""
        path = self._root / name
        with self.entries.use(name), path.open("rb") as reader:
            os.utime(path)  # the order of use outlives the process
            yield reader

    async def write(self, name: str, sha256: str, size: int, chunks: AsyncIterator[bytes]) -> None:
        """Write a file whose content has this digest and size. Raises NoRoom, Damaged and OSError."""
        victims = self.entries.victims(count_occupied(size), self._limit())
        if victims is None:
            raise NoRoom
        self._evict(victims)
        partial = self._root / _PARTIAL / secrets.token_hex(8)
        with self.entries.reserve(name, size):
            try:
                with partial.open("wb") as writer:
                    await asyncio.to_thread(_allocate, writer, size)
                    await _receive(writer, sha256, size, chunks)
                partial.rename(self._root / name)
            finally:
                partial.unlink(missing_ok=True)
        self.entries.add(name, size)

    def trim(self) -> None:
        """Evict what occupies more than it may by now, as others fill the disk; raises OSError."""
        self._evict(self.entries.surplus(self._limit()))

    def _evict(self, victims: Iterable[tuple[str, int]]) -> None:
        for name, size in victims:
            (self._root / name).unlink(missing_ok=True)
            self.entries.remove(name)
            self._metrics.count_eviction(size)

    def _limit(self) -> int:
        """Return how many bytes the files may occupy now: less than the capacity if the disk fills up."""
        disk = shutil.disk_usage(self._root)
        spare = disk.free - int(disk.total * self._kept_free)
        return min(self.capacity, self.entries.total + spare)


def _find_files(root: Path) -> Iterator[tuple[str, int]]:
    """Yield names and sizes of the files, the least recently used first."""
    files: list[tuple[int, str, int]] = []
    for entry in os.scandir(root):
        if entry.name == _PARTIAL:
            continue
        if not _NAME.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
            _log.warning("%s is no file of the cache: left alone", entry.name)
            continue
        stat = entry.stat(follow_symlinks=False)
        files.append((stat.st_mtime_ns, entry.name, stat.st_size))
    for _, name, size in sorted(files):
        yield name, size


def _allocate(writer: BinaryIO, size: int) -> None:
    """Take the space at once, so that a full disk is known before anything is transferred."""
    if size:
        os.posix_fallocate(writer.fileno(), 0, size)


async def _receive(writer: BinaryIO, sha256: str, size: int, chunks: AsyncIterator[bytes]) -> None:
    digest = hashlib.sha256()
    received = 0

    def add(chunk: bytes) -> None:
        digest.update(chunk)
        writer.write(chunk)

    async for chunk in chunks:
        received += len(chunk)
        if received > size:
            break
        await asyncio.to_thread(add, chunk)
    if received != size or digest.hexdigest() != sha256:
        raise Damaged
