"""Requests, their bodies and responses, as connection and application exchange them."""

import mmap
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from enginewright_serving.transport.call import InferenceCall
from enginewright_serving.transport.settings import MIB

ALIGNMENT: Final = 64  # bytes: a cache line, and the widest vector register
JOINED_BYTES: Final = 16 * 1024  # below it, one copy is cheaper than a vectored write
# Memory is taken when bytes are written to it. NumPy asks for huge pages for large arrays.
_HUGE_PAGES_FROM: Final = 4 * MIB
_HUGE_PAGE: Final = 2 * MIB
_PAGES: Final = 64 * 1024  # charged at a time
# The beginning of a large body is in memory that grows with it: a huge page for each of a thousand bodies that
# hardly move would be gigabytes. It is mapped, since the allocator would not return it to the kernel.
_GROWN_BYTES: Final = 256 * 1024
JSON_TYPE: Final = b"Content-Type: application/json\r\n"
BINARY_TYPE: Final = b"Content-Type: application/octet-stream\r\n"


def count_charged_bytes(arrived: int, length: int) -> int:
    """Return the memory that a body of `length` bytes takes when `arrived` bytes have arrived."""
    if not _is_large(length):
        memory = -(-arrived // _PAGES) * _PAGES
    elif arrived < _GROWN_BYTES:
        memory = max(1 << arrived.bit_length(), _PAGES)
    else:
        memory = -(-arrived // _HUGE_PAGE) * _HUGE_PAGE
    return min(length, memory)


def _is_large(length: int) -> bool:
    return length + ALIGNMENT >= _HUGE_PAGES_FROM


class Body:
    """The bytes of a request body, `memory[start : start + length]` once all have arrived."""

    __slots__ = ("_aligned_at", "_size", "length", "memory", "start")

    memory: npt.NDArray[np.uint8]
    start: int

    def __init__(self, length: int, aligned_at: int, *, arrives: bool = False) -> None:
        """Allocate `length` bytes such that byte `aligned_at` is on a 64-byte boundary.

        For a large body that `arrives`, allocate its beginning only; then call `grow`.
        """
        self.length = length
        self._aligned_at = aligned_at
        self._allocate(_PAGES if arrives and _is_large(length) else length)

    def view(self) -> memoryview:
        """Return the bytes for which there is memory, writable."""
        return self.memory.data[self.start : self.start + self._size]

    def grow(self) -> memoryview:
        """Make room for more of a body of which all bytes in memory have arrived; return `view()`."""
        arrived = self.view()
        self._allocate(self._size * 2 if self._size < _GROWN_BYTES else self.length)
        view = self.view()
        view[: len(arrived)] = arrived
        return view

    def shorten(self, length: int) -> None:
        """Have only `length` bytes."""
        self.length = self._size = length

    def _allocate(self, size: int) -> None:
        if size < self.length:
            pages = mmap.mmap(-1, size + mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory: npt.NDArray[np.uint8] = np.frombuffer(pages, np.uint8)
        else:
            memory = np.empty(size + ALIGNMENT, np.uint8)
        address: int = memory.__array_interface__["data"][0]
        self.memory = memory
        self.start = -(address + self._aligned_at) % ALIGNMENT
        self._size = size


class HttpRequest(InferenceCall):
    """One request: its head, then its body."""

    __slots__ = (
        "accept_encoding",
        "authorization",
        "body",
        "chunked",
        "content_encoding",
        "expects_continue",
        "has_host",
        "json_length",
        "keep_alive",
        "length",
        "method",
        "refusal",
        "replaceable",
        "route",
        "target",
        "version",
    )

    def __init__(self, target: bytes) -> None:
        super().__init__()
        self.target = target
        self.method = b""
        self.version = "1.1"
        self.keep_alive = False  # requested by the client
        self.length = 0  # Content-Length
        self.chunked = False
        self.json_length: int | None = None  # Inference-Header-Content-Length
        self.content_encoding = b""  # in lower case, without identity
        self.accept_encoding = b""
        self.authorization = b""  # if the server reads it
        self.expects_continue = False
        self.has_host = False
        # needs no inference: its connection may be closed for another while its answer is due
        self.replaceable = False
        self.refusal: HttpResponse | None = None  # sent once the body has been discarded
        self.route: object = None  # set by the application
        self.body: Body | None = None

    def repeat(self) -> "HttpRequest":
        """Return another request with the same head."""
        other = HttpRequest(self.target)
        other.method = self.method
        other.version = self.version
        other.keep_alive = self.keep_alive
        other.length = self.length
        other.chunked = self.chunked
        other.json_length = self.json_length
        other.content_encoding = self.content_encoding
        other.accept_encoding = self.accept_encoding
        other.authorization = self.authorization
        other.expects_continue = self.expects_continue
        other.has_host = self.has_host
        other.probe = self.probe
        other.defer = self.defer
        other.shadow = self.shadow
        return other


@dataclass(slots=True, eq=False)
class HttpResponse:
    """Status, header lines and body of a response."""

    status: int
    headers: bytes  # complete lines, each with its CRLF
    parts: list[bytes | memoryview]  # written in order; large ones are not joined
    length: int  # bytes of all parts
