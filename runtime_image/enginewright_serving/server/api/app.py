"""The application behind HTTP: which requests it admits, and what answers them.

Runs in the event loop only. Inference is `http_inference`, everything else `http_resources`.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import RequestError
from typing_extensions import override

import enginewright_serving.server.observe.metrics as figures
from enginewright_serving.server.api.content_coding import ACCEPTED, SUPPORTED
from enginewright_serving.server.api.copies import Copies
from enginewright_serving.server.api.http_errors import error_response
from enginewright_serving.server.api.http_inference import HttpInference
from enginewright_serving.server.api.http_reports import ReportingApplication
from enginewright_serving.server.api.http_resources import HttpResources
from enginewright_serving.server.api.http_routes import (
    INFERENCES,
    NO_EMBEDDINGS,
    Routes,
    ServedResource,
)
from enginewright_serving.server.api.inference import InferenceService
from enginewright_serving.server.api.large_requests import LargeRequests
from enginewright_serving.server.api.management import (
    refuse_log_settings,
    refuse_trace_settings,
)
from enginewright_serving.server.api.processing_requests import ChainedRequests
from enginewright_serving.server.api.scrapes import Scrapes
from enginewright_serving.server.inference.processing.served import ServedSteps
from enginewright_serving.server.inference.request_failures import busy, report_unexpected
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.server.startup.prepare import ServedModel
from enginewright_serving.transport.connection import Connection
from enginewright_serving.transport.message import HttpRequest, HttpResponse
from enginewright_serving.transport.settings import TransportSettings

_POSTED: Final = frozenset({*INFERENCES, ServedResource.INDEX, ServedResource.UNREGISTER})
_SETTINGS: Final[Mapping[ServedResource, Callable[[], RequestError]]] = {  # which are only read
    ServedResource.TRACE_SETTINGS: refuse_trace_settings,
    ServedResource.LOG_SETTINGS: refuse_log_settings,
}


class ServerApp(ReportingApplication):
    """The application behind all HTTP connections of one server."""

    def __init__(
        self, task: ServeTask, settings: TransportSettings, version: str, probe_token: str = ""
    ) -> None:
        """Create it; requests with `probe_token` are the sidecar's, "" disables probes."""
        metrics = figures.Metrics(task.model, task.revision)
        inference = InferenceService(task, settings.connections, metrics, probe_token)
        super().__init__(settings, metrics, inference)
        self.codec_thread = RequestThreads(
            "codec", 1, task.max_queue, "large requests", "to be read"
        )
        self.large_requests = LargeRequests(self.codec_thread, self.inflight)
        metrics.in_flight.append(self.count_requests)
        self._task = task
        self.steps: ChainedRequests | None = None
        self.copies = Copies()
        self.http_inference = HttpInference(
            task, self, inference, self.large_requests, self.codec_thread, self.copies
        )
        self._routes = Routes(task)
        self._resources = HttpResources(task, version, inference, metrics, time.time())
        self._scrapes = Scrapes(self.turns, self._resources.exposition)

    def serve_model(self, model: ServedModel, on_lost_thread: Callable[[], None]) -> None:
        """Become ready with `model`; `on_lost_thread` as in `InferenceWorker`."""
        self.inflight.admit_largest(model.signature.largest_request)
        self._resources.serve_model(model)
        self.steps = self._chain(model.steps) if model.steps else None
        self.http_inference.serve_model(model, self.steps)
        self.inference.serve_model(model, on_lost_thread)

    def _chain(self, steps: ServedSteps) -> ChainedRequests:
        self.metrics.has_steps()
        chained = ChainedRequests(steps, self.inference, self.inflight, self.metrics, self._task)
        self.inference.results.respond = chained.respond
        return chained

    def drain(self) -> None:
        """Stop being ready; every response from now on closes its connection."""
        self.draining = True
        self.inference.drain()

    @override
    def admit(self, request: HttpRequest) -> HttpResponse | None:
        resource = self.find(request)
        if resource is None:
            self.inference.name(request)
            return error_response(self._routes.refuse(request.target))
        if resource is ServedResource.EMBEDDINGS:
            request.json_length = None  # all of the body is JSON, with the limits of that
            if self._task.embeddings is None:
                self.inference.name(request)
                return error_response(RequestError(404, NO_EMBEDDINGS), resource=resource)
        methods = (b"POST",) if resource in _POSTED else (b"GET", b"HEAD")
        if request.method == b"POST" and resource in _SETTINGS:
            return error_response(_SETTINGS[resource]())
        if request.method not in methods:
            self.inference.name(request)
            allowed = b", ".join(methods)
            message = f"{request.method.decode()} is not allowed here, use {allowed.decode()}"
            header = b"Allow: %b\r\n" % allowed
            return error_response(RequestError(405, message), header, resource=resource)
        request.route = resource
        own = resource in (ServedResource.MEASUREMENTS, ServedResource.SHADOW)
        if own and not self.inference.is_probe(request):
            return self.refuse(403, "only the pod's sidecar may read this; see its /measurements")
        return self._admit_inference(request) if resource in INFERENCES else None

    def find(self, request: HttpRequest) -> ServedResource | None:
        """Return what a request asks for, if that exists."""
        return self._routes.exact.get(request.target) or self._routes.find(request.target)

    @override
    def check_size(self, request: HttpRequest, size: int) -> HttpResponse | None:
        try:
            self.inflight.check_body(size, request.json_length)
        except RequestError as error:
            return self.refuse_inference(request, error)
        return None

    @override
    def refuse_bytes(self, request: HttpRequest) -> HttpResponse:
        return self.refuse_inference(request, busy("too many bytes are in flight"))

    @override
    def release(self, request: HttpRequest) -> None:
        self.inflight.release(request)
        self.inference.release_probe(request)

    @override
    def serve(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        try:
            if request.route in INFERENCES:
                self.http_inference.take(connection, request)
                return None
            if request.route is ServedResource.METRICS:
                request.replaceable = True
                self._scrapes.take(connection, request)
                return None
            if request.route is ServedResource.SHADOW:
                return self.copies.answer(request.target)
            return self._resources.get(request.route, request.body)
        except RequestError as error:
            refusal = error.detach()
        except Exception:  # noqa: BLE001 - an internal error fails one request, not the connection
            refusal = report_unexpected("serving a request")
        if request.route in INFERENCES:
            return self.refuse_inference(request, refusal)
        return error_response(refusal)

    def refuse_inference(
        self, request: HttpRequest, error: RequestError, headers: bytes = b""
    ) -> HttpResponse:
        """Build the response to an inference request that is not submitted."""
        return self.http_inference.refuse(request, error, headers)

    def _admit_inference(self, request: HttpRequest) -> HttpResponse | None:
        try:
            self.inference.admit(request)
        except RequestError as error:
            return self.refuse_inference(request, error)
        coding = request.content_encoding
        if coding and coding not in SUPPORTED:
            message = (
                f"Content-Encoding {coding[:40].decode(errors='replace')!r} is not supported;"
                " use gzip or deflate, or send the body uncompressed"
            )
            return self.refuse_inference(request, RequestError(415, message), ACCEPTED)
        return None
