"""The routes: the Open Inference Protocol's resources, metrics and the execution report.

Runs in the event loop only. Everything that is the same for every request is encoded once.
"""

import asyncio
import enum
import hmac
import logging
import secrets
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

import orjson
from enginewright.contract.measurements import ServerMeasurements
from enginewright.contract.reasons import Reason
from enginewright.contract.task import LIVE_PATH, READY_PATH, ServeTask

import enginewright_runtime.serve.server.metrics as figures
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.serve.exchanges import RESOURCE, SHARE_QUERY
from enginewright_runtime.serve.server import memory
from enginewright_runtime.serve.server.application import ApplicationBase, json_response
from enginewright_runtime.serve.server.connection import Connection
from enginewright_runtime.serve.server.copies import Copies
from enginewright_runtime.serve.server.decode import Decoder
from enginewright_runtime.serve.server.encode import Encoder
from enginewright_runtime.serve.server.health import HealthProblem
from enginewright_runtime.serve.server.message import HttpRequest, HttpResponse
from enginewright_runtime.serve.server.run_errors import Fault
from enginewright_runtime.serve.server.settings import (
    PROBE_SLOTS,
    RETRY_AFTER_SECONDS,
    ServerSettings,
)
from enginewright_runtime.serve.server.startup import ServedModel
from enginewright_runtime.serve.server.watchdog import Watchdog
from enginewright_runtime.serve.server.worker import InferenceWorker, Job
from enginewright_runtime.session.request_errors import OutOfProfileError, RequestError
from enginewright_runtime.session.signature import Tensor

_log: Final = logging.getLogger(__name__)
_RETRY: Final = b"Retry-After: %d\r\n" % RETRY_AFTER_SECONDS
_JSON_BESIDE_TENSORS: Final = 64 * 1024  # bytes allowed for it in the largest binary request
_LONG_RUNS: Final = 15  # warm-up runs that a run may take before it is stopped
_WAITING_COPIES: Final = 1  # of requests, above which copies are refused: clients come first
_STUCK_RUNS: Final = 20  # warm-up runs that a run may take before it counts as stuck


class _Resource(enum.Enum):
    SERVER = enum.auto()
    LIVE = enum.auto()
    READY = enum.auto()
    MODEL = enum.auto()
    MODEL_READY = enum.auto()
    INFER = enum.auto()
    EXECUTION = enum.auto()
    MEASUREMENTS = enum.auto()
    SHADOW = enum.auto()
    METRICS = enum.auto()


@dataclass(frozen=True, slots=True)
class _Serving:
    """A ready model and the objects that serve it."""

    model: ServedModel
    worker: InferenceWorker
    decoder: Decoder
    encoder: Encoder
    metadata: bytes
    stop_after: float
    stuck_after: float
    watchdog: Watchdog


class ServerApp(ApplicationBase):
    """The application behind all connections of one server."""

    def __init__(
        self, task: ServeTask, settings: ServerSettings, version: str, probe_token: str = ""
    ) -> None:
        """Create it; requests with `probe_token` are the sidecar's, "" disables probes."""
        super().__init__(settings)
        self.metrics = figures.Metrics(task.model, task.revision)
        self._started = time.time()
        self._task = task
        self._probe_token = probe_token.encode()
        self._state = "starting"  # shown to users while not ready
        self._serving: _Serving | None = None
        self._body_limit = settings.body_bytes
        self._inflight_limit = settings.inflight_bytes
        self._inflight = 0
        self._probes = 0
        self._copies = Copies()
        self._resources = _resources(task)
        self._server_metadata = orjson.dumps(
            {"name": "enginewright", "version": version, "extensions": ["binary_tensor_data"]}
        )

    def progress(self, state: str) -> None:
        """Set the startup state that is shown until the model is ready."""
        self._state = state

    def serve_model(self, model: ServedModel) -> None:
        """Become ready with `model`."""
        worker = InferenceWorker(
            model.runner.run, model.diagnosis.judge, self._task.max_queue, self._finish
        )
        self.metrics.depth = lambda: worker.depth
        self._body_limit = max(
            self._body_limit, model.signature.largest_request + _JSON_BESIDE_TENSORS
        )
        self._inflight_limit = max(self._inflight_limit, 4 * self._body_limit)
        watchdog = Watchdog(model.diagnosis.run_known_valid, self.settings)
        if model.needs_driver:
            watchdog.listen()
        self._serving = _Serving(
            model,
            worker,
            Decoder(model.signature),
            Encoder(self._task.model, self._task.revision, model.signature),
            _model_metadata(self._task, model),
            max(self.settings.run_seconds, _LONG_RUNS * model.slowest_run),
            max(self.settings.stuck_seconds, _STUCK_RUNS * model.slowest_run),
            watchdog,
        )

    def stop_long_run(self) -> None:
        """Terminate the current run if it takes too long; its request fails, the next one runs."""
        if self._serving is not None:
            self._serving.model.stop_run(self._serving.stop_after)

    def drain(self) -> None:
        """Stop being ready; every response from now on closes its connection."""
        self.draining = True
        self._state = "draining"
        if self._serving is not None:
            self._serving.worker.stop_deferring()

    @property
    def has_model(self) -> bool:
        """Whether the model has become ready."""
        return self._serving is not None

    @property
    def outstanding(self) -> int:
        """Requests submitted to the model and not yet answered."""
        return self._serving.worker.outstanding if self._serving else 0

    # `HttpApplication`, called by `Connection`.

    def refuse(
        self, status: int, message: str, headers: bytes = b"", *, infer: HttpRequest | None = None
    ) -> HttpResponse:
        """Build an error response, and count it if it answers the inference request `infer`."""
        if infer is not None:
            self._count(infer, status)
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
        if own and not self._is_probe(request):
            return self.refuse(403, "only the pod's sidecar may read this; see its /measurements")
        return self._admit_inference(request) if infer else None

    def account(self, request: HttpRequest, size: int) -> HttpResponse | None:
        """Count `size` bytes of body as in flight, or refuse them."""
        total = request.accounted + size
        if total > self._body_limit:
            return self._refuse_large(
                request, f"the body exceeds the limit of {self._body_limit} bytes"
            )
        if request.json_length is None and total > self.settings.json_bytes:
            return self._refuse_large(
                request,
                f"the JSON exceeds {self.settings.json_bytes} bytes;"
                " send tensors in binary (see the binary tensor data extension)",
            )
        if self._inflight + size > self._inflight_limit and not request.reserved:
            return self._refuse_busy(request, "too many bytes of requests are in flight")
        self._inflight += size
        request.accounted = total
        return None

    def release(self, request: HttpRequest) -> None:
        """Release the request's in-flight bytes and its probe slot."""
        self._inflight -= request.accounted
        request.accounted = 0
        if request.reserved:
            request.reserved = False
            self._probes -= 1

    def serve(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        """Answer a request whose body is complete; None: the model's thread will answer it."""
        try:
            if request.route is _Resource.INFER:
                return self._infer(connection, request)
            if request.route is _Resource.SHADOW:
                return self._take_copy(request)
            return self._get(request.route)
        except Exception:  # noqa: BLE001 - an internal error fails one request, not the connection
            infer = request if request.route is _Resource.INFER else None
            return self._unexpected("serving a request", infer=infer)

    # Inference.

    def _admit_inference(self, request: HttpRequest) -> HttpResponse | None:
        if (
            self._is_probe(request) and self._probes < PROBE_SLOTS
        ):  # beyond the limit a probe is treated as an ordinary request
            request.reserved = True
            self._probes += 1
        if self._serving is None:
            return self._refuse_busy(request, f"the model is not ready: {self._state}")
        if len(self.connections) > self.settings.connections and not request.reserved:
            request.keep_alive = False
            return self._refuse_busy(request, "too many connections")
        if request.content_encoding not in {b"", b"identity"}:
            return self.refuse(
                415,
                "compressed requests are not supported; send the body uncompressed",
                b"Accept-Encoding: identity\r\n",
                infer=request,
            )
        return None

    def _is_probe(self, request: HttpRequest) -> bool:
        token = self._probe_token
        return bool(request.probe and token) and hmac.compare_digest(request.probe, token)

    def _infer(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        serving = self._serving
        if serving is None or (serving.worker.full and not request.reserved):
            return self._refuse_busy(
                request, f"the queue is full with {self._task.max_queue} requests"
            )
        if request.copy and serving.worker.depth > _WAITING_COPIES:
            return self._refuse_busy(request, "too many requests wait for one more copy")
        body = request.body
        if body is None:
            return self.refuse(
                400, "the body is empty; send a JSON object with 'inputs'", infer=request
            )
        if request.json_length is not None and request.json_length > body.length:
            return self.refuse(
                400,
                f"Inference-Header-Content-Length is {request.json_length},"
                f" but the body has {body.length} bytes",
                infer=request,
            )
        try:
            plan, feeds = serving.decoder.decode(body, request.json_length)
        except RequestError as error:
            if isinstance(error, OutOfProfileError) and request.of_client:
                self.metrics.out_of_profile += 1
            return self.refuse(error.status, error.message, infer=request)
        request.body = None  # the tensors keep references to the memory they need
        job = Job(connection, request, plan, feeds, time.monotonic())
        if request.of_client and self._copies.chooses():
            job.copied = body
        if plan.timeout:
            job.timer = asyncio.get_running_loop().call_later(plan.timeout, self._expire, job)
        serving.worker.submit(job)
        return None

    def _expire(self, job: Job) -> None:
        """Answer a job whose timeout has expired, unless it is running."""
        job.timer = None
        if job.started or job.answered:
            return
        job.answered = True
        job.feeds = {}
        if job.request.of_client:
            self.metrics.queue.observe(time.monotonic() - job.queued)
        if job.request.abandoned:
            self._count(job.request, figures.CLIENT_CLOSED)
            return
        job.connection.respond(
            self.refuse(
                504,
                f"the request waited longer than its timeout of {job.plan.timeout:g} s",
                infer=job.request,
            )
        )

    def _finish(self, job: Job) -> None:
        """Answer a job that the worker has returned."""
        if job.timer is not None:
            job.timer.cancel()
        if not job.started:
            self._expire_late(job)
            return
        if self._serving is not None:
            # a fault of the client was verified: known-valid inputs still ran
            self._serving.watchdog.record(succeeded=job.error is None or job.fault is Fault.CLIENT)
        if job.request.of_client:
            self._observe(job)
        if job.request.abandoned:
            self._give_up(job)
        elif not job.answered:
            response = self._result(job)
            job.connection.respond(response)
            if job.copied is not None and response.status == 200:
                self._copies.add(job.copied, job.request.json_length, response)

    def _observe(self, job: Job) -> None:
        seconds = job.finished - job.started
        self.metrics.queue.observe(job.started - job.queued)
        self.metrics.compute.observe(seconds)
        if self._serving is None:
            return
        buckets = self._serving.model.buckets
        if job.error is None:
            buckets.add(job.feeds, seconds)
        else:
            buckets.add_untimed(job.feeds)

    def _expire_late(self, job: Job) -> None:
        """Handle a job that was not run: it expired, or its client disconnected."""
        if job.request.abandoned and not job.answered:
            self._give_up(job)
        else:
            self._expire(job)
            self.release(job.request)

    def _give_up(self, job: Job) -> None:
        self._count(job.request, figures.CLIENT_CLOSED)
        self.release(job.request)

    def _result(self, job: Job) -> HttpResponse:
        serving = self._serving
        if job.error is not None:
            return self._failed(job.request, job.error, job.fault)
        if serving is None or job.arrays is None:
            return self._unexpected("finishing a request", infer=job.request)
        try:
            response = serving.encoder.encode(job.plan, job.arrays)
        except RequestError as error:
            return self.refuse(error.status, error.message, infer=job.request)
        except Exception:  # noqa: BLE001 - likewise
            return self._unexpected("encoding a response", infer=job.request)
        if job.request.reserved:
            response.headers += _timing(job)
        self._count(job.request, 200)
        return response

    def _failed(self, request: HttpRequest, error: Exception, fault: Fault | None) -> HttpResponse:
        if fault is Fault.CLIENT:
            return self.refuse(
                400, f"the model rejects these inputs: {plain(str(error))}", infer=request
            )
        reference = secrets.token_hex(4)
        _log.error("the model failed on a request (reference %s): %s", reference, error)
        return self.refuse(
            500,
            f"the model failed on these inputs (reference {reference}): {plain(str(error))}",
            infer=request,
        )

    # Everything else.

    def _take_copy(self, request: HttpRequest) -> HttpResponse:
        """Answer the sidecar with a request to compare, and choose a share of the next ones."""
        query = urlsplit(request.target.decode(errors="replace")).query
        try:
            share = float(parse_qs(query)[SHARE_QUERY][0])
        except (KeyError, ValueError):
            share = 0.0
        if not 0 < share <= 1:
            return self.refuse(400, f"?{SHARE_QUERY}= must be above 0 and at most 1")
        self._copies.ask(share)
        return self._copies.take()

    def _get(self, resource: object) -> HttpResponse:
        serving = self._serving
        if resource is _Resource.LIVE:
            response = _health("live", self.why_not_live())
        elif resource is _Resource.READY:
            response = _health("ready", self._why_not_ready())
        elif resource is _Resource.MODEL_READY:
            response = _health("ready", self._why_not_ready(), name=self._task.model)
        elif resource is _Resource.METRICS:
            text = self.metrics.expose()
            response = HttpResponse(200, figures.CONTENT_TYPE, [text], len(text))
        elif resource is _Resource.SERVER:
            response = json_response(200, self._server_metadata)
        elif serving is None:
            response = self.refuse(503, f"the model is not ready: {self._state}", _RETRY)
        elif resource is _Resource.EXECUTION:
            response = json_response(200, serving.model.execution.document())
        elif resource is _Resource.MEASUREMENTS:
            response = json_response(200, self._measurements(serving))
        else:
            response = json_response(200, serving.metadata)
        return response

    def _measurements(self, serving: _Serving) -> bytes:
        requests = self.metrics.requests.items()
        return (
            ServerMeasurements(
                started=self._started,
                memory_bytes=memory.resident_bytes(),
                responses={str(code): count for code, count in requests if count},
                latencies=serving.model.buckets.latencies(),
            )
            .to_json()
            .encode()
        )

    def why_not_live(self) -> HealthProblem | None:
        """Return why the process should be restarted, None when it works or is still loading."""
        serving = self._serving
        if serving is None:
            return None
        if not serving.worker.alive():
            return HealthProblem("the inference thread has ended", Reason.RUNS_FAIL)
        if serving.worker.busy_seconds(time.monotonic()) > serving.stuck_after:
            return serving.watchdog.stuck(serving.stuck_after)
        return serving.watchdog.why_not_live()

    def _why_not_ready(self) -> HealthProblem | None:
        if self.draining or self._serving is None:
            return HealthProblem(self._state)
        return self.why_not_live() or self._serving.watchdog.why_not_ready()

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

    def _count(self, request: HttpRequest, status: int) -> None:
        if request.of_client:
            self.metrics.requests[status] += 1
        elif not request.reserved:
            self.metrics.copies[status] += 1

    def _refuse_large(self, request: HttpRequest, message: str) -> HttpResponse:
        return self.refuse(413, message, infer=request)

    def _refuse_busy(self, request: HttpRequest, message: str) -> HttpResponse:
        return self.refuse(503, f"{message}; try again later", _RETRY, infer=request)

    def _unexpected(self, doing: str, *, infer: HttpRequest | None) -> HttpResponse:
        reference = secrets.token_hex(4)
        _log.exception("unexpected error while %s (reference %s)", doing, reference)
        return self.refuse(
            500, f"unexpected error; see reference {reference} in the server's log", infer=infer
        )


def _resources(task: ServeTask) -> dict[bytes, _Resource]:
    found = {
        "/v2": _Resource.SERVER,
        LIVE_PATH: _Resource.LIVE,
        READY_PATH: _Resource.READY,
        "/metrics": _Resource.METRICS,
    }
    model = f"/v2/models/{task.model}"
    for base in (model, f"{model}/versions/{task.revision}", f"{model}/versions/1"):
        found[base] = _Resource.MODEL
        found[f"{base}/ready"] = _Resource.MODEL_READY
        found[f"{base}/infer"] = _Resource.INFER
        found[f"{base}/execution"] = _Resource.EXECUTION
        found[f"{base}/measurements"] = _Resource.MEASUREMENTS
        found[f"{base}/{RESOURCE}"] = _Resource.SHADOW
    return {path.encode(): resource for path, resource in found.items()}


def _path(target: bytes) -> bytes:
    """Return the decoded path of a request target in origin or absolute form."""
    try:
        path = urlsplit(target).path if not target.startswith(b"/") else target.partition(b"?")[0]
    except ValueError:
        return target
    return unquote_to_bytes(path)


def _timing(job: Job) -> bytes:
    """Return the `Server-Timing` header (W3C), in milliseconds: waiting and running."""
    queue, compute = job.started - job.queued, job.finished - job.started
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
            "inputs": describe(model.signature.inputs),
            "outputs": describe(model.signature.outputs),
        }
    )
