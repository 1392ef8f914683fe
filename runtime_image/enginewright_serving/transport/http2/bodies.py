"""DATA frames of one connection, which are taken as they arrive (RFC 9113 6.1).

A large message is read into its own memory. Many clients send it in frames of 16 KiB, whose heads are then removed where
they arrived, so that a message is read by few system calls whatever its frames are.

The account admits bodies as they arrive, so receive windows have their maximum (5.2.2).
"""

from collections.abc import Callable
from typing import Final

from enginewright_serving.transport.http2 import frames
from enginewright_serving.transport.http2.budget import FrameBudget
from enginewright_serving.transport.http2.errors import (
    ConnectionFaultError,
    ErrorCode,
    StreamFaultError,
)
from enginewright_serving.transport.http2.sender import Sender
from enginewright_serving.transport.http2.stream import do_nothing
from enginewright_serving.transport.http2.streams import Streams

MAX_FRAME: Final = 1024 * 1024  # bytes of DATA that may be read from the socket at once

_UPDATE_BYTES: Final = 2**30  # received, after which the connection's window is renewed
_TINY_BYTES: Final = 256  # of DATA, which then counts as not useful
_RUN_BYTES: Final = 256 * 1024  # read at once into a message, if its frames are smaller
_RUN_FRAME: Final = 1024  # bytes of the smallest frame that may follow in what is read at once


class Bodies:
    """Takes DATA frames, and frames that are skipped, in any pieces."""

    def __init__(
        self,
        streams: Streams,
        sender: Sender,
        budget: FrameBudget,
        reset: Callable[[int, ErrorCode], None],
    ) -> None:
        """Begin between two frames; `budget` is of useless frames, `reset` resets a stream for an error."""
        self._streams = streams
        self._sender = sender
        self._frames = budget
        self._reset = reset
        self._left = 0  # bytes of the current frame, without padding
        self._pad_left = 0
        self._ends = False
        self._received = 0  # bytes of DATA since the connection's window was renewed

    @property
    def in_payload(self) -> bool:
        """Whether `take_payload` takes the next bytes."""
        return bool(self._left or self._pad_left)

    @property
    def discards(self) -> bool:
        """Whether the rest of the current frame is discarded."""
        return self._streams.arriving is None and self._left > 0

    def begin(self, stream_id: int, flags: int, length: int, padding: int) -> None:
        """Begin a DATA frame (6.1), whose padding has `padding` bytes, -1 without; may raise ConnectionFaultError."""
        self._count(length)
        size = length - 1 - padding
        if size < 0:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "DATA is shorter than its padding")
        self._ends = bool(flags & frames.END_STREAM)
        if size < _TINY_BYTES and not self._ends:
            self._frames.spend()
        self._left, self._pad_left = size, max(padding, 0)
        stream = self._streams.arriving = self._streams.open.get(stream_id)
        if stream is None:
            self._check_late(stream_id)
            return
        try:
            stream.count(size)
        except StreamFaultError as fault:
            self._reset(stream_id, fault.code)
            return
        if not size:
            self._end()

    def skip(self, length: int) -> None:
        """Begin a frame of an unknown type (5.5); raise ConnectionFaultError if there are too many."""
        self._frames.spend()
        self._streams.arriving = None
        self._left = length

    def take_payload(self, part: memoryview) -> int:
        """Take the bytes of the current frame in `part`; return how many these are."""
        size = min(self._left, len(part))
        if size:
            self._left -= size
            stream = self._streams.arriving
            if stream is not None:
                stream.handler.receive(part[:size])
                if not self._left:
                    self._end()
        padding = min(self._pad_left, len(part) - size)
        self._pad_left -= padding
        return size + padding

    def memory(self, least: int) -> memoryview | None:
        """Return where the rest of the current frame belongs, and maybe later frames, if more than `least` bytes do."""
        stream = self._streams.arriving
        if stream is None or not self._left:
            return None
        is_last = self._ends or self._pad_left
        most = self._left if is_last else max(self._left, _RUN_BYTES)
        memory = None if most <= least else stream.handler.memory(most)
        return None if memory is None or len(memory) <= least else memory

    def on_received(self, memory: memoryview, size: int) -> int:
        """Take bytes that were read into `memory`, but for frames that need more than their heads removed; return how many."""
        at = filled = min(self._left, size)
        self._left -= at
        stream = self._streams.arriving
        if stream is None:
            return at
        while not self._left and size - at >= frames.HEAD.size:
            high, low, kind, flags, stream_id = frames.HEAD.unpack_from(memory, at)
            length: int = high << 16 | low
            if (
                kind != frames.DATA
                or flags
                or stream_id != stream.id
                or not _RUN_FRAME <= length <= MAX_FRAME
                or not stream.has_room(length)
            ):
                break
            self._count(length)
            stream.count(length)
            at += frames.HEAD.size
            part = min(length, size - at)
            memory[filled : filled + part] = memory[at : at + part]
            at += part
            filled += part
            self._left = length - part
        stream.handler.on_received(filled)
        if not self._left:
            self._end()
        return at

    def drop(self) -> None:
        """Forget the current frame."""
        self._streams.arriving = None
        self._left = self._pad_left = 0

    def close(self) -> None:
        """Drop the reference to the connection."""
        self._reset = do_nothing

    def _count(self, length: int) -> None:
        """Count DATA, and renew the connection's window in time."""
        self._received += length
        if self._received >= _UPDATE_BYTES:
            self._sender.write(frames.window_update(0, self._received))
            self._received = 0

    def _check_late(self, stream_id: int) -> None:
        streams = self._streams
        if stream_id > streams.last:
            streams.refuse_idle(stream_id)
        elif not streams.is_ended_by_server(stream_id):
            self._reset(stream_id, ErrorCode.STREAM_CLOSED)

    def _end(self) -> None:
        """End the current DATA frame, whose padding may still follow."""
        stream, self._streams.arriving = self._streams.arriving, None
        if stream is None or not self._ends or not stream.receiving:
            return
        try:
            stream.end()
        except StreamFaultError as fault:
            self._reset(stream.id, fault.code)
        else:
            self._streams.owed += stream.unsent is None
            stream.handler.end()
