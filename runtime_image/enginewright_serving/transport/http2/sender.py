"""Writes the frames of one connection, within the windows that the client grants.

A write is a system call, so frames are collected until the end of a callback; large parts are never joined.
Responses that wait for a window take turns.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from enginewright_serving.transport.answered import client_address
from enginewright_serving.transport.http2 import frames
from enginewright_serving.transport.http2.errors import (
    ConnectionFaultError,
    ErrorCode,
    StreamFaultError,
)
from enginewright_serving.transport.http2.hpack import NO_TABLE
from enginewright_serving.transport.http2.stream import Stream, do_nothing
from enginewright_serving.transport.message import JOINED_BYTES
from enginewright_serving.transport.unacknowledged import count_unacknowledged

Parts = list[bytes | memoryview]

_TURN_BYTES: Final = 256 * 1024  # of one response before the next one's turn
_LAST_BLOCK: Final = frames.END_HEADERS | frames.END_STREAM
_SUBSTANTIAL: Final = 1024  # bytes of a DATA frame that is not the result of a tiny window


class Sender:
    """Writes to a transport."""

    sent: Callable[[Stream], None]  # called after a response that had to wait
    sent_data: Callable[[], None]  # called after each of its DATA frames

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport: asyncio.Transport | None = transport
        self.address = client_address(transport)  # still needed once the transport is gone
        self.paused = False  # the kernel's buffer is full
        self._window = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW  # of a new stream
        self.frame = frames.DEFAULT_FRAME  # the largest payload that the client accepts
        self._waiting: dict[int, Stream] = {}  # streams with unsent parts
        self._out: Parts = []
        self._size = 0
        self._passed = 0  # bytes that the transport has got
        self._block_prefix = NO_TABLE  # of the first header block

    def write(self, frame: bytes) -> None:
        """Write a frame at the next flush."""
        self._out.append(frame)
        self._size += len(frame)

    def flush(self) -> None:
        """Write the collected frames."""
        if self._out:
            out, size = self._out, self._size
            self._out, self._size = [], 0
            if self._transport is None:
                return
            self._passed += size
            if size <= JOINED_BYTES:
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)

    def count_acknowledged(self) -> int:
        """Return how many bytes the client has received of all that was written."""
        return self._passed - (
            0 if self._transport is None else count_unacknowledged(self._transport)
        )

    def respond(
        self, stream: Stream, block: bytes, parts: Parts, length: int, trailers: bytes
    ) -> bool:
        """Send a response, or return False if it must `wait` for a window; without `length`, `block` is the whole response."""
        if length and (
            not trailers
            or length > self._window
            or length > stream.window
            or length > frames.DEFAULT_FRAME
            or self._waiting
            or self.paused
        ):
            return False
        if self._block_prefix:
            block = self._block_prefix + block
            self._block_prefix = b""
        if not length:
            self._headers(stream, block, frames.END_STREAM)
        else:
            self._window -= length
            self.write(_whole(stream.id, block, parts, length, trailers))
        return True

    def wait(self, stream: Stream, block: bytes, parts: Parts, trailers: bytes) -> None:
        """Send the headers of a response, and its body when windows admit it."""
        if self._block_prefix:
            block = self._block_prefix + block
            self._block_prefix = b""
        self._headers(stream, block, 0)
        stream.unsent = deque(memoryview(part) for part in parts if len(part))
        stream.trailers = trailers
        self._waiting[stream.id] = stream

    def close(self) -> None:
        """Drop all references: a transport of TLS refers to the connection, which would never be freed."""
        self._transport = None
        self.sent = self.sent_data = do_nothing

    def drop(self, stream: Stream) -> None:
        """Forget the unsent parts of a stream."""
        self._waiting.pop(stream.id, None)
        stream.unsent = None

    def pump(self) -> None:
        """Send waiting responses, in turns, as far as the windows admit."""
        progress = True
        while progress and self._waiting and self._window > 0 and not self.paused:
            progress = False
            for stream in tuple(self._waiting.values()):
                if stream.window > 0 and self._window > 0 and not self.paused:
                    progress = True
                    self._send_turn(stream)
                    if self._size > JOINED_BYTES:
                        self.flush()

    # The client's settings and windows.

    def widen(self, stream: Stream | None, increment: int) -> None:
        """Enlarge the window of a stream or of the connection (RFC 9113 6.9.1); raise an error if it is too large."""
        if stream is None:
            self._window += increment
            if self._window > frames.LARGEST:
                raise ConnectionFaultError(
                    ErrorCode.FLOW_CONTROL_ERROR, "the connection's window exceeds 2^31-1"
                )
        else:
            stream.window += increment
            if stream.window > frames.LARGEST:
                raise StreamFaultError(ErrorCode.FLOW_CONTROL_ERROR)

    def set_initial_window(self, size: int, streams: Iterable[Stream]) -> None:
        """Set the window of new streams and change that of existing ones (RFC 9113 6.9.2); may raise ConnectionFaultError."""
        change = size - self.initial_window
        self.initial_window = size
        for stream in streams:
            stream.window += change  # may become negative
            if stream.window > frames.LARGEST:
                raise ConnectionFaultError(
                    ErrorCode.FLOW_CONTROL_ERROR, "a stream's window exceeds 2^31-1"
                )

    # Frames of responses.

    def _headers(self, stream: Stream, block: bytes, flags: int) -> None:
        self.write(
            frames.head(frames.HEADERS, flags | frames.END_HEADERS, stream.id, len(block)) + block
        )

    def _data(self, stream: Stream, parts: Parts, length: int, *, last: bool) -> None:
        self.write(frames.head(frames.DATA, frames.END_STREAM if last else 0, stream.id, length))
        self._out += parts
        self._size += length

    def _send_turn(self, stream: Stream) -> None:
        unsent = stream.unsent
        assert unsent is not None  # noqa: S101 - it waits
        left = min(_TURN_BYTES, self._window, stream.window)
        while unsent and left > 0:
            parts, length = _take(unsent, min(left, self.frame))
            left -= length
            self._window -= length
            stream.window -= length
            stream.written += length
            self._data(stream, parts, length, last=not (unsent or stream.trailers))
            stream.end_of_written = self._passed + self._size
            if length >= _SUBSTANTIAL:
                self.sent_data()
        if not unsent:
            self.drop(stream)
            if stream.trailers:
                self._headers(stream, stream.trailers, frames.END_STREAM)
            self.sent(stream)


def _whole(stream: int, block: bytes, parts: Parts, length: int, trailers: bytes) -> bytes:
    """Return a response whose blocks and body are a frame each, none of 64 KiB or more."""
    pack = frames.HEAD.pack
    return b"".join(
        [
            pack(0, len(block), frames.HEADERS, frames.END_HEADERS, stream),
            block,
            pack(0, length, frames.DATA, 0, stream),
            *parts,
            pack(0, len(trailers), frames.HEADERS, _LAST_BLOCK, stream),
            trailers,
        ]
    )


def _take(unsent: deque[memoryview], size: int) -> tuple[Parts, int]:
    parts: Parts = []
    length = 0
    while unsent and length < size:
        part = unsent[0]
        if len(part) <= size - length:
            unsent.popleft()
        else:
            unsent[0] = part[size - length :]
            part = part[: size - length]
        parts.append(part)
        length += len(part)
    return parts, length
