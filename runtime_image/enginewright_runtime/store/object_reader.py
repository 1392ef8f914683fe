"""Reads an object of a bucket as a file, without a copy on the pod's disk, whose size a limit may bound."""

import io
from typing import Final

from typing_extensions import Buffer, override

from enginewright_runtime.store.objects import Objects

_AHEAD: Final = 16 << 20  # bytes of one request


class _Ranges(io.RawIOBase):
    def __init__(self, objects: Objects, name: str, size: int) -> None:
        self._objects = objects
        self._name = name
        self._size = size
        self._at = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer)
        end = min(self._at + len(view), self._size)
        if self._at >= end:
            return 0
        content = self._objects.get_range(self._name, self._at, end)
        view[: len(content)] = content
        self._at += len(content)
        return len(content)


def object_reader(objects: Objects, name: str, size: int) -> io.BufferedReader:
    """Return a reader of an object of `size` bytes; it raises as `Objects.get_range`."""
    return io.BufferedReader(_Ranges(objects, name, size), _AHEAD)
