"""HTTP/1.1 on a socket: framing, limits and timeouts, independent of the application.

Once a request's headers are complete, the buffer that the event loop reads into *is* the body that the session
will read, aligned so that the first tensor starts on a 64-byte boundary; only the first 256 KiB of a large one are
copied. Requests of one connection are answered one at a time and in order; reading from a client that pipelines
pauses until then, and the next one is answered when it is the connection's turn.

Bodies are charged to the account when they arrive and until they are answered, responses until they are
written.
"""

import asyncio
import contextlib
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from enginewright_serving.transport.account import Holding
from enginewright_serving.transport.chunked import ChunkedDecoder, ChunkedError
from enginewright_serving.transport.head import HeadError, HeadParser
from enginewright_serving.transport.message import (
    JOINED_BYTES,
    Body,
    HttpRequest,
    HttpResponse,
    count_charged_bytes,
)
from enginewright_serving.transport.pace import TransferPace
from enginewright_serving.transport.pausing_protocol import NEVER
from enginewright_serving.transport.request_context import RequestContext
from enginewright_serving.transport.timed_connection import (
    BODY,
    BUSY,
    CHUNKED,
    CLOSING,
    HEAD,
    TimedConnection,
)
from enginewright_serving.transport.unacknowledged import count_unacknowledged
from enginewright_serving.transport.unread_response import UnreadResponse

if TYPE_CHECKING:
    from enginewright_serving.transport.http_application import HttpApplication

RECEIVE_BYTES: Final = 64 * 1024  # also kept of a client that pipelines

_HEAD_END: Final = b"\r\n\r\n"
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_TLS_HANDSHAKE: Final = 0x16  # the first byte of a client that speaks TLS; in no method
# after the end of a body, in which its client has closed its side with the same write, and reads the answer; a client that
# leaves does so later
_SAME_WRITE_SECONDS: Final = 0.01
_LINES_PER_TURN: Final = 64  # of a chunked body's framing: each costs as much as kilobytes of data


class Connection(TimedConnection):
    """One client's connection."""

    def __init__(
        self, app: "HttpApplication[Connection]", heads: HeadParser, buffer: bytearray
    ) -> None:
        """Serve `app`; connections share parser and buffer, since no callback leaves data in them."""
        super().__init__(app.settings, app.turns)
        self._app = app
        self._account = account = app.inflight.account
        self._incoming = Holding(self._evict_sender)
        self._outgoing = UnreadResponse(account, app.settings, self.abort)
        self._heads = heads
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._body_view: memoryview | None = None
        self._chunked: ChunkedDecoder | None = None
        self._arrived = 0.0  # when the last body was complete that did not come with its head
        # of the last answer that is counted, until the socket has taken it; and when its head came
        self._unwritten: tuple[HttpRequest, HttpResponse, float] | None = None

    # Called by the event loop.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._since = now = time.monotonic()
        self._use(transport, now)
        if self._app.draining:  # it was accepted before, as its handshake was not complete
            self._expires = now
        if not self._app.add_connection(self):
            self._finish(self._app.refuse(503, "too many connections; try again later"))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._report_left()
        request = self._request
        if request is not None:
            request.abandon()
            # otherwise the application does, which owes the response
            if self._state is not BUSY or request.replaceable:
                self._app.release(request)
        self._incoming.close()
        self._outgoing.close()
        self._state = CLOSING
        # it refers to the transport, which refers to this: neither would be freed
        self._overhead = None
        self._transport = None
        self._request = None
        self._body_view = None
        self._chunked = None
        self._unwritten = None
        self._pending = b""
        self._app.remove_connection(self)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        body = self._body_view
        if body is None:
            return self._view
        end = self._filled + RECEIVE_BYTES if self._account.is_crowded else len(body)
        return body[self._filled : end]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        if self._body_view is not None and self._request is not None:
            self._filled += nbytes
            self._body_arrived(self._request)
        elif self._state is CLOSING:
            self._read_in_turn()  # much input may have to be discarded
        elif self._is_held_up():
            self._keep(self._pending[self._pending_at :] + self._view[:nbytes], 0)
        elif self._pending:
            data = self._pending + self._view[:nbytes]
            self._pending = b""
            self._consume(data, memoryview(data), 0, len(data))
        else:
            self._turns_since = NEVER
            self._consume(self._buffer, self._view, 0, nbytes)

    @override
    def eof_received(self) -> bool:
        transport, request = self._transport, self._request
        if transport is None:
            return False
        if (
            self._state is BUSY
            and request is not None
            and transport.can_write_eof()
            and time.monotonic() < self._arrived + _SAME_WRITE_SECONDS
        ):
            request.keep_alive = False
            return True
        # it closes once what it has is sent, without a further callback
        while piece := self._outgoing.next_piece():
            transport.write(piece)
        return super().eof_received()

    @override
    def pause_writing(self) -> None:
        self._writing_paused = True
        if self._transport is not None and not self._transport.can_write_eof():
            # what a client of TLS sends may be answered there, such as updates of keys
            self._pause_reading()

    @override
    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._transport is not None and not self._transport.can_write_eof():
            self._encrypt(self._transport)
            if self._writing_paused:
                return
            if self._state is CLOSING:
                self._transport.close()
        self._account.release(self._outgoing)
        if self._unwritten is not None:
            self._app.on_answered(self, *self._unwritten)
            self._unwritten = None
        if self._transport is not None:
            self._since = time.monotonic()
            self._continue()

    # Called by the application.

    def respond(self, request: HttpRequest, response: HttpResponse) -> None:
        """Answer a request that `HttpApplication.serve` accepted; no-op if it was answered, or its client is gone."""
        if self._owes(request):
            self._turns_since = NEVER
            self._write(response)
            self._continue()

    def _owes(self, request: HttpRequest) -> bool:
        """Whether the answer to `request` is due, not that of another one of the client's."""
        return self._state is BUSY and self._request is request

    def reserve(self, request: HttpRequest, response: HttpResponse) -> bool:
        """Charge a large response before it is sent; return False if there is no space for it."""
        if response.length <= JOINED_BYTES or not self._owes(request):
            return True
        self._outgoing.is_exempt = self._incoming.is_exempt
        return self._outgoing.reserve(response)

    @override
    def _refuse_late(self) -> None:
        self._finish(self._app.refuse(408, "the request took too long to arrive"))

    def _evict_sender(self) -> None:
        """End a body that arrives slowly, since others need the memory."""
        self._finish(self._app.refuse(408, "the request arrived too slowly while memory was short"))

    def close_idle(self) -> None:
        """Close if no request is in progress; else soon after its response has been read."""
        self._expires = now = time.monotonic()
        if self._idle and self._transport is not None:
            self._close(self._transport, now, linger=False)

    @property
    def counted_requests(self) -> int:
        """Inference requests of clients that are not answered, including an answer not yet written."""
        request = self._unwritten[0] if self._unwritten else self._request
        return int(request is not None and request.in_flight)

    def abort(self) -> None:
        """Close the connection immediately."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._drop_body()
            self._outgoing.drop()
            transport.abort()

    def _drop_body(self) -> None:
        """Free a body that has not arrived completely."""
        self._body_view = None
        self._chunked = None
        if self._request is not None and self._state is not BUSY:
            self._request.body = None

    # Reading.

    def _consume(self, data: bytes | bytearray, view: memoryview, at: int, end: int) -> None:
        """Process `data[at:end]`, of the shared buffer, or of pending bytes, which are not copied."""
        begun = False
        while at < end:
            if self._state is HEAD and not self._writing_paused:
                if begun:
                    self._yield()
                    break
                begun = True
                stop = data.find(_HEAD_END, at, end) + len(_HEAD_END)
                if stop < len(_HEAD_END):
                    self._keep_partial_head(view[at:end])
                    return
                self._take_head(view[at:stop], end - stop)
                at = stop
            elif self._state is BODY:
                at += self._take_body(view[at:end])
            elif self._state is CHUNKED and not self._yielded:
                at += self._take_chunks(view[at:end])
            elif self._state is CLOSING:
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
        if part[0] == _TLS_HANDSHAKE:
            self._finish(self._app.refuse(400, "this port speaks HTTP without TLS; use http"))
            return
        if self._head_since == NEVER:
            self._head_since = time.monotonic()
        self._pending = bytes(part)

    def _head_too_large(self) -> HttpResponse:
        return self._app.refuse(
            431, f"request line and headers are longer than {self._settings.head_bytes} bytes"
        )

    def _keep(self, data: bytes, at: int) -> None:
        """Keep `data[at:]`, which arrived too early, and stop reading: the rest stays in the kernel."""
        self._pending, self._pending_at = data, at
        self._pause_reading()

    @override
    def _continue(self) -> None:
        """Process pending input, such as a pipelined request, and resume reading."""
        if self._is_held_up():
            return
        pending, at = self._pending, self._pending_at
        self._pending, self._pending_at = b"", 0
        if pending:
            self._consume(pending, memoryview(pending), at, len(pending))
        if not self._pending or not self._is_held_up():
            self._resume_reading()

    def _is_held_up(self) -> bool:
        """Whether input must wait until a response is written, or for the connection's turn."""
        if self._state is HEAD and self._writing_paused:
            return True
        return self._state is BUSY or self._yielded

    def _read_in_turn(self) -> None:
        """Resume reading when it is the connection's turn."""
        self._pause_reading()
        self._turns.take(self._resume_reading)

    def _take_head(self, head: memoryview, followed: int) -> None:
        """Parse one complete head, which `followed` bytes follow so far."""
        self._head_since = NEVER
        if len(head) > self._settings.head_bytes:
            self._finish(self._head_too_large())
            return
        self._since = time.monotonic()
        try:
            request = self._heads.parse(head)
        except HeadError as error:
            self._finish(self._app.refuse(error.status, error.message), error.context)
            return
        if request is None:
            return
        self._request = request
        refusal = self._app.admit(request)
        if refusal is None and request.length:
            refusal = self._app.check_size(request, request.length)
        if refusal is not None:
            self._refuse(request, refusal, followed)
        elif request.length or request.chunked:
            self._expect_body(request, followed)
        else:
            self._complete(request)

    def _refuse(self, request: HttpRequest, refusal: HttpResponse, followed: int) -> None:
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
            request.expects_continue = False
            self._expect_body(request, followed)

    def _expect_body(self, request: HttpRequest, followed: int) -> None:
        self._filled = 0
        self._incoming.is_exempt = request.reserved
        request.holding = self._incoming
        if request.chunked or followed < request.length:
            # the length of chunks is not announced: it counts as large
            announced = self._account.limit if request.chunked else request.length
            pace = TransferPace(self._since, self._settings)
            self._account.begin(self._incoming, pace, announced)
        if request.chunked:
            self._state = CHUNKED
            self._chunked = ChunkedDecoder()
        else:
            self._state = BODY
            request.body = Body(request.length, request.json_length or 0, arrives=True)
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
        self._body_arrived(request)
        return taken

    def _body_arrived(self, request: HttpRequest) -> None:
        """Charge a body that has grown; serve the request if it is complete."""
        if self._filled >= self._incoming.size and not self._charge(
            request, count_charged_bytes(self._filled, request.length)
        ):
            return
        body, view = request.body, self._body_view
        if self._filled == request.length:
            self._complete(request)
            return
        if body is not None and view is not None and self._filled == len(view):
            self._body_view = body.grow()
        if self._account.is_crowded:
            self._read_in_turn()

    def _charge(self, request: HttpRequest, size: int) -> bool:
        """Charge `size` bytes of the body that arrives; return False after refusing it."""
        if self._account.hold(self._incoming, size):
            return True
        self._finish(self._app.refuse_bytes(request))
        return False

    def _take_chunks(self, part: memoryview) -> int:
        decoder, request = self._chunked, self._request
        assert decoder is not None  # noqa: S101 - state CHUNKED says so
        assert request is not None  # noqa: S101 - likewise
        try:
            taken = decoder.feed(part, _LINES_PER_TURN)
        except ChunkedError as error:
            self._finish(self._app.refuse(400, f"not a valid chunked body: {error}"))
            return len(part)
        self._filled += taken
        size = len(decoder.data)
        if refusal := self._app.check_size(request, size):
            self._finish(refusal)
        elif size <= self._incoming.size or self._charge(request, count_charged_bytes(size, size)):
            if decoder.done:
                request.length = size
                request.body = Body(size, request.json_length or 0)
                request.body.view()[:] = decoder.data
                self._chunked = None
                self._complete(request)
            elif taken < len(part):
                self._yield()
        return taken

    def _complete(self, request: HttpRequest) -> None:
        """Serve the current request, whose body is complete."""
        self._body_view = None
        if self._incoming.progress is not None:
            self._account.end(self._incoming)
            self._arrived = time.monotonic()
        response = request.refusal
        if response is None:
            self._state = BUSY
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
        began, now = self._since, time.monotonic()
        keep = request.keep_alive and not self._app.draining and now < self._expires
        if not keep:
            connection = b"Connection: close\r\n"
        elif request.version == "1.0":
            connection = b"Connection: keep-alive\r\n"
        else:
            connection = b""
        if request.context is not None:
            connection += request.context.header()
        parts = response.parts if request.method != b"HEAD" else []
        is_sent = self._send(transport, response, parts, connection)
        self._request = None
        if keep:
            self._state = HEAD
            self._since = now
            self._is_new = False
        else:
            self._close(transport, now, linger=request.keep_alive)
        if request.counted:
            self._count(request, response, began, is_sent=is_sent)
        elif request.route is None:
            self._app.on_refused(self, request, response, began)

    def _count(
        self, request: HttpRequest, response: HttpResponse, began: float, *, is_sent: bool
    ) -> None:
        """Count a request once its answer is written, or cannot be."""
        if self._writing_paused:
            self._unwritten = request, response, began
        elif is_sent:
            self._app.on_answered(self, request, response, began)
        else:
            self._app.on_left(self, request, began)

    def _finish(self, response: HttpResponse, context: RequestContext | None = None) -> None:
        """Answer an invalid request, or one whose body is not read, and close."""
        transport = self._transport
        if transport is None or self._state is CLOSING:
            return
        request, self._request = self._request, None
        began = self._since
        if request is not None:
            request.length = self._filled if self._state is not HEAD else 0
            self._app.release(request)
        self._drop_body()
        head_only = request is not None and request.method == b"HEAD"
        if request is not None:
            context = request.context
        headers = b"Connection: close\r\n" + (b"" if context is None else context.header())
        parts = [] if head_only else response.parts
        is_sent = self._send(transport, response, parts, headers)
        self._close(transport, time.monotonic(), linger=True)
        if request is not None and request.counted:
            self._count(request, response, began, is_sent=is_sent)
        elif request is not None and request.route is None:
            self._app.on_refused(self, request, response, began)

    def _report_left(self) -> None:
        """Count an inference whose client has left before its answer was written."""
        request, began = self._request, self._since
        if self._unwritten is not None:
            request, _, began = self._unwritten
        elif request is not None and self._state is not BUSY:
            request.length = self._filled
        if request is not None and request.counted:
            self._app.on_left(self, request, began)

    def _send(
        self,
        transport: asyncio.Transport,
        response: HttpResponse,
        parts: list[bytes | memoryview],
        connection: bytes,
    ) -> bool:
        """Write a response; return False if the connection is lost."""
        head = b"%b%b%b%bContent-Length: %d\r\n\r\n" % (
            _STATUS_LINES[response.status],
            self._app.date,
            response.headers,
            connection,
            response.length,
        )
        if response.length <= JOINED_BYTES:
            transport.write(b"".join([head, *parts]))
        elif transport.can_write_eof():
            transport.writelines([head, *parts])
        else:
            self._outgoing.cut((head, *parts))
            self._encrypt(transport)
        unread = count_unacknowledged(transport) if self._writing_paused else 0
        self._outgoing.charge(response, unread)
        return not transport.is_closing()

    def _encrypt(self, transport: asyncio.Transport) -> None:
        """Write as much as the client reads, since TLS encrypts and keeps all that is written."""
        while not self._writing_paused and (piece := self._outgoing.next_piece()):
            transport.write(piece)

    @override
    def _close(self, transport: asyncio.Transport, now: float, *, linger: bool) -> None:
        """Close once everything is written.

        Closing a socket with unread input resets the connection, and the client may lose a response that it has
        not read yet. So after a response that the client does not expect to be the last (`linger`), only the
        sending side is closed, and input is discarded for a while. TLS always does that.
        """
        self._state = CLOSING
        self._overhead = None
        self._pending = b""
        self._since = now
        if linger and transport.can_write_eof() and not transport.is_closing():
            with contextlib.suppress(OSError):  # the client is gone
                transport.write_eof()
            self._resume_reading()
        elif transport.can_write_eof() or not self._writing_paused:
            transport.close()  # else `resume_writing` does
