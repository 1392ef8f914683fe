"""The open streams of one connection, and recently closed ones, on which a client may still send frames."""

import enum
import time
from typing import Final

from enginewright_serving.transport.http2.errors import ConnectionFaultError, ErrorCode
from enginewright_serving.transport.http2.stream import Stream

MAX_STREAMS: Final = 128  # concurrent ones of a connection

_CLOSED_KEPT: Final = 4 * MAX_STREAMS  # streams whose late frames are understood


class Going(enum.Enum):
    """How far a graceful shutdown is (RFC 9113 6.8)."""

    NO = enum.auto()
    ANNOUNCED = enum.auto()  # streams that are under way are still accepted
    FINAL = enum.auto()  # later streams are ignored; the client repeats them elsewhere


class Streams:
    """The streams of one connection (RFC 9113 5.1); times are of `time.monotonic()`."""

    def __init__(self) -> None:
        self.open: dict[int, Stream] = {}  # oldest first
        self.last = 0  # number of the last one that the client opened
        self.owed = 0  # complete requests whose responses have not begun
        self.arriving: Stream | None = None  # of the current DATA frame, unless it is discarded
        self.going = Going.NO
        # when the last open one was closed, and when the last one was opened
        self.idle_since = self.opened_at = time.monotonic()
        self._closed: dict[int, bool] = {}  # recent ones -> whether the server ended them

    def close(self, number: int, *, by_server: bool) -> None:
        """Close a stream, whose late frames are discarded if the server has ended it."""
        stream = self.open.pop(number, None)
        if stream is not None:
            del stream.handler  # which refers to the stream: no cycle keeps its message
            if self.arriving is stream:
                self.arriving = None
            if not self.open:
                self.idle_since = time.monotonic()
        closed = self._closed
        closed[number] = by_server
        if len(closed) > _CLOSED_KEPT:
            del closed[next(iter(closed))]

    def take_all(self) -> list[Stream]:
        """Close all streams; return them."""
        streams, self.open = self.open, {}
        self.owed = 0
        return list(streams.values())

    def is_ended_by_server(self, number: int) -> bool | None:
        """Return whether the server ended a stream, or None if it was not closed recently."""
        return self._closed.get(number)

    def refuse_idle(self, number: int) -> None:
        """Raise ConnectionFaultError for a frame on a stream that the client has not opened."""
        if number > self.last and self.going is not Going.FINAL:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a frame on an idle stream")

    def moves_since(self) -> float | None:
        """Return since when the client sends or reads, or None if the application owes a response."""
        if self.owed:
            return None
        oldest = next(iter(self.open.values()), None)
        return self.idle_since if oldest is None else oldest.started

    def count_awaited_bytes(self) -> int:
        """Return the bytes of all messages that are arriving."""
        return sum(stream.handler.awaited for stream in self.open.values())
