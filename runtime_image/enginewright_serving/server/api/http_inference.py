"""Inference requests over HTTP, from their complete bodies to the model's queue; `http_responder` answers them.

A body is expanded if it is compressed, then decoded, in the event loop or, if it is large, in a thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import Signature
from numpy.typing import NDArray

from enginewright_serving.server.api.compressed_requests import CompressedRequests
from enginewright_serving.server.api.compressed_responses import CompressedResponses
from enginewright_serving.server.api.copies import Copies
from enginewright_serving.server.api.http_embeddings import HttpEmbeddings
from enginewright_serving.server.api.http_errors import error_response
from enginewright_serving.server.api.http_responder import Answering, HttpResponder
from enginewright_serving.server.api.http_routes import ServedResource
from enginewright_serving.server.api.inference import InferenceService
from enginewright_serving.server.api.large_requests import LargeRequests
from enginewright_serving.server.api.processing_requests import ChainedRequests
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.server.protocol.decode import Decoder, Feeds
from enginewright_serving.server.protocol.embeddings import (
    TEXTS,
    EmbeddingsDecoder,
    EmbeddingsRequest,
)
from enginewright_serving.server.protocol.encode import Encoder
from enginewright_serving.server.protocol.inference_request import InferenceRequest
from enginewright_serving.server.startup.prepare import ServedModel
from enginewright_serving.transport.connection import Connection
from enginewright_serving.transport.http_application import HttpApplication
from enginewright_serving.transport.message import Body, HttpRequest, HttpResponse

_P = TypeVar("_P")
_P_co = TypeVar("_P_co", covariant=True)


class _Decoder(Protocol[_P_co]):
    """Decodes the requests of one form."""

    def is_slow(self, body: Body, json_length: int | None) -> bool:
        """Return whether decoding may take more than a millisecond."""

    def decode(self, body: Body, json_length: int | None) -> tuple[_P_co, Feeds]:
        """Return the parsed request and its inputs; may raise RequestError."""


@dataclass(frozen=True, slots=True)
class _Form(Generic[_P]):
    """How requests of one form are decoded, and what takes them then; `submit` may raise RequestError."""

    key: str  # member of their JSON that has what is inferred
    decoder: _Decoder[_P]
    submit: Callable[[Connection, HttpRequest, Body, _P, Feeds, float], None]


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
        # of the sidecar's requests, which have the model's own inputs, of clients' and of those for embeddings
        self._own: _Form[InferenceRequest] | None = None
        self._form: _Form[InferenceRequest] | None = None
        self._embeddings: _Form[EmbeddingsRequest] | None = None
        self._encoder: Encoder | None = None

    def serve_model(self, model: ServedModel, steps: ChainedRequests | None) -> None:
        """Take requests of `model`, those of clients with `steps`, before `inference` becomes ready with it."""
        self._own = self._form = self._form_of(model.signature, None)
        if steps:
            self._form = self._form_of(model.client_signature, steps)
        if steps and model.embeddings:
            embeddings = HttpEmbeddings(
                self._task,
                model,
                model.embeddings,
                steps,
                self._inference,
                self._app.inflight,
                self._answering,
            )
            decoder = EmbeddingsDecoder(self._task.model, model.embeddings.size)
            self._embeddings = _Form(TEXTS, decoder, embeddings.submit)

    def _form_of(
        self, signature: Signature, steps: ChainedRequests | None
    ) -> _Form[InferenceRequest]:
        self._encoder = encoder = Encoder(self._task.model, self._task.revision, signature)
        return _Form("inputs", Decoder(signature), partial(self._submit, encoder, steps))

    def _choose_form(self, request: HttpRequest) -> _Form[Any]:
        form: _Form[Any] | None = self._form
        if request.route is ServedResource.EMBEDDINGS:
            form = self._embeddings
        elif form is not self._own and self._inference.is_model_request(request):
            form = self._own
        assert form is not None  # noqa: S101 - the request was admitted
        return form

    def refuse(
        self, request: HttpRequest, error: RequestError, headers: bytes = b""
    ) -> HttpResponse:
        """Build the response to an inference request that is not submitted."""
        self._inference.note_refusal(request, error)
        return error_response(error, headers, resource=request.route)

    def take(
        self, connection: Connection, request: HttpRequest, expanding: float | None = None
    ) -> None:
        """Decode and submit an admitted request, whose body took `expanding` seconds to expand; raises RequestError."""
        form, body = self._choose_form(request), request.body
        if body is None:
            raise RequestError(400, f"the body is empty; send a JSON object with {form.key!r}")
        if request.content_encoding and expanding is None:
            self._expand(connection, request, body)
            return
        self._inference.check_queue(request, body, request.json_length or body.length)
        if request.json_length is not None and request.json_length > body.length:
            raise RequestError(
                400,
                f"Inference-Header-Content-Length is {request.json_length},"
                f" but the body has {body.length} bytes",
            )
        request.body = None  # the tensors keep references to the memory they need
        waited = expanding or 0.0
        if not form.decoder.is_slow(body, request.json_length):
            plan, feeds = form.decoder.decode(body, request.json_length)
            form.submit(connection, request, body, plan, feeds, waited)
            return
        self._large_requests.decode(
            request,
            body,
            partial(form.decoder.decode, body, request.json_length),
            lambda plan, feeds, seconds: form.submit(
                connection, request, body, plan, feeds, waited + seconds
            ),
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
        encoder: Encoder,
        steps: ChainedRequests | None,
        connection: Connection,
        request: HttpRequest,
        body: Body,
        plan: InferenceRequest,
        feeds: Feeds,
        waited: float,
    ) -> None:
        chosen = request.of_client and self._copies.chooses()
        copied = body if chosen else None
        responder = HttpResponder(self._answering, encoder, connection, request, plan, copied)
        if steps is None:
            self._inference.submit(request, plan, feeds, responder, waited=waited)
        else:
            refuse = partial(self._refuse_decoded, connection, request)
            steps.submit(request, plan, feeds, responder, waited=waited, refuse=refuse)

    def answer(
        self, body: Body, json_length: int | None, arrays: list[NDArray[Any]]
    ) -> HttpResponse:
        """Return the response with these outputs to a request that is valid."""
        form, encoder = self._form, self._encoder
        assert form is not None  # noqa: S101 - it has outputs
        assert encoder is not None  # noqa: S101 - likewise
        plan, _ = form.decoder.decode(body, json_length)
        return encoder.encode(plan, arrays)
