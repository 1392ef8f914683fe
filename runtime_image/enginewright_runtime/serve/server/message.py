"""Requests, their bodies and responses, as connection and application exchange them."""

from typing import TYPE_CHECKING, Final

import numpy as np
from typing_extensions import override

from enginewright_runtime.serve.server.call import InferenceCall
from enginewright_runtime.serve.server.settings import MIB

if TYPE_CHECKING:
    from enginewright_runtime.serve.server.account import Peer

ALIGNMENT: Final = 64  # bytes: a cache line, and the widest vector register
JOINED_BYTES: Final = 16 * 1024  # below it, one copy is cheaper than a vectored write
# Memory is taken when bytes are written to it. NumPy asks for huge pages for large arrays.
_HUGE_PAGES_FROM: Final = 4 * MIB
_HUGE_PAGE: Final = 2 * MIB
_PAGES: Final = 64 * 1024  # charged at a time
JSON_TYPE: Final = b"Content-Type: application/json\r\n"
BINARY_TYPE: Final = b"Content-Type: application/octet-stream\r\n"


def charged_bytes(arrived: int, length: int) -> int:
    """Return the memory that a body of `length` bytes takes when so many have arrived, in pages."""
    page = _HUGE_PAGE if length >= _HUGE_PAGES_FROM else _PAGES
    return min(length, -(-arrived // page) * page)


class Body:
    """The bytes of a request body, `memory[start : start + length]`."""

    __slots__ = ("length", "memory", "start")

    def __init__(self, length: int, aligned_at: int) -> None:
        """Allocate `length` bytes such that byte `aligned_at` is on a 64-byte boundary."""
        memory = np.empty(length + ALIGNMENT, np.uint8)
        address: int = memory.__array_interface__["data"][0]
        self.memory = memory
        self.start = -(address + aligned_at) % ALIGNMENT
        self.length = length

    def view(self) -> memoryview:
        """Return the body's bytes, writable."""
        return self.memory.data[self.start : self.start + self.length]


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
        "peer",
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
        self.content_encoding = b""  # in lower case; b"": none, which identity is too
        self.accept_encoding = b""
        self.authorization = b""  # if the server reads it
        self.expects_continue = False
        self.has_host = False
        # while its answer is due, its connection may be closed for another: it needs no inference
        self.replaceable = False
        self.refusal: HttpResponse | None = None  # sent once the body has been discarded
        self.route: object = None  # set by the application
        self.peer: Peer | None = None  # who sent it
        self.body: Body | None = None

    def repeated(self) -> "HttpRequest":
        """Return another request with the same head, of which nothing else is known yet."""
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
        other.copy = self.copy
        return other

    @property
    @override
    def sender(self) -> "Peer | None":
        return self.peer


class HttpResponse:
    """Status, header lines and body of a response."""

    __slots__ = ("headers", "length", "parts", "status")

    def __init__(
        self, status: int, headers: bytes, parts: list[bytes | memoryview], length: int
    ) -> None:
        self.status = status
        self.headers = headers  # complete lines, each with its CRLF
        self.parts = parts  # written in order; large ones are not joined
        self.length = length  # bytes of all parts
