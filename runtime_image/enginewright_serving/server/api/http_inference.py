"""Inference requests over HTTP, from their complete bodies to the model's queue; `http_responder` answers them.

A body is expanded if it is compressed, then decoded, in the event loop or, if it is large, in a thread.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import Signature
from numpy.typing import NDArray

from enginewright_serving.server.api.compressed_requests import CompressedRequests
from enginewright_serving.server.api.compressed_responses import CompressedResponses
from enginewright_serving.server.api.copies import Copies
from enginewright_serving.server.api.http_errors import error_response
from enginewright_serving.server.api.http_responder import Answering, HttpResponder
from enginewright_serving.server.api.inference import InferenceService
from enginewright_serving.server.api.large_requests import LargeRequests
from enginewright_serving.server.api.processing_requests import ChainedRequests
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.server.protocol.decode import Decoder, Feeds
from enginewright_serving.server.protocol.encode import Encoder
from enginewright_serving.server.protocol.inference_request import InferenceRequest
from enginewright_serving.server.startup.prepare import ServedModel
from enginewright_serving.transport.connection import Connection
from enginewright_serving.transport.http_application import HttpApplication
from enginewright_serving.transport.message import Body, HttpRequest, HttpResponse


@dataclass(frozen=True, slots=True)
class _Codec:
    decoder: Decoder
    encoder: Encoder
    steps: ChainedRequests | None = None  # take the requests instead of the model
    of_model: "_Codec | None" = None  # of the sidecar's requests, if it differs


class HttpInference:
    """Takes the inference requests of one server."""

    def __init__(
        self,
        task: ServeTask,
        app: HttpApplication[Connection],
        inference: InferenceService,
        large_requests: LargeRequests,
        codec_thread: RequestThreads,
        copies: Copies,
    ) -> None:
        self._task = task
        self._app = app
        self._inference = inference
        self._large_requests = large_requests
        self._compressed_requests = CompressedRequests(codec_thread, app.inflight)
        self._copies = copies
        self._answering = Answering(
            codec_thread, CompressedResponses(codec_thread), copies, inference.results, app.release
        )
        self._codec: _Codec | None = None

    def serve_model(self, model: ServedModel, steps: ChainedRequests | None) -> None:
        """Take requests of `model`, those of clients with `steps`, before `inference` becomes ready with it."""
        self._codec = own = _Codec(*self._coders(model.signature))
        if steps:
            self._codec = _Codec(*self._coders(model.client_signature), steps, own)

    def _coders(self, signature: Signature) -> tuple[Decoder, Encoder]:
        return Decoder(signature), Encoder(self._task.model, self._task.revision, signature)

    def refuse(
        self, request: HttpRequest, error: RequestError, headers: bytes = b""
    ) -> HttpResponse:
        """Build the response to an inference request that is not submitted."""
        self._inference.note_refusal(request, error)
        return error_response(error, headers)

    def take(
        self, connection: Connection, request: HttpRequest, expanding: float | None = None
    ) -> None:
        """Decode and submit an admitted request, whose body took `expanding` seconds to expand; raises RequestError."""
        codec, body = self._codec, request.body
        if body is None:
            raise RequestError(400, "the body is empty; send a JSON object with 'inputs'")
        if request.content_encoding and expanding is None:
            self._expand(connection, request, body)
            return
        self._inference.check_queue(request, body, request.json_length or body.length)
        assert codec is not None  # noqa: S101 - the queue is the model's
        if codec.of_model is not None and self._inference.is_model_request(request):
            codec = codec.of_model
        if request.json_length is not None and request.json_length > body.length:
            raise RequestError(
                400,
                f"Inference-Header-Content-Length is {request.json_length},"
                f" but the body has {body.length} bytes",
            )
        request.body = None  # the tensors keep references to the memory they need
        if not codec.decoder.is_slow(body, request.json_length):
            plan, feeds = codec.decoder.decode(body, request.json_length)
            self._submit(codec, connection, request, body, expanding, plan, feeds)
            return
        self._large_requests.decode(
            request,
            body,
            partial(codec.decoder.decode, body, request.json_length),
            partial(self._submit, codec, connection, request, body, expanding),
            partial(self._refuse_decoded, connection, request),
        )

    def _expand(self, connection: Connection, request: HttpRequest, compressed: Body) -> None:
        request.body = None

        def take(body: Body, seconds: float) -> None:
            request.body = body
            self.take(connection, request, seconds)

        refuse = partial(self._refuse_decoded, connection, request)
        self._compressed_requests.expand(request, compressed, take, refuse)

    def _refuse_decoded(
        self, connection: Connection, request: HttpRequest, error: RequestError
    ) -> None:
        response = self.refuse(request, error)
        if request.abandoned:
            self._app.release(request)
        else:
            connection.respond(request, response)

    def _submit(
        self,
        codec: _Codec,
        connection: Connection,
        request: HttpRequest,
        body: Body,
        expanding: float | None,
        plan: InferenceRequest,
        feeds: Feeds,
        waited: float = 0.0,
    ) -> None:
        if expanding is not None:
            waited += expanding
        chosen = request.of_client and self._copies.chooses()
        copied = body if chosen else None
        responder = HttpResponder(self._answering, codec.encoder, connection, request, plan, copied)
        if codec.steps is None:
            self._inference.submit(request, plan, feeds, responder, waited=waited)
        else:
            refuse = partial(self._refuse_decoded, connection, request)
            codec.steps.submit(request, plan, feeds, responder, waited=waited, refuse=refuse)

    def answer(
        self, body: Body, json_length: int | None, arrays: list[NDArray[Any]]
    ) -> HttpResponse:
        """Return the response with these outputs to a request that is valid."""
        codec = self._codec
        assert codec is not None  # noqa: S101 - it has outputs
        plan, _ = codec.decoder.decode(body, json_length)
        return codec.encoder.encode(plan, arrays)
