"""Answers inferences over gRPC: the outputs of a run, or the status of an error."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from enginewright_runtime.core.request_errors import RequestError
from numpy.typing import NDArray

from enginewright_serving.server.inference.job import Job
from enginewright_serving.server.inference.request_failures import busy
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.server.inference.results import InferenceResults
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.protocol.grpc.decode import GrpcPlan, GrpcRequest
from enginewright_serving.server.protocol.grpc.encode import GrpcEncoder, Parts
from enginewright_serving.transport.grpc.call import GrpcCall, Reply
from enginewright_serving.transport.grpc.status import Code, Status

_CODES: Final = {  # of errors with HTTP's status
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    404: Code.NOT_FOUND,
    413: Code.RESOURCE_EXHAUSTED,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}


class Answering(Protocol):
    """What the responders of a server share."""

    codec_thread: RequestThreads
    results: InferenceResults

    def keep_copy(
        self, call: GrpcCall, plan: GrpcPlan, feeds: Feeds, arrays: list[NDArray[Any]]
    ) -> None:
        """Keep a chosen request, which was answered, for the sidecar."""

    def release(self, call: GrpcCall) -> None:
        """Release the memory that is charged for a call."""


@dataclass(slots=True, eq=False)
class GrpcResponder:
    """Answers one inference over gRPC."""

    _app: Answering
    _encoder: GrpcEncoder
    _call: GrpcCall
    _request: GrpcRequest
    _copied: bool  # the request is kept once it is answered

    def succeed(self, job: Job) -> None:
        """Send the outputs, which a thread encodes if they are large."""
        arrays = job.arrays
        assert arrays is not None  # noqa: S101 - it succeeded
        plan = self._request.plan
        self._encoder.check(plan, arrays)
        if self._encoder.is_slow(plan, arrays):
            encode = partial(self._encoder.encode, self._request, arrays)
            self._app.codec_thread.submit(self._call, encode, self._send_later)
        else:
            self._send(self._encoder.encode(self._request, arrays))
        if self._copied:
            self._app.keep_copy(self._call, plan, job.feeds, arrays)

    def _send_later(self, encoded: asyncio.Future[Parts]) -> None:
        encoded.exception()  # retrieved, even if the client has left
        self._app.results.answer_later(
            self._call, self, lambda: self._send(encoded.result()), "encoding a response"
        )

    def _send(self, parts: Parts) -> None:
        if not self._call.respond(Reply(parts, sum(map(len, parts)))):
            raise busy("too many bytes of responses are in flight")

    def fail(self, error: RequestError) -> None:
        """Send an error."""
        self._call.fail(status_of(error))

    def release(self) -> None:
        """Release the memory that is charged for the call."""
        self._app.release(self._call)

    def abort(self) -> None:
        """End the call; others of the connection continue."""
        self._call.fail(Status(Code.INTERNAL, "unexpected error; see the server's log"))
        self.release()


def status_of(error: RequestError) -> Status:
    """Return the status of a call that an error refuses."""
    return Status(_CODES.get(error.status, Code.INTERNAL), error.message)
