"""A stream, and the handler of its request."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from enginewright_serving.transport.http2.errors import ErrorCode, StreamFaultError

if TYPE_CHECKING:
    from collections import deque

    from enginewright_serving.transport.account import Holding
    from enginewright_serving.transport.pace import TransferPace


class RequestHandler(Protocol):
    """Receives one request and answers it with `Session.respond`."""

    @property
    def in_flight(self) -> bool:
        """Whether it is an inference request of a client."""

    @property
    def reserved(self) -> bool:
        """Whether the pod's own sidecar sent it: it is neither refused nor evicted for others."""

    @property
    def awaited(self) -> int:
        """Bytes of a body of which only a part has arrived."""

    def begin(self) -> None:
        """Take the head of a request that has not ended."""

    def receive(self, part: memoryview) -> None:
        """Take a part of the body; its memory is reused afterwards."""

    def memory(self, size: int) -> memoryview | None:
        """Return where up to `size` next bytes of the body belong, to be read there directly."""

    def on_received(self, size: int) -> None:
        """Take `size` bytes that were read into `memory`."""

    def end(self) -> None:
        """Take the end of the request."""

    def expire(self) -> None:
        """Refuse the request, which takes too long to arrive."""

    def on_sent(self) -> None:
        """Count the request, whose response is written completely."""

    def cancel(self) -> None:
        """Drop the request, or its response that is not written: the client has left, or does not read."""


@dataclass(slots=True, eq=False)
class Stream:
    """The state of one stream that is not closed (RFC 9113 5.1)."""

    id: int
    window: int  # bytes that the client accepts
    expected: int | None  # Content-Length
    started: float
    handler: RequestHandler = field(init=False)
    receiving: bool = True  # the client has not ended its side
    received: int = 0  # bytes of body
    unsent: "deque[memoryview] | None" = None  # parts of a response that wait for a window
    trailers: bytes = b""  # header block after them
    written: int = 0  # bytes of them that have been written
    end_of_written: int = 0  # in all bytes that the connection has written
    read: int = 0  # of those written; other streams' bytes may be taken for its own for a while
    outgoing: "Holding | None" = None  # their charge
    pace: "TransferPace | None" = None  # of the request, then of a response that waits

    def count(self, size: int) -> None:
        """Count a part of the body; raise StreamFaultError if the client's side has ended (5.1) or it is too long (8.1.1)."""
        if not self.receiving:
            raise StreamFaultError(ErrorCode.STREAM_CLOSED)
        if not self.has_room(size):
            raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
        self.received += size

    def has_room(self, size: int) -> bool:
        """Return whether the body may have `size` more bytes."""
        return self.expected is None or self.received + size <= self.expected

    def end(self) -> None:
        """Mark the client's side as ended; raise StreamFaultError if it was, or the body is too short."""
        if not self.receiving:
            raise StreamFaultError(ErrorCode.STREAM_CLOSED)
        if self.expected is not None and self.received != self.expected:
            raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
        self.receiving = False


def do_nothing(*_: object) -> None:
    """Do nothing: the connection is closed."""
