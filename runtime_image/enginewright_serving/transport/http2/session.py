"""What the frames of one connection mean: its streams, from requests to responses (RFC 9113 5, 6, 8).

Without the socket: bytes come from `Http2Connection` and go to `Sender`. What costs the server more than the client
is limited by budgets, which time and useful work refill:

- resets, by the client (CVE-2023-44487) or provoked by it (CVE-2025-8671), and refused streams
- PING, SETTINGS, PRIORITY, WINDOW_UPDATE, CONTINUATION, empty or tiny DATA, unknown frames
  (CVE-2019-9511, 9512, 9513, 9515, 9518, CVE-2024-27316)
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from enginewright_serving.transport.account import ByteAccount
from enginewright_serving.transport.http2 import frames
from enginewright_serving.transport.http2.bodies import MAX_FRAME, Bodies
from enginewright_serving.transport.http2.budget import FrameBudget
from enginewright_serving.transport.http2.control import HEAVY, TAKE, ControlFrames
from enginewright_serving.transport.http2.errors import (
    ConnectionFaultError,
    ErrorCode,
    StreamFaultError,
)
from enginewright_serving.transport.http2.fields import RequestHead, check_fields
from enginewright_serving.transport.http2.header_blocks import HeaderBlocks
from enginewright_serving.transport.http2.sender import Parts, Sender
from enginewright_serving.transport.http2.stream import RequestHandler, Stream, do_nothing
from enginewright_serving.transport.http2.streams import MAX_STREAMS, Going, Streams
from enginewright_serving.transport.http2.transfers import Transfers
from enginewright_serving.transport.input_turns import InputTurns
from enginewright_serving.transport.settings import TransportSettings

_INCREMENT_BYTES: Final = 4
_FRAMES: Final = 1000  # that are not useful at once, and per ten seconds
_RESETS: Final = 1000  # at once, and per five seconds
_REQUEST_EARNS: Final = 20
_DROPPED_AT_ONCE: Final = 8  # requests of a client that leaves
_DATA_EARNS: Final = 4  # a client may grant windows to stream and connection in two steps each
_ANNOUNCED: Final = {
    frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
    frames.INITIAL_WINDOW_SIZE: frames.LARGEST,
    frames.MAX_FRAME_SIZE: MAX_FRAME,
}


class RequestHandlers(Protocol):
    """Makes handlers of one application's requests."""

    def prepare(self, head: RequestHead) -> object:
        """Read a head for the application; cached for requests with the same one."""

    def handle(self, session: "Session", stream: Stream, head: object) -> RequestHandler:
        """Return the handler of a request whose head was prepared."""


class Session:
    """What one connection's frames mean."""

    def __init__(
        self,
        handlers: RequestHandlers,
        settings: TransportSettings,
        sender: Sender,
        account: ByteAccount,
        *,
        due: Callable[[], None],
        abort: Callable[[], None],
    ) -> None:
        """Write the server's settings. `due` is called after each response, `abort` closes the connection."""
        self._handlers = handlers
        self._settings = settings
        self._due = due
        self.begun = False  # whether the client's first frame has arrived
        self._frames = FrameBudget("frames that are not useful", _FRAMES, _FRAMES / 10)
        self._resets = FrameBudget("resets", _RESETS, _RESETS / 5)
        self._blocks = HeaderBlocks(handlers.prepare, settings.head_bytes)
        self.sender = sender
        self.streams = streams = Streams()
        self.bodies = Bodies(streams, sender, self._frames, self._reset)
        self.control = ControlFrames(streams, sender, self._frames)
        self.transfers = Transfers(streams, sender, settings, account, due=due, abort=abort)
        sender.write(
            frames.settings(_ANNOUNCED | {frames.MAX_HEADER_LIST_SIZE: settings.head_bytes})
        )
        sender.write(frames.window_update(0, frames.LARGEST - frames.DEFAULT_WINDOW))

    # Called by the connection. An error of the client raises ConnectionFaultError.

    @property
    def in_block(self) -> bool:
        """Whether a header block is incomplete."""
        return bool(self._blocks.stream)

    def check_frame(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Check a frame's head, before its payload has arrived."""
        if self.begun and not self._blocks.stream:  # most frames are these
            if kind == frames.WINDOW_UPDATE and length == _INCREMENT_BYTES:
                return
            if kind == frames.DATA and stream_id and 0 < length <= MAX_FRAME:
                return
            if kind == frames.HEADERS and stream_id and length <= self._settings.head_bytes:
                return
        if length > MAX_FRAME:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "a frame is too large")
        if not self.begun:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "SETTINGS must be first")
            self.begun = True
        if kind == frames.PUSH_PROMISE:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
        self._blocks.check(kind, stream_id, length)
        frames.check(kind, flags, stream_id, length)
        if kind != frames.DATA and kind <= frames.CONTINUATION and length > frames.DEFAULT_FRAME:
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, "a frame is too large")

    def take_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Take any frame but DATA and unknown ones."""
        try:
            if kind == frames.HEADERS:
                self._take_headers(flags, stream_id, payload)
            elif kind == frames.RST_STREAM:
                self._take_reset(stream_id)
            elif kind == frames.CONTINUATION:
                self._take_continuation(flags, stream_id, payload)
            else:
                TAKE[kind](self.control, flags, stream_id, payload)
        except StreamFaultError as fault:
            self._reset(stream_id, fault.code)

    def fail(self, fault: ConnectionFaultError) -> None:
        """End everything for an error of the client (5.4.1)."""
        self.cancel()
        self.sender.write(frames.goaway(self.streams.last, fault.code, fault.message))

    def cancel(self) -> None:
        """Drop all requests and responses."""
        self.bodies.drop()
        self.transfers.cancel(self.streams.take_all())

    def close(self, turns: InputTurns) -> None:
        """Drop everything, many requests in a later turn, and all references to the connection."""
        self.bodies.drop()
        streams = self.streams.take_all()
        if len(streams) > _DROPPED_AT_ONCE:
            turns.take(partial(self.transfers.cancel, streams))
        else:
            self.transfers.cancel(streams)
        self._due = do_nothing
        self.bodies.close()
        self.transfers.close()
        self.sender.close()

    def on_sent(self, stream: Stream) -> None:
        """Close the stream of a request whose response is written."""
        stream.handler.on_sent()
        if stream.receiving:  # the rest of the request is not needed (8.1)
            self.sender.write(frames.reset(stream.id, ErrorCode.NO_ERROR))
        if stream.outgoing is not None:
            self.transfers.read.append(stream.outgoing)
        self.streams.close(stream.id, by_server=stream.receiving)
        self._frames.earn(_REQUEST_EARNS)
        self._resets.earn(1)

    def on_sent_data(self) -> None:
        """Allow the WINDOW_UPDATE frames that a sent DATA frame leads to."""
        self._frames.earn(_DATA_EARNS)

    def respond(
        self, stream: Stream, block: bytes, parts: Parts, length: int, trailers: bytes
    ) -> bool:
        """Answer a request whose stream is open (`Sender.respond`); return False if it must wait and there is no space."""
        if self.streams.open.get(stream.id) is not stream:
            return True
        if self.sender.respond(stream, block, parts, length, trailers):
            self.on_sent(stream)
        elif self.transfers.charge(stream, length):
            self.sender.wait(stream, block, parts, trailers)
            self.sender.pump()
        else:
            return False
        self.streams.owed -= not stream.receiving
        self._due()
        return True

    def _take_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a client's streams are odd")
        block = self._blocks.begin(flags, stream_id, payload)
        if block is not None:
            self._take_block(stream_id, block)

    def _take_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._frames.spend(HEAVY)
        block = self._blocks.proceed(flags, payload)
        if block is not None:
            self._take_block(stream_id, block)

    def _take_block(self, stream_id: int, block: bytes) -> None:
        """Take a complete header block: of a new stream, or trailers (8.1)."""
        stream = self.streams.open.get(stream_id)
        if stream is not None:
            self._take_trailers(stream, block)
        elif stream_id <= self.streams.last:
            self._take_late_block(stream_id, block)
        elif self.streams.going is Going.FINAL:
            self._frames.spend()
            self._blocks.decode(block)
        else:
            self._open(stream_id, block)

    def _open(self, stream_id: int, block: bytes) -> None:
        streams = self.streams
        streams.last = stream_id
        streams.opened_at = now = time.monotonic()
        head, expected = self._blocks.prepare(block)
        if len(streams.open) >= MAX_STREAMS:
            raise StreamFaultError(ErrorCode.REFUSED_STREAM)
        stream = Stream(stream_id, self.sender.initial_window, expected, now)
        if self._blocks.ends:
            stream.end()
        stream.handler = self._handlers.handle(self, stream, head)
        streams.open[stream_id] = stream  # once nothing can fail: all that are open have a handler
        streams.owed += not stream.receiving
        if self._blocks.ends:
            stream.handler.end()
        else:
            stream.handler.begin()

    def _take_trailers(self, stream: Stream, block: bytes) -> None:
        fields = self._blocks.decode(block)
        if stream.receiving and not self._blocks.ends:
            raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
        stream.end()
        self.streams.owed += stream.unsent is None
        check_fields(fields)
        stream.handler.end()

    def _take_late_block(self, stream_id: int, block: bytes) -> None:
        by_server = self.streams.is_ended_by_server(stream_id)
        if by_server is None:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "streams must have rising numbers")
        if not by_server:
            raise ConnectionFaultError(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
        self._frames.spend()
        self._blocks.decode(block)

    def _take_reset(self, stream_id: int) -> None:
        """Drop a request (6.4)."""
        if stream_id not in self.streams.open:
            self._frames.spend()
            self.streams.refuse_idle(stream_id)
            return
        self._resets.spend()
        self._drop(stream_id, by_server=False)

    def _reset(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream for an error of the client (5.4.2)."""
        self.sender.write(frames.reset(stream_id, code))
        self._resets.spend()
        self._drop(stream_id, by_server=True)

    def _drop(self, stream_id: int, *, by_server: bool) -> None:
        stream = self.streams.open.get(stream_id)
        if stream is not None:
            self.streams.owed -= not stream.receiving and stream.unsent is None
            self.transfers.drop(stream)
            stream.handler.cancel()
        self.streams.close(stream_id, by_server=by_server)
