"""The HTTP routes: the Open Inference Protocol's resources, metrics and the execution report.

Runs in the event loop only. Everything that is the same for every request is encoded once.
"""

import asyncio
import enum
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

import orjson
from enginewright.contract.measurements import ServerMeasurements
from enginewright.contract.task import LIVE_PATH, READY_PATH, ServeTask
from numpy.typing import NDArray

import enginewright_runtime.serve.server.metrics as figures
from enginewright_runtime.serve.exchanges import RESOURCE, SHARE_QUERY
from enginewright_runtime.serve.server import memory
from enginewright_runtime.serve.server.answered import Answered, Observer
from enginewright_runtime.serve.server.application import ApplicationBase, json_response
from enginewright_runtime.serve.server.compressed_requests import CompressedRequests
from enginewright_runtime.serve.server.compressed_responses import (
    COMPRESSED_FROM,
    CompressedResponses,
)
from enginewright_runtime.serve.server.connection import Connection
from enginewright_runtime.serve.server.content_coding import ACCEPTED, SUPPORTED
from enginewright_runtime.serve.server.copies import Copies
from enginewright_runtime.serve.server.decode import Decoder, Feeds
from enginewright_runtime.serve.server.encode import Encoder
from enginewright_runtime.serve.server.health import HealthProblem
from enginewright_runtime.serve.server.inference import InferenceService
from enginewright_runtime.serve.server.inference_request import InferenceRequest
from enginewright_runtime.serve.server.job import Job
from enginewright_runtime.serve.server.large_requests import LargeRequests
from enginewright_runtime.serve.server.message import Body, HttpRequest, HttpResponse
from enginewright_runtime.serve.server.outside_profiles import OutsideDecoder, OutsideModel
from enginewright_runtime.serve.server.pod_resources import PodResource, PodResources
from enginewright_runtime.serve.server.processing.requests import ChainedRequests, StepLimits
from enginewright_runtime.serve.server.processing.served import ServedSteps
from enginewright_runtime.serve.server.request_failures import busy, unexpected
from enginewright_runtime.serve.server.request_threads import RequestThreads
from enginewright_runtime.serve.server.scrapes import Scrapes
from enginewright_runtime.serve.server.settings import RETRY_AFTER_SECONDS, ServerSettings
from enginewright_runtime.serve.server.startup import ServedModel
from enginewright_runtime.serve.server.statistics import EXTENSIONS, statistics
from enginewright_runtime.session.request_errors import RequestError
from enginewright_runtime.session.signature import Signature, Tensor

_LONGEST_PATH: Final = 2048  # bytes: of what exists, encoded; decoding costs much for each escape
_RETRY: Final = b"Retry-After: %d\r\n" % RETRY_AFTER_SECONDS


class _Resource(enum.Enum):
    SERVER = enum.auto()
    LIVE = enum.auto()
    READY = enum.auto()
    MODEL = enum.auto()
    MODEL_READY = enum.auto()
    INFER = enum.auto()
    EXECUTION = enum.auto()
    MEASUREMENTS = enum.auto()
    STATISTICS = enum.auto()
    SHADOW = enum.auto()
    METRICS = enum.auto()


_OF_POD: Final = {
    _Resource.METRICS: PodResource.METRICS,
    _Resource.MEASUREMENTS: PodResource.MEASUREMENTS,
    _Resource.EXECUTION: PodResource.EXECUTION,
    _Resource.STATISTICS: PodResource.STATISTICS,
    _Resource.SHADOW: PodResource.COPY,
}


@dataclass(frozen=True, slots=True)
class _Codec:
    """How requests of the ready model are read, and answered."""

    decoder: Decoder
    encoder: Encoder
    metadata: bytes
    steps: ChainedRequests | None = None  # take the requests; None: the model does
    of_model: "_Codec | None" = None  # of the sidecar's requests; None: the same


class ServerApp(ApplicationBase[Connection]):
    """The application behind all HTTP connections of one server."""

    def __init__(
        self, task: ServeTask, settings: ServerSettings, version: str, probe_token: str = ""
    ) -> None:
        """Create it; requests with `probe_token` are the sidecar's, "" disables probes."""
        super().__init__(settings)
        self.metrics = figures.Metrics(task.model, task.revision)
        self.inference = InferenceService(task, settings, self.metrics, probe_token)
        self.codec_thread = RequestThreads(
            "codec", 1, task.max_queue, "large requests", "to be read"
        )
        self.large_requests = LargeRequests(self.codec_thread, self.inflight, self.inference)
        self._compressed = CompressedRequests(self.codec_thread, self.inflight)
        self.compressed_responses = CompressedResponses(self.codec_thread)
        self.metrics.in_flight.append(self._in_flight)
        self.started = time.time()
        self.pod: PodResources | None = None  # None: this is the only process
        self._answering: set[asyncio.Task[None]] = set()
        self._task = task
        self._codec: _Codec | None = None
        self.steps: ChainedRequests | None = None
        self.copies = Copies()
        self.observers: list[Observer] = []
        self._resources = _resources(task)
        self._scrapes = Scrapes(self.turns, self._exposition)
        self._server_metadata = orjson.dumps(
            {"name": "enginewright", "version": version, "extensions": EXTENSIONS}
        )

    def serve_model(self, model: ServedModel) -> None:
        """Become ready with `model`."""
        self.inflight.admit_largest(model.signature.largest_request)
        own = self._codec_of(model.signature, _model_metadata(self._task, model), model.outside)
        self.steps = self._chained(model.steps) if model.steps else None
        self._codec = (
            self._codec_of(model.client_signature, own.metadata, steps=self.steps, of_model=own)
            if self.steps
            else own
        )
        self.inference.serve_model(model)

    def _in_flight(self) -> int:
        """Return the clients' inferences whose heads have arrived, and that are not answered."""
        return sum(connection.counted_requests for connection in self.connections)

    def _codec_of(
        self,
        signature: Signature,
        metadata: bytes,
        outside: OutsideModel | None = None,
        *,
        steps: ChainedRequests | None = None,
        of_model: _Codec | None = None,
    ) -> _Codec:
        decoder = OutsideDecoder(signature, outside.signature) if outside else Decoder(signature)
        encoder = Encoder(self._task.model, self._task.revision, signature)
        return _Codec(decoder, encoder, metadata, steps, of_model)

    def _chained(self, steps: ServedSteps) -> ChainedRequests:
        """Return what takes requests of the clients; the protocols share it."""
        self.metrics.has_steps()
        chained = ChainedRequests(steps, self.inference, self.inflight, self.metrics, self._limits)
        self.inference.results.respond_with(chained.respond)
        return chained

    @property
    def _limits(self) -> StepLimits:
        task = self._task
        return StepLimits(task.max_queue, self.settings.step_seconds, task.request_seconds)

    def drain(self) -> None:
        """Stop being ready; every response from now on closes its connection."""
        self.draining = True
        self.inference.drain()

    # `HttpApplication`, called by `Connection`.

    def refuse(self, status: int, message: str, headers: bytes = b"") -> HttpResponse:
        """Build an error response."""
        return json_response(status, {"error": message}, headers)

    def admit(self, request: HttpRequest) -> HttpResponse | None:
        """Refuse a request that cannot be served, as far as its head shows."""
        resource = self._resources.get(request.target) or self._find(request.target)
        if resource is None:
            return self.refuse(404, self._why_unknown(request.target))
        infer = resource is _Resource.INFER
        methods = (b"POST",) if infer else (b"GET", b"HEAD")
        if request.method not in methods:
            allowed = b", ".join(methods)
            return self.refuse(
                405,
                f"{request.method.decode()} is not allowed here, use {allowed.decode()}",
                b"Allow: %b\r\n" % allowed,
            )
        request.route = resource
        own = resource in (_Resource.MEASUREMENTS, _Resource.SHADOW)
        if own and not self.inference.is_probe(request):
            return self.refuse(403, "only the pod's sidecar may read this; see its /measurements")
        return self._admit_inference(request) if infer else None

    def is_inference(self, request: HttpRequest) -> bool:
        """Return whether a request is for the model's outputs."""
        target = request.target
        return (self._resources.get(target) or self._find(target)) is _Resource.INFER

    def check_size(self, request: HttpRequest, size: int) -> HttpResponse | None:
        """Refuse a body of `size` bytes that is too large."""
        try:
            self.inflight.check_body(size, request.json_length)
        except RequestError as error:
            return self.refuse_inference(request, error)
        return None

    def refuse_bytes(self, request: HttpRequest) -> HttpResponse:
        """Refuse a request since too many bytes are in flight."""
        return self.refuse_inference(request, busy("too many bytes are in flight"))

    def release(self, request: HttpRequest) -> None:
        """Release the request's in-flight bytes and its probe slot."""
        self.inflight.release(request)
        self.inference.release_probe(request)

    def answered(
        self, connection: Connection, request: HttpRequest, response: HttpResponse, began: float
    ) -> None:
        """Count an inference, whose answer is written, and report it where that is wanted."""
        status, received, sent = response.status, request.length, response.length
        ended = self.metrics.answered(status, began, received, sent)
        if self.observers and request.context is not None:
            found = Answered(
                context=request.context,
                protocol="http",
                method=request.method.decode(),
                status=status,
                grpc_status="",
                began=began,
                ended=ended,
                received=received,
                sent=sent,
                client=connection.address,
            )
            for observer in self.observers:
                observer.add(found)

    def observe(self, observer: Observer) -> None:
        """Report the answered inferences of all protocols to `observer`."""
        self.observers.append(observer)
        self.inference.names_requests = True

    def serve(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        """Answer a request whose body is complete; None: the model's thread will answer it."""
        try:
            if request.route is _Resource.INFER:
                self._infer(connection, request)
                return None
            if self._answers_later(connection, request):
                return None
            if request.route is _Resource.SHADOW:
                return self.take_copy(request.target)
            return self._get(request.route)
        except RequestError as error:
            refusal = error.detached()
        except Exception:  # noqa: BLE001 - an internal error fails one request, not the connection
            refusal = unexpected("serving a request")
        if request.route is _Resource.INFER:
            return self.refuse_inference(request, refusal)
        return self.error(refusal)

    def _answers_later(self, connection: Connection, request: HttpRequest) -> bool:
        if self.pod is not None and request.route in _OF_POD:
            request.replaceable = True
            self._answer_for_pod(self.pod, connection, request)
        elif request.route is _Resource.METRICS:
            request.replaceable = True
            self._scrapes.take(connection)
        else:
            return False
        return True

    # Inference.

    def refuse_inference(
        self, request: HttpRequest, error: RequestError, headers: bytes = b""
    ) -> HttpResponse:
        """Build the response to an inference request that is not submitted, and count it."""
        self.inference.count_refusal(request, error)
        return self.error(error, headers)

    def _admit_inference(self, request: HttpRequest) -> HttpResponse | None:
        try:
            self.inference.admit(request)
            if self.inference.outstanding >= self.settings.connections:
                self.inference.check_due(request)
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

    def _infer(
        self, connection: Connection, request: HttpRequest, expanding: float | None = None
    ) -> None:
        """Decode and submit a request.

        `expanding`: seconds that it took to expand its body; None: the body is as it has arrived.
        """
        codec, body = self._codec, request.body
        if body is None:
            raise RequestError(400, "the body is empty; send a JSON object with 'inputs'")
        if request.content_encoding and expanding is None:
            self._expand(connection, request, body)
            return
        self.inference.check_queue(request, body, request.json_length or body.length)
        assert codec is not None  # noqa: S101 - the queue is the model's
        if codec.of_model is not None and self.inference.is_model_request(request):
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
        self.large_requests.decode(
            request,
            body,
            partial(codec.decoder.decode, body, request.json_length),
            partial(self._submit, codec, connection, request, body, expanding),
            partial(self._refuse_decoded, connection, request),
        )

    def _expand(self, connection: Connection, request: HttpRequest, compressed: Body) -> None:
        self.inference.check_queue(request)
        request.body = None

        def take(body: Body, seconds: float) -> None:
            request.body = body
            self._infer(connection, request, seconds)

        refuse = partial(self._refuse_decoded, connection, request)
        self._compressed.expand(request, compressed, take, refuse)

    def _refuse_decoded(
        self, connection: Connection, request: HttpRequest, error: RequestError
    ) -> None:
        """Refuse a request that was decoded or expanded in the thread."""
        response = self.refuse_inference(request, error)
        if request.abandoned:
            self.release(request)
        else:
            connection.respond(response)

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
        chosen = request.of_client and not plan.outside and self.copies.chooses()
        copied = body if chosen else None
        responder = _HttpResponder(self, codec.encoder, connection, request, plan, copied)
        if codec.steps is None:
            self.inference.submit(request, plan, feeds, responder, waited=waited)
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

    # Everything else.

    def _answer_for_pod(
        self, pod: PodResources, connection: Connection, request: HttpRequest
    ) -> None:
        """Answer a request about all processes once they have answered."""
        route = request.route
        assert isinstance(route, _Resource)  # noqa: S101 - it is one of the pod

        async def answer() -> None:
            try:
                response = await pod.answer(_OF_POD[route], request.target)
            except RequestError as error:
                response = self.error(error)
            except Exception:  # noqa: BLE001 - as above
                response = self.error(unexpected("serving a request"))
            if not request.abandoned:
                connection.respond(response)

        task = asyncio.get_running_loop().create_task(answer())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def take_copy(self, target: bytes, elsewhere: int = 0) -> HttpResponse:
        """Answer the sidecar with a request to compare, and choose a share of the next ones.

        Args:
            target: of the sidecar's request; its query has the share.
            elsewhere: copies that other processes have dropped.
        """
        query = urlsplit(target.decode(errors="replace")).query
        try:
            share = float(parse_qs(query)[SHARE_QUERY][0])
        except (KeyError, ValueError):
            share = 0.0
        if not 0 < share <= 1:
            return self.refuse(400, f"?{SHARE_QUERY}= must be above 0 and at most 1")
        self.copies.ask(share)
        return self.copies.take(elsewhere)

    def _exposition(self) -> HttpResponse:
        try:
            text = self.metrics.expose()
        except Exception:  # noqa: BLE001 - an internal error fails requests, not the connections
            return self.error(unexpected("writing the metrics"))
        return HttpResponse(200, figures.CONTENT_TYPE, [text], len(text))

    def _get(self, resource: object) -> HttpResponse:
        inference = self.inference
        if resource is _Resource.LIVE:
            response = _health("live", inference.why_not_live())
        elif resource is _Resource.READY:
            response = _health("ready", inference.why_not_ready())
        elif resource is _Resource.MODEL_READY:
            response = _health("ready", inference.why_not_ready(), name=self._task.model)
        elif resource is _Resource.SERVER:
            response = json_response(200, self._server_metadata)
        else:
            response = json_response(200, self._of_model(resource, inference.require_model()))
        return response

    def _of_model(self, resource: object, model: ServedModel) -> bytes:
        if resource is _Resource.EXECUTION:
            return model.execution.document()
        if resource is _Resource.MEASUREMENTS:
            return self._measurements(model)
        if resource is _Resource.STATISTICS:
            return orjson.dumps({"model_stats": [self.statistics()]})
        codec = self._codec
        assert codec is not None  # noqa: S101 - it is made with the model
        return codec.metadata

    def statistics(self) -> dict[str, Any]:
        """Return the model's statistics, as far as this process knows them."""
        return statistics(self._task, self.metrics)

    def _measurements(self, model: ServedModel) -> bytes:
        requests = self.metrics.requests.items()
        return (
            ServerMeasurements(
                started=self.started,
                memory_bytes=memory.resident_bytes(),
                responses={str(code): count for code, count in requests if count},
                latencies=model.buckets.latencies(),
            )
            .to_json()
            .encode()
        )

    def _find(self, target: bytes) -> _Resource | None:
        """Look up a target that has a query, is percent-encoded or is in absolute form."""
        return self._resources.get(_path(target))

    def _why_unknown(self, target: bytes) -> str:
        path = _path(target).decode(errors="replace")
        parts = path.split("/")
        model, revision = self._task.model, self._task.revision
        if parts[:3] == ["", "v2", "models"] and len(parts) > 3:
            if parts[3] != model:
                return f"model {parts[3][:100]!r} is not served here; this server has {model!r}"
            if parts[4:5] == ["versions"] and parts[5:6] not in ([revision], ["1"]):
                return f"model {model!r} has no such version here; it has {revision!r}"
        return f"{path[:200]} does not exist; see /v2/models/{model}"

    def error(self, error: RequestError, headers: bytes = b"") -> HttpResponse:
        """Build the response to a request that fails with `error`."""
        return self.refuse(
            error.status, error.message, headers + (_RETRY if error.status == 503 else b"")
        )


class _HttpResponder:
    """Answers one inference request over HTTP."""

    __slots__ = ("_app", "_connection", "_copied", "_encoder", "_plan", "_request")

    def __init__(
        self,
        app: ServerApp,
        encoder: Encoder,
        connection: Connection,
        request: HttpRequest,
        plan: InferenceRequest,
        copied: Body | None,
    ) -> None:
        """Create it; `copied` is the body if the request is kept once it is answered."""
        self._app = app
        self._encoder = encoder
        self._connection = connection
        self._request = request
        self._plan = plan
        self._copied = copied

    def succeed(self, job: Job) -> None:
        """Send the outputs."""
        arrays = job.arrays
        assert arrays is not None  # noqa: S101 - it succeeded
        self._encoder.check(self._plan, arrays)
        if self._encoder.is_slow(self._plan, arrays):
            encode = partial(self._encode, job, arrays)
            self._app.codec_thread.submit(self._request, encode, self._encoded)
        else:
            response = self._encode(job, arrays)
            if response.length >= COMPRESSED_FROM and self._request.accept_encoding:
                self._compress(response)
            else:
                self._send(response, response)

    def _encode(self, job: Job, arrays: list[NDArray[Any]]) -> HttpResponse:
        response = self._encoder.encode(self._plan, arrays)
        if job.call.reserved:
            response.headers += _timing(job)
        return response

    def _encoded(self, encoded: asyncio.Future[HttpResponse]) -> None:
        """Send the outputs that were encoded in the thread."""
        if self._request.abandoned:
            encoded.exception()
            self.release()
            return
        try:
            self._compress(encoded.result())
        except RequestError as error:
            self.fail(error)
        except Exception:  # noqa: BLE001 - an internal error fails one request, not the connection
            self.fail(unexpected("encoding a response"))

    def _compress(self, response: HttpResponse) -> None:
        """Send the outputs, compressed if the client wants that."""
        done = partial(self._compressed, response)
        if sent := self._app.compressed_responses.compress(self._request, response, done):
            self._send(sent, response)

    def _compressed(self, plain: HttpResponse, compressed: asyncio.Future[HttpResponse]) -> None:
        """Send the outputs that were compressed in the thread."""
        if self._request.abandoned:
            compressed.exception()
            self.release()
            return
        try:
            self._send(compressed.result(), plain)
        except RequestError as error:
            self.fail(error)
        except Exception:  # noqa: BLE001 - an internal error fails one request, not the connection
            self.fail(unexpected("compressing a response"))

    def _send(self, response: HttpResponse, plain: HttpResponse) -> None:
        """Send a response, which is `plain` before it was compressed."""
        if not self._connection.reserve(response):
            raise busy("too many bytes of responses are in flight")
        self._connection.respond(response)
        if self._copied is not None:
            self._app.copies.add(self._copied, self._request.json_length, plain)

    def fail(self, error: RequestError) -> None:
        """Send an error."""
        self._connection.respond(self._app.error(error))

    def release(self) -> None:
        """Release what is accounted for the request."""
        self._app.release(self._request)

    def abort(self) -> None:
        """Close the connection."""
        self._connection.abort()


def _resources(task: ServeTask) -> dict[bytes, _Resource]:
    found = {
        "/v2": _Resource.SERVER,
        LIVE_PATH: _Resource.LIVE,
        READY_PATH: _Resource.READY,
        "/metrics": _Resource.METRICS,
        "/v2/models/stats": _Resource.STATISTICS,  # of all models
    }
    model = f"/v2/models/{task.model}"
    for base in (model, f"{model}/versions/{task.revision}", f"{model}/versions/1"):
        found[base] = _Resource.MODEL
        found[f"{base}/ready"] = _Resource.MODEL_READY
        found[f"{base}/infer"] = _Resource.INFER
        found[f"{base}/execution"] = _Resource.EXECUTION
        found[f"{base}/stats"] = _Resource.STATISTICS
        found[f"{base}/measurements"] = _Resource.MEASUREMENTS
        found[f"{base}/{RESOURCE}"] = _Resource.SHADOW
    return {path.encode(): resource for path, resource in found.items()}


def _path(target: bytes) -> bytes:
    """Return the decoded path of a request target in origin or absolute form, if it is not too long for one."""
    try:
        path = urlsplit(target).path if not target.startswith(b"/") else target.partition(b"?")[0]
    except ValueError:
        return target
    return unquote_to_bytes(path) if len(path) <= _LONGEST_PATH else path


def _timing(job: Job) -> bytes:
    """Return the `Server-Timing` header (W3C), in milliseconds: waiting, and running if it was alone."""
    queue, compute = job.started - job.queued, job.finished - job.started
    if not job.alone:
        return b"Server-Timing: queue;dur=%.4f\r\n" % (queue * 1e3)
    return b"Server-Timing: queue;dur=%.4f, compute;dur=%.4f\r\n" % (queue * 1e3, compute * 1e3)


def _health(what: str, problem: HealthProblem | None, name: str | None = None) -> HttpResponse:
    document: dict[str, Any] = {} if name is None else {"name": name}
    document[what] = problem is None
    if problem is not None:
        document["error"] = problem.message
        if problem.reason is not None:
            document["reason"] = problem.reason
    return json_response(200 if problem is None else 503, document)


def _model_metadata(task: ServeTask, model: ServedModel) -> bytes:
    def describe(tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
        return [
            {"name": tensor.name, "datatype": tensor.datatype.name, "shape": tensor.shape}
            for tensor in tensors.values()
        ]

    return orjson.dumps(
        {
            "name": task.model,
            "versions": [task.revision],
            "platform": "onnx_onnxv1",
            "inputs": describe(model.client_signature.inputs),
            "outputs": describe(model.client_signature.outputs),
        }
    )
