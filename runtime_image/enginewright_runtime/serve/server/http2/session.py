"""What the frames of one connection mean: its streams, from requests to responses (RFC 9113 5, 6, 8).

Without the socket: bytes come from `Http2Connection` and go to `Sender`.

The client may send as much as it likes: the account admits bodies as they arrive, so receive windows
have their maximum (5.2.2), and nothing waits for WINDOW_UPDATE. What a response takes until the client
accepts it is charged, too.

What costs more than it does the client is limited by budgets, which time and useful work refill:

- resets, by the client (CVE-2023-44487) or provoked by it (CVE-2025-8671), and refused streams
- PING, SETTINGS, PRIORITY, WINDOW_UPDATE, CONTINUATION, empty or tiny DATA, unknown frames
  (CVE-2019-9511, 9512, 9513, 9515, 9518, CVE-2024-27316)
"""

import enum
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from enginewright_runtime.serve.server.account import ByteAccount, Holding, Peer
from enginewright_runtime.serve.server.http2 import frames
from enginewright_runtime.serve.server.http2.budget import FrameBudget
from enginewright_runtime.serve.server.http2.errors import (
    ConnectionFaultError,
    ErrorCode,
    StreamFaultError,
)
from enginewright_runtime.serve.server.http2.fields import check_fields
from enginewright_runtime.serve.server.http2.header_blocks import HeaderBlocks
from enginewright_runtime.serve.server.http2.sender import Parts, Sender
from enginewright_runtime.serve.server.http2.stream import RequestHandlers, Stream
from enginewright_runtime.serve.server.pace import TransferPace
from enginewright_runtime.serve.server.settings import ServerSettings

MAX_STREAMS: Final = 128  # concurrent ones of a connection
MAX_FRAME: Final = 1024 * 1024  # bytes of DATA that may be read from the socket at once

_UPDATE_BYTES: Final = 2**30  # received, after which the connection's window is renewed
_SETTINGS_BYTES: Final = 32 * frames.SETTING.size  # each may change the window of every stream
_INCREMENT_BYTES: Final = 4
_FRAMES: Final = 1000  # that are not useful at once, and per ten seconds
_RESETS: Final = 1000  # at once, and per five seconds
_TINY_BYTES: Final = 256  # of DATA, which then counts as not useful
_HEAVY: Final = 10  # what SETTINGS and CONTINUATION count
_REQUEST_EARNS: Final = 20
_DATA_EARNS: Final = 4  # a client may grant windows to stream and connection in two steps each
_CLOSED_KEPT: Final = 4 * MAX_STREAMS  # streams whose late frames are understood
_DRAIN: Final = b"draining"  # PING after whose acknowledgement no new stream is under way


class Going(enum.Enum):
    """How far a graceful shutdown is (RFC 9113 6.8)."""

    NO = enum.auto()
    ANNOUNCED = enum.auto()  # streams that are under way are still accepted
    FINAL = enum.auto()  # later streams are ignored; the client repeats them elsewhere


class Session:
    """The streams of one connection."""

    __slots__ = (
        "_abort",
        "_account",
        "_blocks",
        "_closed",
        "_data_ends",
        "_data_left",
        "_data_stream",
        "_due",
        "_frames",
        "_handlers",
        "_last",
        "_opened",
        "_pad_left",
        "_received",
        "_resets",
        "_settings",
        "going",
        "idle_since",
        "peer",
        "read",
        "sender",
        "streams",
    )

    def __init__(
        self,
        handlers: RequestHandlers,
        settings: ServerSettings,
        sender: Sender,
        account: ByteAccount,
        peer: Peer,
        *,
        due: Callable[[], None],
        abort: Callable[[], None],
    ) -> None:
        """Begin with the server's settings.

        Args:
            handlers: of requests.
            settings: of the server.
            sender: what is written goes to it.
            account: responses are charged to it until the client has read them.
            peer: the client.
            due: called after a response was given.
            abort: closes the connection.
        """
        self._handlers = handlers
        self._settings = settings
        self._account = account
        self.peer = peer
        self._due = due
        self._abort = abort
        self._blocks = HeaderBlocks(handlers, settings.head_bytes)
        self.sender = sender
        self.streams: dict[int, Stream] = {}  # that are not closed
        self.going = Going.NO
        self.idle_since = time.monotonic()  # without a stream
        self._opened = False  # the client's settings have arrived
        self._last = 0  # the client's last stream
        self._closed: dict[int, bool] = {}  # recent streams -> whether the server ended them
        self.read: list[Holding] = []  # of responses that are written, maybe not yet by the kernel
        self._data_stream: Stream | None = None  # None: the rest of the frame is discarded
        self._data_left = 0  # bytes of the current frame, without padding
        self._pad_left = 0
        self._data_ends = False
        self._received = 0  # bytes of DATA since the connection's window was renewed
        self._frames = FrameBudget("frames that are not useful", _FRAMES, _FRAMES / 10)
        self._resets = FrameBudget("resets", _RESETS, _RESETS / 5)
        announced = {
            frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            frames.INITIAL_WINDOW_SIZE: frames.LARGEST,
            frames.MAX_FRAME_SIZE: MAX_FRAME,
            frames.MAX_HEADER_LIST_SIZE: settings.head_bytes,
        }
        sender.write(frames.settings(announced))
        sender.write(frames.window_update(0, frames.LARGEST - frames.DEFAULT_WINDOW))

    # Called by the connection. What a client does wrong raises ConnectionFaultError.

    @property
    def begun(self) -> bool:
        """Whether the client's first frame has arrived."""
        return self._opened

    @property
    def in_block(self) -> bool:
        """Whether a header block is incomplete."""
        return bool(self._blocks.stream)

    @property
    def in_payload(self) -> bool:
        """Whether `take_payload` takes the next bytes."""
        return bool(self._data_left or self._pad_left)

    @property
    def discards(self) -> bool:
        """Whether the rest of the current frame is of no use."""
        return self._data_stream is None and self._data_left > 0

    def check_frame(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Check a frame's head, before its payload has arrived."""
        if self._opened and not self._blocks.stream:  # what most frames are
            if kind == frames.WINDOW_UPDATE and length == _INCREMENT_BYTES:
                return
            if kind == frames.DATA and stream_id and 0 < length <= MAX_FRAME:
                return
            if kind == frames.HEADERS and stream_id and length <= self._settings.head_bytes:
                return
        if length > MAX_FRAME:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "a frame is too large")
        if not self._opened:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "SETTINGS must be first")
            self._opened = True
        if kind == frames.PUSH_PROMISE:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
        self._blocks.check(kind, stream_id, length)
        frames.check(kind, flags, stream_id, length)
        if kind != frames.DATA and kind <= frames.CONTINUATION and length > frames.DEFAULT_FRAME:
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, "a frame is too large")

    def take_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Take any frame but DATA and unknown ones."""
        try:
            _TAKE[kind](self, flags, stream_id, payload)
        except StreamFaultError as fault:
            self._reset(stream_id, fault.code)

    def begin_data(self, stream_id: int, flags: int, length: int, padding: int) -> None:
        """Begin a DATA frame (6.1), whose padding has `padding` bytes, -1 without."""
        self._received += length
        if self._received >= _UPDATE_BYTES:
            self.sender.write(frames.window_update(0, self._received))
            self._received = 0
        size = length - 1 - padding
        if size < 0:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "DATA is shorter than its padding")
        self._data_ends = bool(flags & frames.END_STREAM)
        if size < _TINY_BYTES and not self._data_ends:
            self._frames.spend()
        self._data_left, self._pad_left = size, max(padding, 0)
        self._data_stream = self.streams.get(stream_id)
        if self._data_stream is None:
            self._check_late_data(stream_id)
            return
        try:
            self._data_stream.count(size)
        except StreamFaultError as fault:
            self._reset(stream_id, fault.code)
            return
        if not size:
            self._end_data()

    def skip(self, length: int) -> None:
        """Begin a frame of a type that is not known (5.5)."""
        self._frames.spend()
        self._data_stream = None
        self._data_left = length

    def take_payload(self, part: memoryview) -> int:
        """Take what has arrived of the current frame; return how much that is."""
        size = min(self._data_left, len(part))
        if size:
            self._data_left -= size
            if self._data_stream is not None:
                self._data_stream.handler.receive(part[:size])
                if not self._data_left:
                    self._end_data()
        padding = min(self._pad_left, len(part) - size)
        self._pad_left -= padding
        return size + padding

    def memory(self, least: int) -> memoryview | None:
        """Return where the next bytes belong, if more than `least` are left of the frame."""
        if self._data_left <= least or self._data_stream is None:
            return None
        return self._data_stream.handler.memory(self._data_left)

    def received(self, size: int) -> None:
        """Take bytes that were read into `memory`."""
        self._data_left -= size
        if self._data_stream is not None:
            self._data_stream.handler.received(size)
            if not self._data_left:
                self._end_data()

    def check(self, now: float) -> None:
        """End requests and responses at their time limits; those in progress share the rate."""
        streams = tuple(self.streams.values())
        requests = sum(each.receiving for each in streams)
        responses = sum(each.unsent is not None for each in streams)
        for each in streams:
            if each.unsent is not None:
                if not self.pace(each).update(now, each.written, responses):
                    self._cancel_response(each)
            elif each.receiving and not self.pace(each).update(now, each.received, requests):
                each.handler.expire()

    def pace(self, stream: Stream) -> TransferPace:
        """Return the pace of what a stream transfers, since its beginning."""
        if stream.pace is None:
            stream.pace = self.new_pace(stream.started)
        return stream.pace

    def new_pace(self, now: float) -> TransferPace:
        """Return the pace of a transfer that begins."""
        settings = self._settings
        return TransferPace(now, window=settings.transfer_window, minimum=settings.transfer_rate)

    def moves_since(self) -> float | None:
        """Return since when the client sends or reads.

        None: the application owes a response.
        """
        streams = self.streams.values()
        if any(not each.receiving and each.unsent is None for each in streams):
            return None
        return min((each.started for each in streams), default=self.idle_since)

    @property
    def hardly_moves(self) -> bool:
        """Whether all that the client sends or reads is slow."""
        slow = self._settings.slow_rate
        streams = self.streams.values()
        return bool(streams) and all(each.pace and each.pace.rate < slow for each in streams)

    @property
    def awaited(self) -> int:
        """Bytes of all messages that are arriving in memory of their whole size."""
        return sum(each.handler.awaited for each in self.streams.values())

    def go_away(self) -> None:
        """Have the client open its next streams on another connection (6.8)."""
        self.going = Going.ANNOUNCED
        self.sender.write(frames.goaway(frames.LARGEST, ErrorCode.NO_ERROR))
        self.sender.write(frames.ping(_DRAIN))

    def refuse_new_streams(self) -> None:
        """Have the client open no more streams."""
        self.going = Going.FINAL
        self.sender.write(frames.goaway(self._last, ErrorCode.NO_ERROR))

    def fail(self, fault: ConnectionFaultError) -> None:
        """End everything for what the client did (5.4.1)."""
        self.cancel()
        self.sender.write(frames.goaway(self._last, fault.code, fault.message))

    def cancel(self) -> None:
        """Drop all requests and responses."""
        streams, self.streams = self.streams, {}
        self._data_stream = None
        self._data_left = self._pad_left = 0
        for stream in streams.values():
            self._drop_response(stream)
            stream.handler.cancel()
            del stream.handler
        self.release_read()

    def close(self) -> None:
        """Drop everything; nothing refers to the connection any more."""
        self.cancel()
        self._due = self._abort = _nothing
        self.sender.close()

    def sent(self, stream: Stream) -> None:
        """Close the stream of a request whose response is written."""
        stream.handler.sent()
        if stream.receiving:  # the rest of the request is not needed (8.1)
            self.sender.write(frames.reset(stream.id, ErrorCode.NO_ERROR))
        self._forget(stream, by_server=stream.receiving)
        self._frames.earn(_REQUEST_EARNS)
        self._resets.earn(1)

    def sent_data(self) -> None:
        """Allow the WINDOW_UPDATE frames that a sent DATA frame leads to."""
        self._frames.earn(_DATA_EARNS)

    # Called by the application.

    def respond(
        self, stream: Stream, block: bytes, parts: Parts, length: int, trailers: bytes
    ) -> bool:
        """Answer a request, see `Sender.respond`; no-op if its stream is closed.

        False: the client must first accept the response, and there is no space to keep it until then.
        """
        if self.streams.get(stream.id) is not stream:
            return True
        if self.sender.respond(stream, block, parts, length, trailers):
            self.sent(stream)
        elif self._charge(stream, length):
            self.sender.wait(stream, block, parts, length, trailers)
            self.sender.pump()
        else:
            return False
        self._due()
        return True

    # Responses that wait for the client.

    def release_read(self) -> None:
        """Charge responses no more that are written completely."""
        read, self.read = self.read, []
        for each in read:
            self._account.release(each)

    def _charge(self, stream: Stream, length: int) -> bool:
        account = self._account
        holding = Holding(self.peer, partial(self._give_up, stream))
        holding.is_exempt = stream.handler.reserved
        if not account.hold(holding, account.charged_response(length)):
            return False
        stream.outgoing = holding
        stream.pace = self.new_pace(time.monotonic())
        account.begin(holding, stream.pace)
        return True

    def _give_up(self, stream: Stream) -> None:
        """End a response, since its memory is needed for others."""
        if self.streams.get(stream.id) is stream and not self.sender.paused:
            self._cancel_response(stream)
            self._due()
        else:  # parts of it are in the transport's buffer
            self._abort()

    def _cancel_response(self, stream: Stream) -> None:
        self.sender.write(frames.reset(stream.id, ErrorCode.CANCEL))
        self._drop_response(stream)
        self._forget(stream, by_server=True)

    def _drop_response(self, stream: Stream) -> None:
        self.sender.drop(stream)
        holding, stream.outgoing = stream.outgoing, None
        if holding is not None:
            self._account.release(holding)

    # Header blocks.

    def _take_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a client's streams are odd")
        block = self._blocks.begin(flags, stream_id, payload)
        if block is not None:
            self._take_block(stream_id, block)

    def _take_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._frames.spend(_HEAVY)
        block = self._blocks.proceed(flags, payload)
        if block is not None:
            self._take_block(stream_id, block)

    def _take_block(self, stream_id: int, block: bytes) -> None:
        """Take a complete header block: of a new stream, or trailers (8.1)."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._take_trailers(stream, block)
        elif stream_id <= self._last:
            self._take_late_block(stream_id, block)
        elif self.going is Going.FINAL:
            self._frames.spend()
            self._blocks.decode(block)
        else:
            self._open(stream_id, block)

    def _open(self, stream_id: int, block: bytes) -> None:
        self._last = stream_id
        head, expected = self._blocks.prepare(block)
        if len(self.streams) >= MAX_STREAMS:
            raise StreamFaultError(ErrorCode.REFUSED_STREAM)
        stream = Stream(stream_id, self.sender.initial_window, expected, time.monotonic())
        if self._blocks.ends:
            stream.end()
        self.streams[stream_id] = stream
        stream.handler = self._handlers.handle(self, stream, head)
        if self._blocks.ends:
            stream.handler.end()

    def _take_trailers(self, stream: Stream, block: bytes) -> None:
        fields = self._blocks.decode(block)
        if stream.receiving and not self._blocks.ends:
            raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
        stream.end()
        check_fields(fields)
        stream.handler.end()

    def _take_late_block(self, stream_id: int, block: bytes) -> None:
        by_server = self._closed.get(stream_id)
        if by_server is None:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "streams must have rising numbers")
        if not by_server:
            raise ConnectionFaultError(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
        self._frames.spend()
        self._blocks.decode(block)

    # Bodies.

    def _check_late_data(self, stream_id: int) -> None:
        if stream_id > self._last:
            self._refuse_idle(stream_id)
        elif not self._closed.get(stream_id):
            self._reset(stream_id, ErrorCode.STREAM_CLOSED)

    def _end_data(self) -> None:
        """End the current DATA frame, whose padding may still follow."""
        stream, self._data_stream = self._data_stream, None
        if stream is None or not self._data_ends or not stream.receiving:
            return
        try:
            stream.end()
        except StreamFaultError as fault:
            self._reset(stream.id, fault.code)
        else:
            stream.handler.end()

    # Everything else that a client sends.

    def _take_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Send what the larger window admits (6.9)."""
        del flags
        self._frames.spend()
        stream = self.streams.get(stream_id)
        if stream_id and stream is None:
            self._refuse_idle(stream_id)
            return
        increment = frames.number(payload)
        if not increment:
            if stream is None:
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a window grows by 0")
            raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
        self.sender.widen(stream, increment)
        self.sender.pump()

    def _take_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Drop a request (6.4)."""
        del flags, payload
        stream = self.streams.get(stream_id)
        if stream is None:
            self._frames.spend()
            self._refuse_idle(stream_id)
            return
        self._resets.spend()
        handler = stream.handler
        self._forget(stream, by_server=False)
        handler.cancel()

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        del stream_id
        self._frames.spend()
        if not flags & frames.ACK:
            self.sender.write(frames.ping(payload, frames.ACK))
        elif payload == _DRAIN and self.going is Going.ANNOUNCED:
            self.refuse_new_streams()

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Apply the client's settings (6.5)."""
        del stream_id
        self._frames.spend(_HEAVY)
        if len(payload) % frames.SETTING.size or (flags & frames.ACK and payload):
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS has the wrong size")
        if len(payload) > _SETTINGS_BYTES:
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, "SETTINGS is too large")
        if flags & frames.ACK:
            return
        for name, value in frames.SETTING.iter_unpack(payload):
            self._set(name, value)
        self.sender.write(frames.head(frames.SETTINGS, frames.ACK, 0, 0))
        self.sender.pump()

    def _set(self, name: int, value: int) -> None:
        if name == frames.INITIAL_WINDOW_SIZE:
            if value > frames.LARGEST:
                raise ConnectionFaultError(
                    ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE exceeds 2^31-1"
                )
            self.sender.set_initial_window(value, self.streams.values())
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
                raise ConnectionFaultError(
                    ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of range"
                )
            self.sender.set_frame(value)
        elif name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFaultError(
                ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1"
            )

    def _take_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Ignore it (5.3.2), except what RFC 7540 5.3.1 forbids."""
        del flags
        self._frames.spend()
        if frames.number(payload) == stream_id:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _take_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Finish the client's streams (6.8)."""
        del flags, stream_id
        if len(payload) < 8:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is too small")
        self._frames.spend()
        if self.going is not Going.FINAL:
            self.refuse_new_streams()

    def _refuse_idle(self, stream_id: int) -> None:
        if stream_id > self._last and self.going is not Going.FINAL:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a frame on an idle stream")

    # The end of streams.

    def _reset(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream for what the client did (5.4.2)."""
        self.sender.write(frames.reset(stream_id, code))
        self._resets.spend()
        stream = self.streams.get(stream_id)
        if stream is not None:
            handler = stream.handler
            self._forget(stream, by_server=True)
            handler.cancel()
        else:
            self._remember(stream_id, by_server=True)

    def _forget(self, stream: Stream, *, by_server: bool) -> None:
        del self.streams[stream.id]
        del stream.handler  # which refers to the stream: no cycle keeps its message
        if stream.unsent is not None:
            self._drop_response(stream)
        elif stream.outgoing is not None:
            self.read.append(stream.outgoing)
        if self._data_stream is stream:
            self._data_stream = None
        self._remember(stream.id, by_server=by_server)
        if not self.streams:
            self.idle_since = time.monotonic()

    def _remember(self, stream_id: int, *, by_server: bool) -> None:
        closed = self._closed
        closed[stream_id] = by_server
        if len(closed) > _CLOSED_KEPT:
            del closed[next(iter(closed))]


def _nothing() -> None:
    """Do nothing: the connection is closed."""


def transfer_seconds(settings: ServerSettings, size: int) -> float:
    """Return how long a transfer of `size` bytes may take."""
    return settings.transfer_window + size / settings.transfer_rate


_TAKE: Final = {
    frames.HEADERS: Session._take_headers,  # noqa: SLF001 - the table of its own methods
    frames.PRIORITY: Session._take_priority,  # noqa: SLF001 - likewise
    frames.RST_STREAM: Session._take_reset,  # noqa: SLF001 - likewise
    frames.SETTINGS: Session._take_settings,  # noqa: SLF001 - likewise
    frames.PING: Session._take_ping,  # noqa: SLF001 - likewise
    frames.GOAWAY: Session._take_goaway,  # noqa: SLF001 - likewise
    frames.WINDOW_UPDATE: Session._take_window_update,  # noqa: SLF001 - likewise
    frames.CONTINUATION: Session._take_continuation,  # noqa: SLF001 - likewise
}
