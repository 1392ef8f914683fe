"""HTTP/1.1 on a socket: framing, limits and timeouts, independent of the application.

A body is read from the socket directly into the memory that the session will read: once a request's
headers are complete, the buffer that the event loop reads into *is* the body, aligned so that the
first tensor starts on a 64-byte boundary. Requests of one connection are answered one at a time and
in order; reading from a client that pipelines pauses until then. In each turn of the event loop it has
one request answered, so that thousands sent at once do not delay other connections.
"""

import asyncio
import enum
import random
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, Protocol, cast

from typing_extensions import override

from enginewright_runtime.serve.server.chunked import ChunkedDecoder, ChunkedError
from enginewright_runtime.serve.server.head import HeadError, HeadParser
from enginewright_runtime.serve.server.message import JOINED_BYTES, Body, HttpRequest, HttpResponse
from enginewright_runtime.serve.server.settings import ServerSettings

RECEIVE_BYTES: Final = 256 * 1024

_HEAD_END: Final = b"\r\n\r\n"
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_NEVER: Final = float("inf")
_YOUNG_SECONDS: Final = (
    1.0  # a client that has just connected or been answered may be about to send
)
_TURNS_SECONDS: Final = 0.1  # more than the turns of a client that pipelines a few requests take


class HttpApplication(Protocol):
    """What answers requests."""

    settings: ServerSettings
    draining: bool
    date: bytes  # header line, updated by the application

    def connected(self, connection: "Connection") -> bool:
        """Add a new connection; False: no capacity is left."""

    def disconnected(self, connection: "Connection") -> None:
        """Remove a connection and whatever it still waits for."""

    def admit(self, request: HttpRequest) -> HttpResponse | None:
        """Check a request's head; a response refuses the request before its body is read."""

    def account(self, request: HttpRequest, size: int) -> HttpResponse | None:
        """Account for `size` more bytes of body; a response refuses them."""

    def release(self, request: HttpRequest) -> None:
        """Release what `admit` and `account` reserved; idempotent."""

    def serve(self, connection: "Connection", request: HttpRequest) -> HttpResponse | None:
        """Answer; None: `connection.respond` will be called later, and `release` before it."""

    def refuse(self, status: int, message: str) -> HttpResponse:
        """Build the response to bytes that are not a valid request."""


class _State(enum.Enum):
    HEAD = enum.auto()  # between requests or inside a head
    BODY = enum.auto()  # a body of known length
    CHUNKED = enum.auto()
    BUSY = enum.auto()  # the application owes a response
    CLOSING = enum.auto()  # the last response is sent; further input is discarded


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    __slots__ = (
        "_app",
        "_body_view",
        "_buffer",
        "_chunked",
        "_deadline",
        "_expires",
        "_filled",
        "_heads",
        "_pending",
        "_pending_at",
        "_reading_paused",
        "_request",
        "_settings",
        "_started",
        "_state",
        "_transport",
        "_turns_since",
        "_view",
        "_writing_paused",
        "_yielded",
    )

    def __init__(self, app: HttpApplication, heads: HeadParser, buffer: bytearray) -> None:
        """Serve `app`; parser and buffer are shared, since no callback leaves data in them."""
        self._app = app
        self._heads = heads
        self._settings = app.settings
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._state = _State.HEAD
        self._pending = b""  # part of a head, or requests that arrived while one is in progress
        self._pending_at = 0  # bytes of it that have been processed
        self._deadline = _NEVER
        self._filled = 0
        self._started = 0.0
        self._expires = _NEVER
        self._reading_paused = False
        self._writing_paused = False
        self._yielded = False  # the next request is answered in the event loop's next turn
        self._turns_since = _NEVER  # when it first yielded with requests that arrived without pause
        self._request: HttpRequest | None = None
        self._body_view: memoryview | None = None
        self._chunked: ChunkedDecoder | None = None
        self._transport: asyncio.Transport | None = None

    # Called by the event loop.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(high=0)  # pause as soon as the kernel's buffer is full
        now = time.monotonic()
        self._deadline = now + self._settings.idle_seconds
        # at different times, so that clients that connected together do not reconnect together
        jitter = self._settings.age_jitter
        spread = random.uniform(1 - jitter, 1 + jitter)  # noqa: S311 - no secret
        self._expires = now + self._settings.connection_age * spread
        if not self._app.connected(self):
            self._finish(self._app.refuse(503, "too many connections; try again later"))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        request = self._request
        if request is not None:
            request.abandoned = True
            if self._state is not _State.BUSY:
                self._app.release(request)
        self._state = _State.CLOSING
        self._transport = None
        self._request = None
        self._body_view = None
        self._chunked = None
        self._pending = b""
        self._app.disconnected(self)

    @override
    def eof_received(self) -> bool:
        return False  # a client that closes its side is treated as disconnected

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        body = self._body_view
        return self._view if body is None else body[self._filled :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        if self._body_view is not None and self._request is not None:
            self._filled += nbytes
            if self._filled == len(self._body_view):
                self._complete(self._request)
        elif self._state is _State.CLOSING:
            pass
        elif self._held_up():
            self._keep(self._pending[self._pending_at :] + self._view[:nbytes], 0)
        elif self._pending:
            data = self._pending + self._view[:nbytes]
            self._pending = b""
            self._consume(data, memoryview(data), 0, len(data))
        else:
            self._turns_since = _NEVER
            self._consume(self._buffer, self._view, 0, nbytes)

    @override
    def pause_writing(self) -> None:
        self._writing_paused = True

    @override
    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._state is _State.HEAD:
            self._deadline = time.monotonic() + self._settings.idle_seconds
            self._continue()

    # Called by the application.

    def respond(self, response: HttpResponse) -> None:
        """Answer the request that `HttpApplication.serve` accepted; no-op if the client is gone."""
        if self._state is _State.BUSY:
            self._turns_since = _NEVER
            self._write(response)
            self._continue()

    def check(self, now: float) -> None:
        """Close the connection if it exceeds a time limit; `now` is `time.monotonic()`."""
        state = self._state
        if state is _State.BUSY or self._transport is None:
            return
        if state in (_State.BODY, _State.CHUNKED):
            limit = self._started + self._transfer_seconds(self._filled)
        else:
            limit = min(self._deadline, self._aged_limit())
        if now <= limit:
            return
        if state is _State.CLOSING or self._writing_paused:
            self._transport.abort()
        elif state is _State.HEAD and not self._pending:
            self._transport.close()
        else:
            self._finish(self._app.refuse(408, "the request took too long to arrive"))

    def close_idle(self) -> None:
        """Close if no request is in progress."""
        if self._idle and self._transport is not None:
            self._transport.close()

    @property
    def _idle(self) -> bool:
        return self._state is _State.HEAD and not self._pending and not self._writing_paused

    def _aged_limit(self) -> float:
        """Return when an idle connection is closed for its age.

        A client that sends requests reads `Connection: close` before that. One that pauses may send
        its next request while the connection is being closed, so a short pause is not enough.
        """
        if not self._idle:
            return _NEVER
        settings = self._settings
        idle_since = self._deadline - settings.idle_seconds
        return max(self._expires, idle_since + settings.aged_idle_seconds)

    def waits(self, *, transfers: bool) -> tuple[int, float] | None:
        """Return in which order to close waiting connections, and about since when this one waits.

        First those that have sent no byte of a request, then those that have sent part of a head,
        then those that have read their last response, and with `transfers` those that send a body or
        read a response. One whose next request waits for its turn counts as idle since its first turn,
        and goes before all others if its turns do not end; that request has not begun. None: the
        application owes a response, or the connection is being closed.
        """
        stream, settings = self._transport, self._settings
        if stream is None or self._state is _State.BUSY:
            return None
        if self._state is _State.CLOSING:
            return 2, self._deadline - settings.linger_seconds
        if self._state is not _State.HEAD:
            return (3, self._started) if transfers else None
        if self._writing_paused:
            return (3, self._deadline - settings.transfer_grace) if transfers else None
        if self._request is not None or stream.is_closing():
            return None
        return self._waits_between_requests()

    def _waits_between_requests(self) -> tuple[int, float]:
        if self._yielded:
            is_flood = time.monotonic() - self._turns_since > _TURNS_SECONDS
            return 0, -_NEVER if is_flood else self._turns_since
        settings = self._settings
        limit = settings.head_seconds if self._pending else settings.idle_seconds
        return int(bool(self._pending)), self._deadline - limit

    def abort(self) -> None:
        """Close the connection immediately."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # Reading.

    def _consume(self, data: bytes | bytearray, view: memoryview, at: int, end: int) -> None:
        """Process `data[at:end]`, which continues the bytes processed before.

        Args:
            data: the shared buffer, or bytes that were pending, of which none are copied.
            view: of `data`.
            at: where to begin.
            end: where to stop; of bytes their length.
        """
        begun = False
        while at < end:
            if self._state is _State.HEAD and not self._writing_paused:
                if begun:
                    self._yielded = True
                    self._turns_since = min(self._turns_since, time.monotonic())
                    asyncio.get_running_loop().call_soon(self._take_turn)
                    break
                begun = True
                stop = data.find(_HEAD_END, at, end) + len(_HEAD_END)
                if stop < len(_HEAD_END):
                    self._keep_partial_head(view[at:end])
                    return
                self._take_head(view[at:stop], followed=stop < end)
                at = stop
            elif self._state is _State.BODY:
                at += self._take_body(view[at:end])
            elif self._state is _State.CHUNKED:
                at += self._take_chunks(view[at:end])
            elif self._state is _State.CLOSING:
                return
            else:
                break
        if at < end:
            if isinstance(data, bytes):
                self._keep(data, at)
            else:
                self._keep(bytes(view[at:end]), 0)

    def _keep_partial_head(self, part: memoryview) -> None:
        if len(part) > self._settings.head_bytes:
            self._finish(self._head_too_large())
            return
        if not self._pending:
            self._deadline = min(self._deadline, time.monotonic() + self._settings.head_seconds)
        self._pending = bytes(part)

    def _head_too_large(self) -> HttpResponse:
        return self._app.refuse(
            431, f"request line and headers are longer than {self._settings.head_bytes} bytes"
        )

    def _keep(self, data: bytes, at: int) -> None:
        """Keep `data[at:]`, which arrived too early, and stop reading: the rest stays in the kernel."""
        self._pending, self._pending_at = data, at
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _take_turn(self) -> None:
        self._yielded = False
        if self._transport is not None:
            self._continue()

    def _continue(self) -> None:
        """Process, after a response, what a pipelining client sent in the meantime."""
        if self._state is not _State.HEAD or self._writing_paused:
            return
        pending, at = self._pending, self._pending_at
        self._pending, self._pending_at = b"", 0
        if pending:
            self._consume(pending, memoryview(pending), at, len(pending))
        if not self._pending or not self._held_up():
            self._resume_reading()

    def _held_up(self) -> bool:
        """Whether input must wait until a response is written, or for the connection's turn."""
        return self._state is _State.BUSY or self._writing_paused or self._yielded

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    def _take_head(self, head: memoryview, *, followed: bool) -> None:
        """Parse one complete head; `followed`: bytes after it have already arrived."""
        if len(head) > self._settings.head_bytes:
            self._finish(self._head_too_large())
            return
        try:
            request = self._heads.parse(head)
        except HeadError as error:
            self._finish(self._app.refuse(error.status, error.message))
            return
        if request is None:
            return
        self._request = request
        refusal = self._app.admit(request) or self._account(request, request.length)
        if refusal is not None:
            self._refuse(request, refusal, followed=followed)
        elif request.length or request.chunked:
            self._expect_body(request, followed=followed)
        else:
            self._complete(request)

    def _account(self, request: HttpRequest, size: int) -> HttpResponse | None:
        return self._app.account(request, size) if size else None

    def _refuse(self, request: HttpRequest, refusal: HttpResponse, *, followed: bool) -> None:
        """Refuse a valid request before its body; keep the connection open if possible."""
        if not request.length and not request.chunked:
            self._write(refusal)
        elif (
            request.chunked
            or request.length > self._settings.drained_body_bytes
            or (request.expects_continue and not followed)
        ):
            self._finish(refusal)
        else:
            request.refusal = refusal
            self._expect_body(request, followed=True)

    def _expect_body(self, request: HttpRequest, *, followed: bool) -> None:
        self._started = time.monotonic()
        self._filled = 0
        if request.chunked:
            self._state = _State.CHUNKED
            self._chunked = ChunkedDecoder()
        else:
            self._state = _State.BODY
            request.body = Body(request.length, request.json_length or 0)
            self._body_view = request.body.view()
        if request.expects_continue and not followed and self._transport is not None:
            self._transport.write(_CONTINUE)

    def _take_body(self, part: memoryview) -> int:
        """Copy the part of the body that was read with the head; the rest is read in place."""
        view, request = self._body_view, self._request
        assert view is not None  # noqa: S101 - state BODY says so
        assert request is not None  # noqa: S101 - likewise
        taken = min(len(part), len(view) - self._filled)
        view[self._filled : self._filled + taken] = part[:taken]
        self._filled += taken
        if self._filled == len(view):
            self._complete(request)
        return taken

    def _take_chunks(self, part: memoryview) -> int:
        decoder, request = self._chunked, self._request
        assert decoder is not None  # noqa: S101 - state CHUNKED says so
        assert request is not None  # noqa: S101 - likewise
        before = len(decoder.data)
        try:
            taken = decoder.feed(part)
        except ChunkedError as error:
            self._finish(self._app.refuse(400, f"not a valid chunked body: {error}"))
            return len(part)
        self._filled += taken
        if refusal := self._account(request, len(decoder.data) - before):
            self._finish(refusal)
            return len(part)
        if decoder.done:
            request.length = len(decoder.data)
            request.body = Body(request.length, request.json_length or 0)
            request.body.view()[:] = decoder.data
            self._chunked = None
            self._complete(request)
        return taken

    def _complete(self, request: HttpRequest) -> None:
        """Have the current request answered, whose body is complete."""
        self._body_view = None
        response = request.refusal
        if response is None:
            self._state = _State.BUSY
            response = self._app.serve(self, request)
        if response is not None:
            self._write(response)

    # Writing.

    def _write(self, response: HttpResponse) -> None:
        """Answer the current request, then wait for the next one or close."""
        request, transport = self._request, self._transport
        assert request is not None  # noqa: S101 - only called with one
        if transport is None:
            return
        self._app.release(request)
        now = time.monotonic()
        wanted = request.keep_alive
        keep = wanted and not self._app.draining and now < self._expires
        if not keep:
            connection = b"Connection: close\r\n"
        elif request.version == "1.0":
            connection = b"Connection: keep-alive\r\n"
        else:
            connection = b""
        parts = response.parts if request.method != b"HEAD" else []
        self._send(transport, response, parts, connection)
        self._request = None
        if keep:
            self._state = _State.HEAD
            self._deadline = now + (
                self._transfer_seconds(transport.get_write_buffer_size())
                if self._writing_paused
                else self._settings.idle_seconds
            )
        else:
            self._close(transport, now, linger=wanted)

    def _finish(self, response: HttpResponse) -> None:
        """Answer an invalid request, or one whose body is not read, and close."""
        transport = self._transport
        if transport is None or self._state is _State.CLOSING:
            return
        request, self._request = self._request, None
        if request is not None:
            self._app.release(request)
        self._body_view = None
        self._chunked = None
        head_only = request is not None and request.method == b"HEAD"
        self._send(
            transport, response, [] if head_only else response.parts, b"Connection: close\r\n"
        )
        self._close(transport, time.monotonic(), linger=True)

    def _send(
        self,
        transport: asyncio.Transport,
        response: HttpResponse,
        parts: list[bytes | memoryview],
        connection: bytes,
    ) -> None:
        head = b"%b%b%b%bContent-Length: %d\r\n\r\n" % (
            _STATUS_LINES[response.status],
            self._app.date,
            response.headers,
            connection,
            response.length,
        )
        if response.length <= JOINED_BYTES:
            transport.write(b"".join([head, *parts]))
        else:
            transport.writelines([head, *parts])

    def _close(self, transport: asyncio.Transport, now: float, *, linger: bool) -> None:
        """Close once everything is written.

        Closing a socket with unread input resets the connection, and the client may lose a response
        that it has not read yet. So after a response that the client does not expect to be the last
        (`linger`), only the sending side is closed, and input is read and discarded for a while.
        """
        self._state = _State.CLOSING
        self._pending = b""
        self._deadline = now + self._settings.linger_seconds
        if unsent := transport.get_write_buffer_size():
            self._deadline += self._transfer_seconds(unsent)
        if linger and not transport.is_closing():
            transport.write_eof()
            self._resume_reading()
        else:
            transport.close()

    def _transfer_seconds(self, size: int) -> float:
        return self._settings.transfer_grace + size / self._settings.transfer_rate


class ClosableConnection(Protocol):
    """A connection of any protocol."""

    def check(self, now: float) -> None:
        """Close it if it exceeds a time limit; `now` is `time.monotonic()`."""

    def waits(self, *, transfers: bool) -> tuple[int, float] | None:
        """Return rank and beginning of its wait, see `Connection.waits`; None: it does not wait."""

    def abort(self) -> None:
        """Close it immediately."""


def close_waiting(
    connections: Iterable[ClosableConnection], count: int, *, transfers: bool, young: bool
) -> bool:
    """Close the `count` connections that wait and are the first to close; False: there are fewer.

    Otherwise a client that holds many connections would lock out the kubelet's probes. `transfers`
    are closed too if wanted, and `young` ones, whose requests may be on their way, last if at all.
    """
    old = time.monotonic() - _YOUNG_SECONDS
    waiting = [
        ((since > old, rank, since), each)
        for each in connections
        if (found := each.waits(transfers=transfers))
        for rank, since in [found]
        if young or since <= old
    ]
    waiting.sort(key=lambda found: found[0])
    for _, each in waiting[:count]:
        each.abort()
    return len(waiting) >= count
