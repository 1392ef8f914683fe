"""HTTP/2 on a socket: reading, turns, time limits and the end, independent of the application.

Implements RFC 9113 for a server of unary calls: no push, no priorities, with prior knowledge (3.3) or over TLS.
`Session` interprets the frames.

A connection processes a limited number of frames in one turn of the event loop, so that others get theirs, and
reads nothing while the client does not read (CVE-2019-9512, 9515, 9517).
"""

import asyncio
import enum
import time
from typing import Final

from typing_extensions import override

from enginewright_serving.transport.account import Holding
from enginewright_serving.transport.eviction import IDLE_SECONDS, SILENT_SECONDS, WaitsFor
from enginewright_serving.transport.http2 import frames
from enginewright_serving.transport.http2.bodies import Bodies
from enginewright_serving.transport.http2.errors import ConnectionFaultError, ErrorCode
from enginewright_serving.transport.http2.sender import Sender
from enginewright_serving.transport.http2.session import RequestHandlers, Session
from enginewright_serving.transport.http2.streams import Going, Streams
from enginewright_serving.transport.http2.transfers import transfer_seconds
from enginewright_serving.transport.http_application import ConnectionApplication
from enginewright_serving.transport.pace import TransferPace
from enginewright_serving.transport.pausing_protocol import NEVER, PausingProtocol

_DIRECT_BYTES: Final = 32 * 1024  # left of a frame, above which another system call is worth it
_TURN_FRAMES: Final = 128  # processed in one turn of the event loop: a few milliseconds at most
_HEADERS_WEIGH: Final = 3  # a request is decoded and answered
_CROWD_FRAMES: Final = 16  # likewise, while many connections wait for their turns
_LARGE_BYTES: Final = 16 * 1024  # read at once
_CROWD_BYTES: Final = 64 * 1024  # of a message, read at a time while many arrive


class _Http2State(enum.Enum):
    PREFACE = enum.auto()
    OPEN = enum.auto()
    CLOSING = enum.auto()  # everything is sent; further input is discarded


class Http2Connection(PausingProtocol):
    """One client's connection."""

    _bodies: Bodies
    _sender: Sender
    _session: Session
    _streams: Streams
    _unwritten: Holding

    def __init__(
        self,
        app: ConnectionApplication["Http2Connection"],
        handlers: RequestHandlers,
        buffer: bytearray,
    ) -> None:
        """Serve `handlers`; connections share the buffer, since no callback leaves data in it."""
        super().__init__(app.settings, app.turns)
        self._app = app
        self._handlers = handlers
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._state = _Http2State.PREFACE
        self._direct: memoryview | None = None  # of a body, that is being read into
        self._processing = False  # of frames, whose responses are written afterwards
        self._flush_scheduled = False
        self._acknowledged = 0  # bytes, when writing was paused
        self._part_since = NEVER  # since when part of a frame or header block is awaited
        self._deadline = NEVER  # of the client's preface, PING's acknowledgement, or closing

    # Called by the event loop.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        now = time.monotonic()
        stream = self._use(transport, now)
        self._deadline = now + self._settings.head_seconds
        self._sender = sender = Sender(stream)
        self._unwritten = Holding(self.abort)
        self._session = session = Session(
            self._handlers,
            self._settings,
            sender,
            self._app.inflight.account,
            due=self._due,
            abort=self.abort,
        )
        self._bodies, self._streams = session.bodies, session.streams
        sender.sent, sender.sent_data = session.on_sent, session.on_sent_data
        if self._app.add_connection(self):
            self._flush()
        else:
            self._fail(
                ConnectionFaultError(
                    ErrorCode.ENHANCE_YOUR_CALM, "too many connections; try again later"
                )
            )

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _Http2State.CLOSING
        # it refers to the transport, which refers to this: neither would be freed
        self._overhead = None
        self._transport = self._direct = None
        self._pending = b""
        self._app.inflight.account.release(self._unwritten)
        self._unwritten.close()
        self._session.close(self._app.turns)
        self._app.remove_connection(self)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        direct = self._bodies.memory(_DIRECT_BYTES)
        if direct is not None and self._app.inflight.account.is_crowded:
            direct = direct[:_CROWD_BYTES]
        self._direct = direct
        return self._view if direct is None else direct

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        if self._state is _Http2State.CLOSING:
            self._yield_turn()  # much input may have to be discarded
            return
        if self._direct is not None:
            self._take_direct(self._direct, nbytes)
        elif self._reading_paused:
            self._pending = self._pending[self._pending_at :] + self._view[:nbytes]
            self._pending_at = 0
        elif self._pending:
            data = self._pending[self._pending_at :] + self._view[:nbytes]
            self._pending = b""
            self._process(data, 0, len(data))
        else:
            self._process(self._buffer, 0, nbytes)
        if nbytes >= _LARGE_BYTES and self._is_one_of_many():
            self._yield_turn()

    def _is_one_of_many(self) -> bool:
        """Whether many transfers, or discarded input, would delay others."""
        many = self._app.inflight.account.is_crowded or self._bodies.discards
        return many and not self._yielded

    @override
    def pause_writing(self) -> None:
        self._sender.paused = True
        unwritten = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self._acknowledged = self._sender.count_acknowledged()
        self._pause_reading()
        account, holding = self._app.inflight.account, self._unwritten
        if not account.hold(holding, account.limit_response(unwritten)):
            self.abort()
            return
        account.begin(holding, TransferPace(time.monotonic(), self._settings))

    @override
    def resume_writing(self) -> None:
        self._sender.paused = False
        self._app.inflight.account.release(self._unwritten)
        self._session.transfers.release_read()
        self._sender.pump()
        self._flush()
        self._continue()

    # Called by the application.

    @override
    def _check_time(self, transport: asyncio.Transport, now: float) -> None:
        """End requests, responses and the connection at their time limits."""
        session = self._session
        if self._state is _Http2State.CLOSING or not session.begun:
            if now > self._deadline:
                transport.abort()
            return
        if pace := self._unwritten.progress:
            read = self._sender.count_acknowledged() - self._acknowledged
            if not pace.update(now, read):
                transport.abort()
                return
        if not self._is_held_up() and now > self._part_since + self._settings.head_seconds:
            self._fail(
                ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, "a frame took too long to arrive")
            )
            return
        session.transfers.check(now)
        streams = self._streams
        if streams.going is Going.NO:
            idle = not streams.open and now > streams.idle_since + self._settings.idle_seconds
            if idle or now > self._expires or self._app.draining:
                self._go_away()
        elif streams.going is Going.ANNOUNCED and now > self._deadline:
            session.control.refuse_new_streams()
        self._flush()

    def close_idle(self) -> None:
        """Have the client open no more streams; close once those that it has opened are answered."""
        if self._transport is None or self._state is _Http2State.CLOSING:
            return
        if not self._session.begun:
            self._transport.close()
        elif self._streams.going is Going.NO:
            self._go_away()
            self._flush()

    def waits(self, now: float) -> tuple[WaitsFor, float] | None:
        """Return what the connection waits for, and since when, as `eviction.OpenConnection` does."""
        session, streams = self._session, self._streams
        if self._transport is None:
            return None
        if self._state is _Http2State.CLOSING:
            return WaitsFor.LINGERS, self._deadline - self._settings.linger_seconds
        if streams.open or self._sender.paused:
            moves_since = streams.moves_since()
            moves = WaitsFor.STALLED if session.transfers.hardly_move else WaitsFor.ACTIVE
            return None if moves_since is None else (moves, moves_since)
        if self._yielded:
            return self._waits_for_turn(now)
        if not session.begun or self._part_since != NEVER:
            since = min(self._part_since, streams.idle_since)
            return WaitsFor.SILENT if now - since > SILENT_SECONDS else WaitsFor.NEW, since
        is_idle = now - streams.idle_since > IDLE_SECONDS
        return WaitsFor.IDLE if is_idle else WaitsFor.ACTIVE, streams.idle_since

    @property
    def counted_requests(self) -> int:
        """Inference requests of clients that are not answered, including answers not yet written."""
        return sum(stream.handler.in_flight for stream in self._streams.open.values())

    def abort(self) -> None:
        """Close the connection immediately."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # Reading.

    def _process(self, data: bytes | bytearray, at: int, end: int) -> None:
        """Process frames in `data[at:end]`, keep an incomplete one, write responses."""
        began = at
        self._processing = True
        try:
            at = self._consume(data, at, end)
        except ConnectionFaultError as fault:
            self._fail(fault)
            return
        finally:
            self._processing = False
        if at < end:
            if isinstance(data, bytes):
                self._pending, self._pending_at = data, at
            else:
                self._pending, self._pending_at = bytes(self._view[at:end]), 0
        in_block = self._session.in_block
        if at == end and not in_block:
            self._part_since = NEVER
        elif self._part_since == NEVER or (at > began and not in_block):
            self._part_since = time.monotonic()
        self._flush()

    def _consume(self, data: bytes | bytearray, at: int, end: int) -> int:
        """Process complete frames, and parts of bodies; return where the rest begins."""
        view, bodies = memoryview(data), self._bodies
        if self._state is _Http2State.PREFACE:
            at = self._take_preface(view[at:end], at)
        left = _CROWD_FRAMES if self._app.turns.is_crowded else _TURN_FRAMES
        while True:
            if bodies.in_payload:
                at += bodies.take_payload(view[at:end])
                if bodies.in_payload:
                    return at
            if end - at < frames.HEAD.size or self._state is _Http2State.PREFACE:
                return at
            if left <= 0:
                self._yield_turn()
                return at
            left -= _HEADERS_WEIGH if data[at + 3] == frames.HEADERS else 1
            taken = self._take_frame(data, view, at, end)
            if not taken:
                return at
            at += taken

    def _take_direct(self, memory: memoryview, size: int) -> None:
        self._direct = None
        self._processing = True
        try:
            taken = self._bodies.on_received(memory, size)
        except ConnectionFaultError as fault:
            self._fail(fault)
            return
        finally:
            self._processing = False
        rest = bytes(memory[taken:size])
        if not rest:
            self._flush()
        elif self._reading_paused:
            self._pending, self._pending_at = rest, 0
        else:
            self._process(rest, 0, len(rest))

    def _take_preface(self, view: memoryview, at: int) -> int:
        size = min(len(view), len(frames.PREFACE))
        if view[:size] != frames.PREFACE[:size]:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2")
        if size < len(frames.PREFACE):
            return at
        self._state = _Http2State.OPEN
        return at + size

    def _take_frame(self, data: bytes | bytearray, view: memoryview, at: int, end: int) -> int:
        """Process the frame at `at`, without a payload that can be taken in parts; return its bytes, 0 if more must arrive."""
        session = self._session
        high, low, kind, flags, stream_id = frames.HEAD.unpack_from(data, at)
        length: int = high << 16 | low
        stream_id &= frames.LARGEST
        session.check_frame(kind, flags, stream_id, length)
        body = at + frames.HEAD.size
        if kind == frames.DATA:
            if not flags & frames.PADDED:
                self._bodies.begin(stream_id, flags, length, -1)
                return frames.HEAD.size
            if body == end:
                return 0
            self._bodies.begin(stream_id, flags, length, data[body])
            return frames.HEAD.size + 1
        if kind > frames.CONTINUATION:
            self._bodies.skip(length)
            return frames.HEAD.size
        if body + length > end:
            return 0
        session.take_frame(kind, flags, stream_id, bytes(view[body : body + length]))
        return body + length - at

    def _yield_turn(self) -> None:
        """Process the rest when it is the connection's turn."""
        self._pause_reading()
        self._yield()

    @override
    def _continue(self) -> None:
        """Process pending input, and resume reading."""
        if self._is_held_up():
            return
        data, at = self._pending, self._pending_at
        self._pending, self._pending_at = b"", 0
        if data:
            self._process(data, at, len(data))
        if not self._is_held_up():
            self._turns_since = NEVER
            self._resume_reading()

    def _is_held_up(self) -> bool:
        return self._yielded or self._sender.paused or self._transport is None

    # Writing.

    def _due(self) -> None:
        """Write a response, if possible with others of the same turn of the event loop."""
        if self._processing or self._flush_scheduled:
            return
        if self._streams.open:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._flush()

    def _flush(self) -> None:
        """Write responses; close after the last one of a connection that goes away."""
        self._flush_scheduled = False
        if self._transport is None:
            return
        self._sender.flush()
        if self._session.transfers.read and not self._sender.paused:
            self._session.transfers.release_read()
        if (
            self._streams.going is Going.FINAL
            and not self._streams.open
            and self._state is _Http2State.OPEN
            and not self._sender.paused
        ):
            self._close(self._transport)

    def _go_away(self) -> None:
        self._deadline = time.monotonic() + self._settings.linger_seconds
        self._session.control.go_away()

    def _fail(self, fault: ConnectionFaultError) -> None:
        """End the connection for an error of the client (RFC 9113 5.4.1)."""
        if self._state is not _Http2State.CLOSING and self._transport is not None:
            self._session.fail(fault)
            self._sender.flush()
            self._close(self._transport)

    def _close(self, transport: asyncio.Transport) -> None:
        """Close the sending side once everything is written, as `Connection._close` does with `linger`."""
        self._state = _Http2State.CLOSING
        self._overhead = None
        self._pending = b""
        self._deadline = time.monotonic() + self._settings.linger_seconds
        if unsent := transport.get_write_buffer_size():
            self._deadline += transfer_seconds(self._settings, unsent)
        if transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
            self._resume_reading()
        else:  # over TLS, which discards input too, and may keep the end of a response
            self._deadline += self._settings.transfer_window
            transport.close()
