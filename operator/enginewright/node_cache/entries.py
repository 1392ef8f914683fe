"""Which files the cache holds, what they occupy, and which of them make room for another one."""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MOST_FILES: Final = 65_536  # bounds memory and inodes, however small the files are
_BLOCK: Final = 4096  # bytes: what file systems allocate


class Entries:
    """Files by name, the least recently used first; those being read stay, since the disk would not free them yet."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._expected: dict[str, int] = {}  # being written
        self._readers: Counter[str] = Counter()
        self._total = 0

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def total(self) -> int:
        """Return the bytes that all files occupy, with those that are being written."""
        return self._total

    def is_expected(self, name: str) -> bool:
        """Return whether a file is being written."""
        return name in self._expected

    @property
    def expected(self) -> int:
        """Return how many files are being written."""
        return len(self._expected)

    def add(self, name: str, size: int) -> None:
        """Add a file as the most recently used, or replace it."""
        self.remove(name)
        self._sizes[name] = size
        self._total += count_occupied(size)

    def remove(self, name: str) -> None:
        """Forget a file."""
        size = self._sizes.pop(name, None)
        if size is not None:
            self._total -= count_occupied(size)

    @contextmanager
    def use(self, name: str) -> Iterator[None]:
        """Read a file: it is the most recently used, and stays meanwhile."""
        self._sizes.move_to_end(name)
        self._readers[name] += 1
        try:
            yield
        finally:
            self._readers[name] -= 1
            if not self._readers[name]:
                del self._readers[name]

    @contextmanager
    def reserve(self, name: str, size: int) -> Iterator[None]:
        """Write a file: its space counts already."""
        self._expected[name] = size
        self._total += count_occupied(size)
        try:
            yield
        finally:
            del self._expected[name]
            self._total -= count_occupied(size)

    def victims(self, needed: int, limit: int) -> list[tuple[str, int]] | None:
        """Return names and sizes of what to evict for `needed` bytes within `limit`, if that is possible."""
        victims, fits = self._find_unused(self._total + needed - limit, files=1)
        return victims if fits else None

    def surplus(self, limit: int) -> list[tuple[str, int]]:
        """Return names and sizes of what to evict so that the files occupy no more than `limit`, as far as possible."""
        return self._find_unused(self._total - limit)[0]

    def _find_unused(self, excess: int, files: int = 0) -> tuple[list[tuple[str, int]], bool]:
        """Return the least recently used files that free `excess` bytes with `files` more, and whether these do."""
        too_many = len(self._sizes) + len(self._expected) + files - MOST_FILES
        files_to_evict: list[tuple[str, int]] = []
        for name, size in self._sizes.items():
            if excess <= 0 and too_many <= 0:
                break
            if name not in self._readers:
                files_to_evict.append((name, size))
                excess -= count_occupied(size)
                too_many -= 1
        return files_to_evict, excess <= 0 and too_many <= 0


def count_occupied(size: int) -> int:
    """Return what a file of `size` bytes occupies: its blocks, and one for its inode."""
    return (-(-size // _BLOCK) + 1) * _BLOCK
