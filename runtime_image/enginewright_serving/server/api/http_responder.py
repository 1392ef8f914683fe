"""Answers one inference request over HTTP: encodes the outputs, compresses them if the client asks for that."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from enginewright_runtime.core.request_errors import RequestError
from numpy.typing import NDArray

from enginewright_serving.server.api.compressed_responses import CompressedResponses
from enginewright_serving.server.api.copies import Copies
from enginewright_serving.server.api.http_errors import error_response
from enginewright_serving.server.inference.job import Job
from enginewright_serving.server.inference.request_failures import busy
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.server.inference.results import InferenceResults
from enginewright_serving.transport.connection import Connection
from enginewright_serving.transport.message import Body, HttpRequest, HttpResponse

_P = TypeVar("_P")
_P_contra = TypeVar("_P_contra", contravariant=True)


class ResponseEncoder(Protocol[_P_contra]):
    """Encodes the responses to requests of one form, which are parsed to a `plan`."""

    def check(self, plan: _P_contra, arrays: list[NDArray[Any]]) -> None:
        """Refuse to encode outputs: RequestError."""

    def is_slow(self, plan: _P_contra, arrays: list[NDArray[Any]]) -> bool:
        """Return whether encoding may take more than a millisecond."""

    def encode(self, plan: _P_contra, arrays: list[NDArray[Any]]) -> HttpResponse:
        """Return the response."""


@dataclass(frozen=True, slots=True)
class Answering:
    """What the responders of a server share."""

    codec_thread: RequestThreads
    compressed_responses: CompressedResponses
    copies: Copies
    results: InferenceResults
    release: Callable[[HttpRequest], None]  # the memory that is charged for a request


@dataclass(slots=True, eq=False)
class HttpResponder(Generic[_P]):
    """The `Responder` of one request."""

    _answering: Answering
    _encoder: ResponseEncoder[_P]
    _connection: Connection
    _request: HttpRequest
    _plan: _P
    _copied: Body | None  # the body of a request that is kept once it is answered

    def succeed(self, job: Job) -> None:
        """Send the outputs, which a thread encodes or compresses if they are large."""
        arrays = job.arrays
        assert arrays is not None  # noqa: S101 - it succeeded
        self._encoder.check(self._plan, arrays)
        if self._encoder.is_slow(self._plan, arrays):
            encode = partial(self._encode, job, arrays)
            self._answering.codec_thread.submit(self._request, encode, self._send_encoded)
            return
        response = self._encode(job, arrays)
        if self._request.accept_encoding:
            self._compress(response)
        else:
            self._send(response, response)

    def _encode(self, job: Job, arrays: list[NDArray[Any]]) -> HttpResponse:
        response = self._encoder.encode(self._plan, arrays)
        if job.call.reserved:
            response.headers += _timing(job)
        return response

    def _send_encoded(self, encoded: asyncio.Future[HttpResponse]) -> None:
        encoded.exception()  # retrieved, even if the client has left
        self._answering.results.answer_later(
            self._request, self, lambda: self._compress(encoded.result()), "encoding a response"
        )

    def _compress(self, response: HttpResponse) -> None:
        """Send the outputs, compressed if the client asks for that: large ones once a thread has done so."""
        done = partial(self._send_compressed, response)
        sent = self._answering.compressed_responses.compress(self._request, response, done)
        if sent is not None:
            self._send(sent, response)

    def _send_compressed(
        self, plain: HttpResponse, compressed: asyncio.Future[HttpResponse]
    ) -> None:
        compressed.exception()  # retrieved, even if the client has left
        send = partial(self._send_result, compressed, plain)
        self._answering.results.answer_later(self._request, self, send, "compressing a response")

    def _send_result(self, compressed: asyncio.Future[HttpResponse], plain: HttpResponse) -> None:
        self._send(compressed.result(), plain)

    def _send(self, response: HttpResponse, plain: HttpResponse) -> None:
        if not self._connection.reserve(self._request, response):
            raise busy("too many bytes of responses are in flight")
        self._connection.respond(self._request, response)
        if self._copied is not None:
            self._answering.copies.add(self._copied, self._request.json_length, plain)

    def fail(self, error: RequestError) -> None:
        """Send an error."""
        error_answer = error_response(error, resource=self._request.route)
        self._connection.respond(self._request, error_answer)

    def release(self) -> None:
        """Release the memory that is charged for the request."""
        self._answering.release(self._request)

    def abort(self) -> None:
        """Close the connection."""
        self._connection.abort()
        self.release()


def _timing(job: Job) -> bytes:
    """Return the `Server-Timing` header (W3C), in milliseconds: waiting, and running if it was alone."""
    queue, compute = job.started - job.queued, job.finished - job.started
    if not job.alone:
        return b"Server-Timing: queue;dur=%.4f\r\n" % (queue * 1e3)
    return b"Server-Timing: queue;dur=%.4f, compute;dur=%.4f\r\n" % (queue * 1e3, compute * 1e3)
