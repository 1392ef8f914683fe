"""Unary calls of gRPC over HTTP/2 (grpc/grpc doc/PROTOCOL-HTTP2.md).

A message that arrives whole is copied once, from the socket's buffer; a larger one is received in its own memory,
which the kernel provides page by page, and is charged to the account as it arrives.

A refusal waits a moment for the end of a small request, so that ordinary refusals reset no streams; clients of streams
of messages keep their side open until they have read it. grpc.aio reports INTERNAL for what it writes after a refusal.
"""

import asyncio
import struct
import time
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from enginewright_serving.transport.account import Holding
from enginewright_serving.transport.call import InferenceCall
from enginewright_serving.transport.compression import (
    CompressionError,
    Decompression,
    read_stated_size,
)
from enginewright_serving.transport.grpc import status as statuses
from enginewright_serving.transport.grpc.head import CallHead, call_head
from enginewright_serving.transport.grpc.status import Code, Status
from enginewright_serving.transport.http2.connection import Http2Connection
from enginewright_serving.transport.http2.fields import RequestHead
from enginewright_serving.transport.http2.hpack import literal
from enginewright_serving.transport.http2.session import Session
from enginewright_serving.transport.http2.stream import Stream
from enginewright_serving.transport.http_application import ConnectionApplication
from enginewright_serving.transport.message import JOINED_BYTES, Body, count_charged_bytes
from enginewright_serving.transport.pace import TransferPace
from enginewright_serving.transport.request_context import (
    REQUEST_ID,
    RequestContext,
    context_of,
)

_PREFIX: Final = struct.Struct(">BL")  # Compressed-Flag, Message-Length
_NEVER: Final = float("inf")
_PATIENCE: Final = 0.1  # seconds that a refusal waits for the end of its request
_OK: Final = 200
_TOO_SLOW: Final = Status(Code.DEADLINE_EXCEEDED, "the request took too long to arrive")
_CARDINALITY: Final = Status(
    Code.UNIMPLEMENTED, "a unary call has exactly one request message", is_of_client=True
)
_TOO_MUCH: Final = Status(
    Code.UNAVAILABLE, "too many bytes of responses are in flight; try again later"
)
_TRUNCATED: Final = Status(Code.INTERNAL, "the request message is truncated", is_of_client=True)
_NOT_COMPRESSED: Final = Status(
    Code.INTERNAL, "the message is compressed, but not the call", is_of_client=True
)
_NOT_GRPC: Final = {
    405: (b"this port speaks gRPC; use POST\n", literal(b"allow", b"POST")),
    415: (b"this port speaks gRPC; the content type is application/grpc\n", b""),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A response message."""

    parts: list[bytes | memoryview]  # of bytes, written in order; large ones are not joined
    length: int  # bytes of all parts


class GrpcApplication(ConnectionApplication[Http2Connection], Protocol):
    """What answers calls; an exception ends the connection."""

    @property
    def metadata(self) -> AbstractSet[bytes]:
        """Names of the request headers that it reads."""

    def admit(self, call: "GrpcCall") -> Status | None:
        """Check a call's method and metadata; a status refuses it before its message is read."""

    def find_alignment(self, beginning: memoryview) -> int:
        """Return which byte of a message with this `beginning` should be on a 64-byte boundary."""

    def check_size(self, call: "GrpcCall", size: int) -> Status | None:
        """Check the size of a message, in bytes; a status refuses it."""

    def refuse_bytes(self, call: "GrpcCall", why: str) -> Status:
        """Return the status of a call that is refused because memory is short."""

    def refuse_late(self, call: "GrpcCall") -> Status:
        """Return the status of a call whose deadline has passed before it began."""

    def release(self, call: "GrpcCall") -> None:
        """Release the slot and the bytes of the call; idempotent."""

    def on_answered(self, call: "GrpcCall") -> None:
        """Count a call that is `counted`, whose response is written."""

    def on_left(self, call: "GrpcCall") -> None:
        """Count a call that is `counted`, whose client has left before its response was written."""

    def serve(self, call: "GrpcCall") -> Reply | Status | None:
        """Answer, now or later by the call's `respond` or `fail`."""


class Calls:
    """Makes the calls of one application (`RequestHandlers`)."""

    def __init__(self, app: GrpcApplication) -> None:
        self._app = app

    def prepare(self, head: RequestHead) -> CallHead:
        """Read a call's headers."""
        return call_head(head, self._app.metadata)

    def handle(self, session: Session, stream: Stream, head: object) -> "GrpcCall":
        """Begin a call."""
        assert isinstance(head, CallHead)  # noqa: S101 - `prepare` made it
        return GrpcCall(self._app, session, stream, head)


class GrpcCall(InferenceCall):
    """One call, from its headers to its response (`RequestHandler`)."""

    __slots__ = (
        "_app",
        "_compressed",
        "_discarded",
        "_done",
        "_filled",
        "_gzip",
        "_http_status",
        "_prefix",
        "_refusal",
        "_serving",
        "_session",
        "_stream",
        "_timer",
        "_view",
        "deadline",
        "is_invalid",
        "message",
        "metadata",
        "method",
        "response_bytes",
        "status",
    )

    def __init__(
        self, app: GrpcApplication, session: Session, stream: Stream, head: CallHead
    ) -> None:
        super().__init__()
        self._app = app
        self._session = session
        self._stream = stream
        self._http_status = head.http_status
        self._gzip = head.gzip
        self._compressed = False
        self._prefix = b""  # part of the message's prefix
        self._filled = 0  # bytes of the message that have arrived
        self._discarded = 0  # bytes of a refused request
        self._serving = False  # the application owes an answer
        self._done = False  # answered or abandoned
        self.status = Code.OK  # how it was answered
        self.is_invalid = False  # which is its client's fault, even if `status` blames the server
        self.response_bytes = 0
        self.method = head.method  # `/service/method`
        self.metadata = head.metadata  # of the names that the application reads
        if head.metadata:
            self.context = context_of(head.metadata)
        self.message: Body | None = None  # complete and decompressed when the call is served
        self._view: memoryview | None = None  # of the message while it is received
        # when the client stops waiting, as `time.monotonic()`
        self.deadline = _NEVER if head.timeout is None else stream.started + head.timeout
        self._timer: asyncio.TimerHandle | None = None  # of a refusal
        self._refusal: Status | None = None
        if head.http_status == _OK:  # also with a problem, so that it is counted
            self._refusal = app.admit(self) or head.problem

    # Called by the application.

    @property
    def began(self) -> float:
        """When the call's headers arrived, as `time.monotonic()`."""
        return self._stream.started

    @property
    def address(self) -> str:
        """The client's IP address."""
        return self._session.sender.address

    @property
    def request_bytes(self) -> int:
        """Bytes of the request's body that have arrived."""
        return self._stream.received

    def respond(self, reply: Reply) -> bool:
        """Answer with a message, if the call has not ended; return False if the client does not accept it and there is no space."""
        if self._done:
            return True
        self.response_bytes = reply.length
        prefix = _PREFIX.pack(0, reply.length)
        block = statuses.RESPONSE + _echo(self.context)
        parts, length = [prefix, *reply.parts], reply.length + len(prefix)
        if not self._session.respond(self._stream, block, parts, length, statuses.SUCCESS):
            self.response_bytes = 0
            return False
        self._finish()
        return True

    def fail(self, status: Status) -> None:
        """Answer with a status; no-op if the call has ended."""
        if self._finish():
            self.status, self.is_invalid = status.code, status.is_of_client
            block = statuses.trailers_only(status) + _echo(self.context)
            if status.code is Code.UNIMPLEMENTED:
                block += statuses.ACCEPTED
            self._session.respond(self._stream, block, [], 0, b"")

    # `RequestHandler`, called by the connection.

    def begin(self) -> None:
        """Refuse a call soon if its head is enough to do so."""
        if self._refusal is not None:
            self._refuse(self._refusal)

    def receive(self, part: memoryview) -> None:
        """Take a part of the message, or of its prefix."""
        if self._done:
            return
        if self._view is None and self._refusal is None and self._http_status == _OK:
            part = self._take_prefix(part)
        message = self.message
        if self._view is None or message is None:
            self._discard(len(part))
        elif self._filled + len(part) > message.length:
            self._refuse(_CARDINALITY)
        else:
            self._take(part)

    def memory(self, size: int) -> memoryview | None:
        """Return where the next bytes of the message belong."""
        if self._done or self._view is None:
            return None
        return self._view[self._filled : self._filled + size] or None

    def on_received(self, size: int) -> None:
        """Count bytes that were read directly."""
        self._filled += size
        self._charge(self._filled)
        message, view = self.message, self._view
        if message is not None and view is not None and len(view) == self._filled < message.length:
            self._view = message.grow()

    @property
    def awaited(self) -> int:
        """Bytes of a message of which only a part has arrived."""
        message = self.message
        return 0 if message is None or self._filled == message.length else message.length

    def end(self) -> None:
        """Serve the call, whose request is complete."""
        if self._done:
            return
        if self._refusal is not None or self._http_status != _OK:
            self._answer_refused()
        elif self._view is None:
            self.fail(_TRUNCATED if self._prefix else _CARDINALITY)
        elif self.message is None or self._filled < self.message.length:
            self.fail(_TRUNCATED)
        elif self._compressed:
            self._decompress(self._view)
        else:
            self._serve()

    def expire(self) -> None:
        """Answer a call whose request takes too long to arrive."""
        if self._refusal is None and self._http_status == _OK:
            self._refuse(_TOO_SLOW)
        self._answer_refused()

    def on_sent(self) -> None:
        """Count the call."""
        if self.counted:
            self._app.on_answered(self)

    def cancel(self) -> None:
        """Drop the call, which the client has abandoned, or whose response it does not read."""
        if self.counted:
            self._app.on_left(self)
        if self._done:
            return
        self._done = self.abandoned = True
        self._view = None
        self._stop_timer()
        if not self._serving:  # otherwise the application does, once the call has left its queue
            self._app.release(self)

    # From the request to its answer.

    def _take_prefix(self, part: memoryview) -> memoryview:
        """Take the message's prefix and allocate its memory; return what follows the prefix."""
        prefix = self._prefix + part[: _PREFIX.size - len(self._prefix)]
        rest = part[len(prefix) - len(self._prefix) :]
        self._prefix = prefix
        if len(prefix) == _PREFIX.size:
            flag, length = _PREFIX.unpack(prefix)
            self._compressed = flag == 1
            if flag > 1 or (flag and not self._gzip):
                self._refuse(_NOT_COMPRESSED)
            elif (refusal := self._app.check_size(self, length)) is not None:
                self._refuse(refusal)
                self._discard_at_least(length)
            else:
                self._expect(length, rest)
        return rest

    def _expect(self, length: int, beginning: memoryview) -> None:
        """Prepare for a message of `length` bytes, whose `beginning` has arrived."""
        session, account = self._session, self._app.inflight.account
        self.holding = holding = Holding(self._give_up)
        holding.is_exempt = self.reserved
        if len(beginning) < length:
            if session.streams.count_awaited_bytes() + length > account.limit and not self.reserved:
                why = f"the connection announces more than {account.limit} bytes of messages"
                self._refuse(self._app.refuse_bytes(self, why))
                self._discard_at_least(length)
                return
            account.begin(holding, session.transfers.pace(self._stream), length)
        # a small tensor is copied faster than its place is found
        place = (
            0 if self._compressed or length <= JOINED_BYTES else self._app.find_alignment(beginning)
        )
        self.message = Body(length, place, arrives=len(beginning) < length)
        self._view = self.message.view()

    def _take(self, part: memoryview) -> None:
        view = self._view
        while view is not None and part:
            room = view[self._filled :]
            taken = min(len(part), len(room))
            room[:taken] = part[:taken]
            self.on_received(taken)
            part, view = part[taken:], self._view

    def _charge(self, arrived: int) -> None:
        message, holding = self.message, self.holding
        assert message is not None  # noqa: S101 - it arrives
        assert holding is not None  # noqa: S101 - likewise
        if arrived < holding.size:
            return
        account = self._app.inflight.account
        if account.hold(holding, count_charged_bytes(arrived, message.length)):
            if holding.progress is not None and arrived == message.length:
                account.end(holding)
            return
        self._refuse(self._app.refuse_bytes(self, "too many bytes are in flight"))
        self._discard_at_least(message.length - arrived)

    def _give_up(self) -> None:
        """Refuse the call, since others need the memory of its message."""
        why = "the message arrived too slowly while memory was short"
        self._refuse(self._app.refuse_bytes(self, why))
        self._answer_refused()

    def _refuse(self, status: Status) -> None:
        """Answer with `status` at the end of the request or soon, and discard its message."""
        self._refusal = status
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_PATIENCE, self._answer_refused)
        self.message = self._view = None
        if self.holding is not None:
            self._app.inflight.account.release(self.holding)

    def _discard(self, size: int) -> None:
        if self._refusal is not None or self._http_status != _OK:
            self._discarded += size
            self._discard_at_least(self._discarded)

    def _discard_at_least(self, size: int) -> None:
        """Answer immediately if more than a small request would be discarded."""
        if size > self._app.settings.drained_body_bytes:
            self._answer_refused()

    def _answer_refused(self) -> None:
        if self._refusal is not None:
            self.fail(self._refusal)
        elif self._finish():
            text, headers = _NOT_GRPC[self._http_status]
            block = statuses.http_error(self._http_status, text, headers)
            parts: list[bytes | memoryview] = [] if self.method == b"HEAD" else [text]
            self._session.respond(self._stream, block, parts, sum(map(len, parts)), b"")

    def _decompress(self, message: memoryview) -> None:
        try:
            size = read_stated_size(message)
        except CompressionError as error:
            self.fail(_not_decompressed(error))
            return
        if (refusal := self._app.check_size(self, len(message) + size)) is not None:
            self.fail(refusal)
            return
        assert self.holding is not None  # noqa: S101 - the message has arrived
        pace = TransferPace(time.monotonic(), self._app.settings)
        self._app.inflight.account.begin(self.holding, pace)
        out = Body(size, 0)
        self._step(Decompression(message, out.view()), out)

    def _step(self, work: Decompression, out: Body) -> None:
        if self._done:
            return
        try:
            complete = work.step()
        except CompressionError as error:
            self.fail(_not_decompressed(error))
            return
        account, holding, compressed = self._app.inflight.account, self.holding, self.message
        assert holding is not None  # noqa: S101 - the call is not answered
        assert compressed is not None  # noqa: S101 - likewise
        size = compressed.length + count_charged_bytes(work.filled, out.length)
        if not account.hold(holding, size):
            self.fail(self._app.refuse_bytes(self, "too many bytes are in flight"))
        elif complete:
            account.end(holding)
            self.message = out
            self._serve()
        else:
            self._app.turns.take(partial(self._step, work, out))

    def _serve(self) -> None:
        if self.deadline != _NEVER and time.monotonic() > self.deadline:
            self.fail(self._app.refuse_late(self))
            return
        self._serving = True
        self._view = None  # its memory is the message's, which the application may drop
        answer = self._app.serve(self)
        if isinstance(answer, Reply):
            if not self.respond(answer):
                self.fail(_TOO_MUCH)
        elif answer is not None:
            self.fail(answer)

    def _finish(self) -> bool:
        """End the call; return False if it has ended before."""
        if self._done:
            return False
        self._done = True
        self._view = None
        self._stop_timer()
        self._app.release(self)
        return True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _echo(context: RequestContext | None) -> bytes:
    """Return the block of a response's header fields that repeat those of its request."""
    return literal(REQUEST_ID, context.request_id) if context and context.request_id else b""


def _not_decompressed(error: CompressionError) -> Status:
    return Status(Code.INTERNAL, f"the message cannot be decompressed: {error}", is_of_client=True)
