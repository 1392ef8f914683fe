"""Inference requests of all protocols: health, admission and the queue.

Runs in the event loop only. A protocol decodes its requests before, and encodes the outputs after.
"""

import asyncio
import hmac
import time
from collections.abc import Callable
from typing import Final

from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import OutOfProfileError, RequestError

import enginewright_serving.server.observe.metrics as figures
from enginewright_serving.server.api.serving import RunningModel
from enginewright_serving.server.inference.job import Job, RequestPlan, Responder
from enginewright_serving.server.inference.request_failures import busy, queue_is_full
from enginewright_serving.server.inference.results import InferenceResults
from enginewright_serving.server.inference.worker import InferenceWorker
from enginewright_serving.server.observe.health import HealthProblem
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.protocol.priorities import DEFAULT, may_state_priority
from enginewright_serving.server.startup.prepare import ServedModel
from enginewright_serving.transport.call import InferenceCall
from enginewright_serving.transport.message import Body
from enginewright_serving.transport.request_context import RequestContext

_PROBE_SLOTS: Final = 2  # concurrent requests of the sidecar that bypass the limits
WAITING_COPIES: Final = 1  # of requests, above which copies are refused: clients come first


class InferenceService:
    """The model behind the protocols of one server."""

    def __init__(
        self, task: ServeTask, most: int, metrics: figures.Metrics, probe_token: str
    ) -> None:
        """Admit `most` requests at a time; those with `probe_token` are the sidecar's, "" disables probes."""
        self._task = task
        self._most = most
        self._metrics = metrics
        self._probe_token = probe_token.encode()
        self._shadow_token = (task.shadow_token or "").encode()
        self._state = "starting"  # shown to users while not ready
        self.names_requests = False  # every request gets an ID, since something reports it
        self._draining = False
        self._serving: RunningModel | None = None
        self._probes = 0
        self.results = InferenceResults(metrics, task.request_seconds)

    def progress(self, state: str) -> None:
        """Set the startup state that is shown until the model is ready."""
        self._state = state

    def serve_model(self, model: ServedModel, on_lost_thread: Callable[[], None]) -> None:
        """Become ready with `model`; `on_lost_thread` as in `InferenceWorker`."""
        self._serving = RunningModel(model, self._task, self._metrics, self.results, on_lost_thread)

    def stop_long_run(self) -> None:
        """Terminate runs that take too long (`RunningModel`)."""
        if self._serving is not None:
            self._serving.stop_long_run()

    def drain(self) -> None:
        """Stop being ready, and run deferred requests now."""
        self._draining = True
        self._state = "draining"
        if self._serving is not None:
            self._serving.worker.stop_deferring()

    @property
    def model(self) -> ServedModel | None:
        """The model, once it is ready."""
        return self._serving.model if self._serving else None

    @property
    def outstanding(self) -> int:
        """Requests submitted to the model and not yet answered."""
        return 0 if self._serving is None else self._serving.worker.outstanding

    # Health.

    def why_not_live(self) -> HealthProblem | None:
        """Return why the pod should be restarted, or None while it works or still loads."""
        return None if self._serving is None else self._serving.why_not_live()

    def why_not_ready(self) -> HealthProblem | None:
        """Return why the pod should receive no requests, if so."""
        if self._draining or self._serving is None:
            return HealthProblem(self._state)
        return self._serving.why_not_ready()

    # Requests.

    def is_probe(self, call: InferenceCall) -> bool:
        """Return whether the pod's sidecar sent a request."""
        return _is_token(call.probe, self._probe_token)

    def is_model_request(self, call: InferenceCall) -> bool:
        """Return whether a request has the model's own inputs, not those of its steps."""
        return not call.copy and self.is_probe(call)

    def admit(self, call: InferenceCall) -> None:
        """Admit a request whose body has not arrived, or raise RequestError 503; a probe of the sidecar gets a slot."""
        # beyond the limit a probe is treated as an ordinary request
        if self.is_probe(call) and self._probes < _PROBE_SLOTS:
            call.reserved = True
            self._probes += 1
        self.begin(call)
        self.require_model()
        if self.outstanding >= self._most and not call.reserved:
            raise busy("too many requests are due")

    def begin(self, call: InferenceCall) -> None:
        """Count and report an inference once it is answered or refused."""
        call.copy = _is_token(call.shadow, self._shadow_token)
        call.counted = not call.reserved
        self.name(call)

    def name(self, call: InferenceCall) -> None:
        """Give a request an ID, if something reports it."""
        if self.names_requests:
            call.context = call.context or RequestContext()
            call.context.name()

    def require_model(self) -> ServedModel:
        """Return the model; raise RequestError 503 before it is ready."""
        if self._serving is None:
            raise busy(f"the model is not ready: {self._state}")
        return self._serving.model

    def release_probe(self, call: InferenceCall) -> None:
        """Release the slot of a probe; idempotent."""
        if call.reserved:
            call.reserved = False
            self._probes -= 1

    def check_queue(self, call: InferenceCall, body: Body, head: int) -> None:
        """Refuse a request, whose parameters are in the first `head` bytes, if the queue is full: RequestError 503."""
        assert self._serving is not None  # noqa: S101 - it was admitted
        worker = self._serving.worker
        # whether it is more urgent than waiting ones is known only once it is decoded
        if (
            worker.full
            and not call.reserved
            and not (worker.has_below(DEFAULT) or may_state_priority(body.view()[:head]))
        ):
            raise queue_is_full(self._task.max_queue)
        if call.copy and worker.depth > WAITING_COPIES:
            raise busy("too many requests wait for one more copy")

    def _make_room(self, worker: InferenceWorker, priority: int) -> None:
        """Refuse a waiting request of a lower priority for one of `priority`; raise RequestError 503 if there is none."""
        job = worker.give_up(priority)
        if job is None:
            raise queue_is_full(worker.capacity)
        self.results.refuse(job, "requests of a higher priority fill the queue")

    def submit(
        self,
        call: InferenceCall,
        plan: RequestPlan,
        feeds: Feeds,
        responder: Responder,
        *,
        waited: float = 0.0,
    ) -> None:
        """Queue a decoded request, `waited` seconds of whose timeout have passed, or raise RequestError 503."""
        serving = self._serving
        assert serving is not None  # noqa: S101 - it was admitted
        worker = serving.worker
        job = Job(call, plan, feeds, responder, time.monotonic())
        if worker.full and not call.reserved:
            self._make_room(worker, job.priority)
        if plan.timeout:
            job.deadline -= waited
            left = max(0.0, plan.timeout - waited)
            job.timer = asyncio.get_running_loop().call_later(left, self.results.expire, job)
        elif self._task.request_seconds and not call.reserved:
            job.deadline = job.queued + self._task.request_seconds - waited
            self.results.waiting[job] = None
        try:
            worker.submit(job)
        except BaseException:
            self.results.disown(job)
            raise

    def note_refusal(self, call: InferenceCall, error: RequestError) -> None:
        """Count a client's request whose sizes are outside of the shape profiles."""
        if isinstance(error, OutOfProfileError) and call.of_client:
            self._metrics.out_of_profile += 1


def _is_token(given: bytes, token: bytes) -> bool:
    """Return whether a request has a token, if there is one."""
    return bool(given and token) and hmac.compare_digest(given, token)
