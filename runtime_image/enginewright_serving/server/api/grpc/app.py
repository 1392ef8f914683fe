"""The gRPC application: admits calls, answers those about the server, queues inferences; in the event loop."""

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import Signature
from numpy.typing import NDArray

from enginewright_serving.exchanges import LARGEST_BYTES
from enginewright_serving.server.api.app import ServerApp
from enginewright_serving.server.api.grpc.methods import MODEL_INFER, Methods
from enginewright_serving.server.api.grpc.responder import GrpcResponder, status_of
from enginewright_serving.server.inference.request_failures import busy, report_unexpected
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.protocol.grpc.decode import GrpcDecoder, GrpcPlan, GrpcRequest
from enginewright_serving.server.protocol.grpc.encode import GrpcEncoder, http_request
from enginewright_serving.server.protocol.grpc.wire import first_raw_tensor, split
from enginewright_serving.server.startup.prepare import ServedModel
from enginewright_serving.transport.answered import Answered
from enginewright_serving.transport.application import ApplicationBase
from enginewright_serving.transport.grpc.call import GrpcCall, Reply
from enginewright_serving.transport.grpc.status import HTTP_STATUS, Code, Status
from enginewright_serving.transport.http2.connection import Http2Connection
from enginewright_serving.transport.input_turns import InputTurns
from enginewright_serving.transport.message import Body, HttpResponse
from enginewright_serving.transport.request_context import NAMES, RequestContext
from enginewright_serving.transport.settings import TransportSettings

_LARGEST_QUESTION: Final = 64 * 1024  # bytes of a message of another method than ModelInfer
_log: Final = logging.getLogger(__name__)
# bytes of a message that are searched for its first raw tensor, and a priority
_LONGEST_BEGINNING: Final = 4096
_FEW: Final = 4  # connections that send many frames at once; those of more take turns with pauses
_SOON: Final = 1e-6  # seconds: the deadline has passed
_INFER: Final = "ModelInfer"


@dataclass(frozen=True, slots=True)
class _GrpcCodec:
    decoder: GrpcDecoder
    encoder: GrpcEncoder
    of_model: "_GrpcCodec | None" = None  # of the sidecar's requests, if it differs


class GrpcApp(ApplicationBase[Http2Connection]):
    """The application behind all gRPC connections of one server."""

    metadata: frozenset[bytes] = NAMES

    def __init__(
        self, task: ServeTask, settings: TransportSettings, version: str, http: ServerApp
    ) -> None:
        """Create it; it shares queue, threads and limits with the application of HTTP."""
        super().__init__(settings, http.inflight, InputTurns(rests_above=_FEW))
        self.codec_thread = http.codec_thread
        self._http = http
        self._observers = http.observers
        self._metrics = http.metrics
        self._metrics.in_flight.append(self.count_requests)
        self._task = task
        self._inference = inference = http.inference
        self.results = inference.results
        self._large_requests = http.large_requests
        self._methods = Methods(task, version, inference, http.metrics)
        self._codec: _GrpcCodec | None = None

    def serve_model(self, model: ServedModel) -> None:
        """Take requests of `model`, before `inference` becomes ready with it."""
        own = self._codec_of(model.signature) if model.steps else None
        self._codec = self._codec_of(model.client_signature, own)

    def _codec_of(self, signature: Signature, of_model: _GrpcCodec | None = None) -> _GrpcCodec:
        most = self.settings.json_bytes
        decoder = GrpcDecoder(signature, self._methods.check_model, most_typed_bytes=most)
        encoder = GrpcEncoder(self._task.model, self._task.revision, signature)
        return _GrpcCodec(decoder, encoder, of_model)

    # `GrpcApplication`, called by `GrpcCall`.

    def admit(self, call: GrpcCall) -> Status | None:
        """Refuse a call whose head shows that it cannot be served."""
        if call.method in self._methods:
            return None
        if call.method != MODEL_INFER:
            return Status(Code.UNIMPLEMENTED, self._methods.why_unknown(call.method))
        try:
            self._inference.admit(call)
        except RequestError as error:
            return self.refuse(call, error)
        return None

    def find_alignment(self, beginning: memoryview) -> int:
        """Return where the first raw tensor begins, so that it needs no copy."""
        return first_raw_tensor(beginning[:_LONGEST_BEGINNING]) or 0

    def check_size(self, call: GrpcCall, size: int) -> Status | None:
        """Refuse a message of `size` bytes that is too large."""
        if call.method != MODEL_INFER and size > _LARGEST_QUESTION:
            return Status(Code.RESOURCE_EXHAUSTED, f"the message exceeds {_LARGEST_QUESTION} bytes")
        try:
            self.inflight.check(size)
        except RequestError as error:
            return self.refuse(call, error)
        return None

    def refuse_bytes(self, call: GrpcCall, why: str) -> Status:
        """Refuse a call because too many bytes are in flight."""
        return self.refuse(call, busy(why))

    def refuse_late(self, call: GrpcCall) -> Status:
        """Refuse a call whose deadline has passed before it began."""
        return self.refuse(call, RequestError(504, "the deadline passed before the call began"))

    def release(self, call: GrpcCall) -> None:
        """Release the call's in-flight bytes."""
        self.inflight.release(call)
        self._inference.release_probe(call)

    def on_answered(self, call: GrpcCall) -> None:
        """Count an inference whose answer is written, and report it to observers."""
        self._end(call, call.status, call.context, call.response_bytes)

    def on_left(self, call: GrpcCall) -> None:
        """Count an inference whose client has left, and report it to observers."""
        context = None if call.context is None else call.context.without_times()
        self._end(call, Code.CANCELLED, context, 0)

    def _end(self, call: GrpcCall, code: Code, context: RequestContext | None, sent: int) -> None:
        status = 400 if call.is_invalid and code is call.status else HTTP_STATUS.get(code, 500)
        if call.copy:
            self._metrics.count_copy(status)
            return
        ended = self._metrics.count_answer(status, call.began, call.request_bytes, sent)
        if self._observers and context is not None:
            answered = Answered(
                context=context,
                protocol="grpc",
                method=_INFER,
                status=status,
                grpc_status=code.name,
                began=call.began,
                ended=ended,
                received=call.request_bytes,
                sent=sent,
                client=call.address,
            )
            for observer in self._observers:
                observer.add(answered)

    def serve(self, call: GrpcCall) -> Reply | Status | None:
        """Answer a call whose message is complete, unless the model's thread will."""
        message = call.message
        assert message is not None  # noqa: S101 - it is complete
        try:
            if call.method == MODEL_INFER:
                self._infer(call, message)
                return None
            answer = self._methods.answer(call.method, bytes(message.view()))
        except RequestError as error:
            return self.refuse(call, error)
        except Exception:  # noqa: BLE001 - an internal error fails one call, not the connection
            return self.refuse(call, report_unexpected("serving a call"))
        return Reply([answer], len(answer))

    # Inference.

    def _infer(self, call: GrpcCall, body: Body) -> None:
        self._inference.check_queue(call, body, _LONGEST_BEGINNING)
        codec = self._codec
        assert codec is not None  # noqa: S101 - the queue is the model's
        if codec.of_model is not None and self._inference.is_model_request(call):
            codec = codec.of_model
        call.message = None  # the tensors keep references to the memory they need
        message = body.view()
        parts = split(message)
        if codec.decoder.is_slow(parts, body.length):
            self._large_requests.decode(
                call,
                body,
                partial(codec.decoder.decode, message, parts),
                partial(self._submit, codec, call),
                partial(self._refuse_later, call),
            )
        else:
            self._submit(codec, call, *codec.decoder.decode(message, parts))

    def _submit(
        self,
        codec: _GrpcCodec,
        call: GrpcCall,
        request: GrpcRequest,
        feeds: Feeds,
        waited: float = 0.0,
    ) -> None:
        plan = request.plan
        left = call.deadline - time.monotonic() + waited
        if left < (plan.timeout or math.inf):
            plan = plan.within(max(left, _SOON))
        copied = call.of_client and self._http.copies.chooses()
        responder = GrpcResponder(self, codec.encoder, call, request, copied)
        steps = self._http.steps if codec.of_model is not None else None
        if steps is None:
            self._inference.submit(call, plan, feeds, responder, waited=waited)
        else:
            refuse = partial(self._refuse_later, call)
            steps.submit(call, plan, feeds, responder, waited=waited, refuse=refuse)

    def keep_copy(
        self, call: GrpcCall, plan: GrpcPlan, feeds: Feeds, arrays: list[NDArray[Any]]
    ) -> None:
        """Keep a chosen request, which was answered, for the sidecar."""
        if sum(array.nbytes for array in (*feeds.values(), *arrays)) > LARGEST_BYTES:
            self._http.copies.drop()
        else:
            work = partial(self._exchange, plan, feeds, arrays)
            self.codec_thread.submit(call, work, self._add_copy)

    def _exchange(
        self, plan: GrpcPlan, feeds: Feeds, arrays: list[NDArray[Any]]
    ) -> tuple[Body, int, HttpResponse]:
        body, json_length = http_request(plan, feeds)
        return body, json_length, self._http.http_inference.answer(body, json_length, arrays)

    def _add_copy(self, made: asyncio.Future[tuple[Body, int, HttpResponse]]) -> None:
        try:
            self._http.copies.add(*made.result())
        except RequestError:  # its client left before it was answered
            self._http.copies.drop()
        except Exception:  # noqa: BLE001 - a request that is not compared fails nothing
            _log.exception("unexpected error while copying a request")
            self._http.copies.drop()

    def _refuse_later(self, call: GrpcCall, error: RequestError) -> None:
        """Refuse a call after `serve`, such as one that was decoded in the thread."""
        status = self.refuse(call, error)
        if call.abandoned:
            self.release(call)
        else:
            call.fail(status)

    def refuse(self, call: GrpcCall, error: RequestError) -> Status:
        """Return the status of a call that is not submitted."""
        if call.method == MODEL_INFER:
            self._inference.note_refusal(call, error)
        return status_of(error)
