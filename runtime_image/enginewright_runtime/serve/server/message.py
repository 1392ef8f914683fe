"""Requests, their bodies and responses, as the connection and the application pass them."""

from typing import Final

import numpy as np

ALIGNMENT: Final = 64  # bytes: a cache line, and the widest vector register
JOINED_BYTES: Final = 16 * 1024  # below it, one copy is cheaper than a vectored write
JSON_TYPE: Final = b"Content-Type: application/json\r\n"
BINARY_TYPE: Final = b"Content-Type: application/octet-stream\r\n"


class Body:
    """Bytes of a request body in memory of their own: `memory[start : start + length]`."""

    __slots__ = ("length", "memory", "start")

    def __init__(self, length: int, aligned_at: int) -> None:
        """Reserve `length` bytes such that byte `aligned_at` lies on a 64-byte boundary."""
        memory = np.empty(length + ALIGNMENT, np.uint8)
        address: int = memory.__array_interface__["data"][0]
        self.memory = memory
        self.start = -(address + aligned_at) % ALIGNMENT
        self.length = length

    def view(self) -> memoryview:
        """Return the body's bytes, writable."""
        return self.memory.data[self.start : self.start + self.length]


class HttpRequest:
    """One request: its head, then its body."""

    __slots__ = (
        "abandoned",
        "accounted",
        "body",
        "chunked",
        "content_encoding",
        "defer",
        "expects_continue",
        "has_host",
        "json_length",
        "keep_alive",
        "length",
        "method",
        "probe",
        "refusal",
        "reserved",
        "route",
        "target",
        "version",
    )

    def __init__(self, target: bytes) -> None:
        self.target = target
        self.method = b""
        self.version = "1.1"
        self.keep_alive = False  # wanted by the client
        self.length = 0  # Content-Length
        self.chunked = False
        self.json_length: int | None = None  # Inference-Header-Content-Length
        self.content_encoding = b""
        self.expects_continue = False
        self.has_host = False
        self.probe = b""  # the token that shows that it is the sidecar's
        self.defer = 0.0  # seconds that it may wait for an idle moment, if it is
        self.refusal: HttpResponse | None = None  # given already; only the body is still in the way
        self.route: object = None  # the application's own mark
        self.reserved = False  # in the lane of probes, past the limits and counted nowhere
        self.accounted = 0  # bytes of its body in the application's account
        self.abandoned = False  # the client is gone
        self.body: Body | None = None


class HttpResponse:
    """Status, header lines and body of an answer."""

    __slots__ = ("headers", "length", "parts", "status")

    def __init__(
        self, status: int, headers: bytes, parts: list[bytes | memoryview], length: int
    ) -> None:
        self.status = status
        self.headers = headers  # whole lines, each with its CRLF
        self.parts = parts  # written one after another, large ones without being joined
        self.length = length  # bytes of all parts
