"""Inference requests of all protocols: admission, queue, timeouts, results and their counts.

Runs in the event loop only. A protocol decodes its requests before, and encodes the outputs after.
"""

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from enginewright.contract.reasons import Reason
from enginewright.contract.task import ServeTask

import enginewright_runtime.serve.server.metrics as figures
from enginewright_runtime.serve.server.account import Peer
from enginewright_runtime.serve.server.call import InferenceCall, Responder
from enginewright_runtime.serve.server.decode import Feeds
from enginewright_runtime.serve.server.device_use import DeviceMetrics, DeviceSampler
from enginewright_runtime.serve.server.health import HealthProblem
from enginewright_runtime.serve.server.job import Job, RequestPlan
from enginewright_runtime.serve.server.message import Body
from enginewright_runtime.serve.server.outside_profiles import OutsideModel
from enginewright_runtime.serve.server.outside_runs import OutsideRuns
from enginewright_runtime.serve.server.priorities import DEFAULT, HIGHEST, may_state_priority
from enginewright_runtime.serve.server.request_context import RequestContext
from enginewright_runtime.serve.server.request_failures import (
    busy,
    failed_run,
    queue_is_full,
    unexpected,
)
from enginewright_runtime.serve.server.run_errors import Fault
from enginewright_runtime.serve.server.settings import PROBE_SLOTS, WAITING_COPIES, ServerSettings
from enginewright_runtime.serve.server.startup import ServedModel
from enginewright_runtime.serve.server.watchdog import Watchdog
from enginewright_runtime.serve.server.worker import InferenceWorker
from enginewright_runtime.session.request_errors import OutOfProfileError, RequestError

_LONG_RUNS: Final = 15  # warm-up runs that a run may take before it is stopped
_STUCK_RUNS: Final = 20  # warm-up runs that a run may take before it counts as stuck


class OthersHealth(Protocol):
    """The health of the other server processes, if there are some."""

    def why_not_live(self) -> HealthProblem | None:
        """Return why the pod's processes should be restarted; None: they should not."""

    def why_not_ready(self) -> HealthProblem | None:
        """Return why the pod should receive no requests; None: it should."""


@dataclass(frozen=True, slots=True)
class _Serving:
    """A ready model and the objects that run it."""

    model: ServedModel
    worker: InferenceWorker
    stop_after: float
    stuck_after: float
    watchdog: Watchdog
    outside: OutsideRuns | None


class InferenceService:
    """The model behind the protocols of one server."""

    def __init__(
        self,
        task: ServeTask,
        settings: ServerSettings,
        metrics: figures.Metrics,
        probe_token: str = "",
    ) -> None:
        """Create it without a model; requests with `probe_token` are the sidecar's, "" disables probes."""
        self._task = task
        self._settings = settings
        self._metrics = metrics
        self._probe_token = probe_token.encode()
        self._state = "starting"  # shown to users while not ready
        self.names_requests = False  # every request gets an ID, since something reports it
        self._draining = False
        self._serving: _Serving | None = None
        self._waiting: dict[Job, None] = {}  # without a timeout of their own, oldest first
        self._probes = 0
        self.others: OthersHealth | None = None  # None: this is the only process
        self._respond: Callable[[Job], None] = self.answer  # takes jobs that have run

    def progress(self, state: str) -> None:
        """Set the startup state that is shown until the model is ready."""
        self._state = state

    def serve_model(self, model: ServedModel) -> None:
        """Become ready with `model`."""
        worker = InferenceWorker(
            model.runner.run,
            model.diagnosis.judge,
            self._task.max_queue,
            model.batches,
            model.concurrent_runs,
            self._finish,
        )
        self._metrics.depth = lambda: worker.depth
        model.execution.count_outside(lambda: self._metrics.outside)
        settings = self._settings
        watchdog = Watchdog(model.diagnosis.run_known_valid, settings)
        if model.needs_driver:
            watchdog.listen()
            sampler = DeviceSampler()
            self._metrics.add(DeviceMetrics(self._task.model, self._task.revision, sampler.latest))
        self._serving = _Serving(
            model,
            worker,
            max(settings.run_seconds, _LONG_RUNS * model.slowest_run),
            max(settings.stuck_seconds, _STUCK_RUNS * model.slowest_run),
            watchdog,
            self._outside(model.outside) if model.outside else None,
        )

    def _outside(self, model: OutsideModel) -> OutsideRuns:
        return OutsideRuns(
            model,
            self._finish_outside,
            max_queue=self._task.max_queue,
            stop_after=max(self._settings.run_seconds, _LONG_RUNS * model.slowest_run),
            stuck_after=max(self._settings.stuck_seconds, _STUCK_RUNS * model.slowest_run),
        )

    def stop_long_run(self) -> None:
        """Terminate runs that take too long; their requests fail, the next ones run.

        What waits for a run outside the shape profiles that cannot be terminated is refused.
        """
        serving = self._serving
        if serving is None:
            return
        serving.model.stop_run(serving.stop_after)
        outside = serving.outside
        if outside is None:
            return
        outside.stop_long_run()
        if why := outside.why_refused():
            while job := outside.worker.give_up(HIGHEST - 1, None):
                self._refuse_waiting(job, why)

    def expire_waiting(self, now: float) -> None:
        """Answer requests without a timeout of their own that have waited too long."""
        for job in [job for job in self._waiting if job.is_late(now)]:
            self._expire(job)

    def drain(self) -> None:
        """Stop being ready, and run deferred requests now."""
        self._draining = True
        self._state = "draining"
        if self._serving is not None:
            self._serving.worker.stop_deferring()

    @property
    def model(self) -> ServedModel | None:
        """The model; None: it is not ready."""
        return self._serving.model if self._serving else None

    @property
    def outstanding(self) -> int:
        """Requests submitted to the model and not yet answered."""
        serving = self._serving
        if serving is None:
            return 0
        outside = serving.outside.worker.outstanding if serving.outside else 0
        return serving.worker.outstanding + outside

    # Health.

    def why_not_live(self) -> HealthProblem | None:
        """Return why the pod should be restarted, None when it works or is still loading."""
        problem = self.own_why_not_live()
        if problem is None and self.others is not None and self._serving is not None:
            return self.others.why_not_live()
        return problem

    def why_not_ready(self) -> HealthProblem | None:
        """Return why the pod should receive no requests; None: it should."""
        problem = self.own_why_not_ready()
        if problem is None and self.others is not None:
            return self.others.why_not_live() or self.others.why_not_ready()
        return problem

    def own_why_not_live(self) -> HealthProblem | None:
        """Return why this process should be restarted; likewise."""
        serving = self._serving
        if serving is None:
            return None
        outside = serving.outside
        if not serving.worker.alive() or (outside is not None and not outside.worker.alive()):
            return HealthProblem("an inference thread has ended", Reason.RUNS_FAIL)
        if serving.worker.busy_seconds(time.monotonic()) > serving.stuck_after:
            return serving.watchdog.stuck(serving.stuck_after)
        return serving.watchdog.why_not_live()

    def own_why_not_ready(self) -> HealthProblem | None:
        """Return why this process should receive no requests; None: it should."""
        if self._draining or self._serving is None:
            return HealthProblem(self._state)
        return self.own_why_not_live() or self._serving.watchdog.why_not_ready()

    # Requests.

    def is_probe(self, call: InferenceCall) -> bool:
        """Return whether the pod's sidecar sent a request."""
        token = self._probe_token
        return bool(call.probe and token) and hmac.compare_digest(call.probe, token)

    def is_model_request(self, call: InferenceCall) -> bool:
        """Return whether a request has the model's own inputs, whatever steps are around it."""
        return not call.copy and self.is_probe(call)

    def admit(self, call: InferenceCall) -> None:
        """Admit a request whose body has not arrived; a probe of the sidecar gets a slot.

        Raises:
            RequestError: 503, the model is not ready.
        """
        # beyond the limit a probe is treated as an ordinary request
        if self.is_probe(call) and self._probes < PROBE_SLOTS:
            call.reserved = True
            self._probes += 1
        self.begin(call)
        self.require_model()

    def begin(self, call: InferenceCall) -> None:
        """Have an inference counted and reported once it is answered, or refused."""
        call.counted = call.of_client
        if self.names_requests:
            call.context = call.context or RequestContext()
            call.context.name()

    def require_model(self) -> ServedModel:
        """Return the model.

        Raises:
            RequestError: 503, it is not ready.
        """
        if self._serving is None:
            raise busy(f"the model is not ready: {self._state}")
        return self._serving.model

    def check_due(self, call: InferenceCall) -> None:
        """Refuse a request as so many are due, unless another client has much more of them.

        Raises:
            RequestError: 503.
        """
        if call.reserved:
            return
        if self._serving is None or not self._serving.worker.has_more_than(call.sender):
            raise busy("too many requests are due")
        call.displaces = True

    def release_probe(self, call: InferenceCall) -> None:
        """Release the slot of a probe; idempotent."""
        if call.reserved:
            call.reserved = False
            self._probes -= 1

    def check_queue(self, call: InferenceCall, body: Body | None = None, head: int = 0) -> None:
        """Refuse a request that the queue has no capacity for, before it is decoded if possible.

        Args:
            call: the request.
            body: of it; None: it is decoded.
            head: bytes of the body, from its beginning, that have its parameters.

        Raises:
            RequestError: 503.
        """
        serving = self._serving
        if serving is None or (serving.worker.full and not call.reserved):
            # known only once it is decoded: whether it is more urgent than what waits
            if serving is None or not (
                serving.worker.has_below(DEFAULT)
                or body is None
                or may_state_priority(body.view()[:head])
                or serving.worker.has_more_than(call.sender)
            ):
                raise queue_is_full(self._task.max_queue)
            call.displaces = True
        if call.copy and serving.worker.depth > WAITING_COPIES:
            raise busy("too many requests wait for one more copy")

    def _make_room(self, worker: InferenceWorker, priority: int, peer: Peer | None) -> None:
        """Refuse a waiting request of a lower priority or of a larger client if no more may wait.

        Args:
            worker: whose request.
            priority: of the request that needs room.
            peer: whose request it is.

        Raises:
            RequestError: 503, there is none.
        """
        if not worker.full and self.outstanding < self._settings.connections:
            return
        job = worker.give_up(priority, peer)
        if job is None:
            raise queue_is_full(worker.capacity)
        if job.priority > priority:
            why = "requests of a higher priority fill the queue"
        else:
            why = "the queue is full, and other clients have fewer requests in it"
        self._refuse_waiting(job, why)

    def _refuse_waiting(self, job: Job, why: str) -> None:
        """Answer a job that a worker has given up."""
        self._stop_timeout(job)
        if job.is_dropped:
            self._expire_late(job)
            return
        if job.call.of_client and not job.plan.outside:
            self._metrics.queue.observe(time.monotonic() - job.queued)
        job.answered = True
        self._fail(job, busy(why))
        job.responder.release()

    def submit(
        self,
        call: InferenceCall,
        plan: RequestPlan,
        feeds: Feeds,
        responder: Responder,
        *,
        waited: float = 0.0,
    ) -> None:
        """Queue a decoded request that was admitted.

        Args:
            call: the request.
            plan: what it asks for.
            feeds: its inputs.
            responder: sends what becomes of it.
            waited: seconds of its timeout that have passed.

        Raises:
            RequestError: 503, the queue is full with requests that are as urgent, of clients with
                few, or the run that this one would wait for hangs.
        """
        serving = self._serving
        assert serving is not None  # noqa: S101 - it was admitted
        worker = serving.worker
        if plan.outside and serving.outside is not None:
            worker = serving.outside.worker
            if why := serving.outside.why_refused():
                raise busy(why)
            if worker.full:  # a long run must not let expired requests fill its small queue
                for dropped in worker.take_dropped():
                    self._stop_timeout(dropped)
                    self._expire_late(dropped)
        job = Job(call, plan, feeds, responder, time.monotonic())
        if call.displaces or worker is not serving.worker:
            self._make_room(worker, job.priority, call.sender)
        if plan.timeout:
            job.deadline -= waited
            left = max(0.0, plan.timeout - waited)
            job.timer = asyncio.get_running_loop().call_later(left, self._expire, job)
        elif self._task.request_seconds and not call.reserved:
            job.deadline = job.queued + self._task.request_seconds - waited
            self._waiting[job] = None
        worker.submit(job)

    def count_refusal(self, call: InferenceCall, error: RequestError) -> None:
        """Count a request that is refused with `error` instead of being submitted."""
        if isinstance(error, OutOfProfileError) and call.of_client:
            self._metrics.out_of_profile += 1
        self._count(call, error.status)

    # Results.

    def _finish(self, job: Job) -> None:
        """Answer a job that the worker has returned."""
        if not self._has_run(job):
            return
        if self._serving is not None:
            # a fault of the client was verified: known-valid inputs still ran
            self._serving.watchdog.record(succeeded=job.error is None or job.fault is Fault.CLIENT)
        if job.call.of_client:
            self._observe(job)
        self._conclude(job)

    def _finish_outside(self, job: Job) -> None:
        """The same for a request outside the shape profiles, which says nothing about the backend."""
        if not self._has_run(job):
            return
        if job.call.of_client:
            self._metrics.outside += 1
        self._conclude(job)

    def _has_run(self, job: Job) -> bool:
        """Whether a job that a worker has returned was run; if not, handle it."""
        self._stop_timeout(job)
        if not job.started:
            self._expire_late(job)
            return False
        context = job.call.context
        if context is not None:
            context.queued, context.started = job.queued, job.started
            context.finished = job.finished
        return True

    def _conclude(self, job: Job) -> None:
        if job.call.abandoned:
            self.give_up(job)
        elif not job.answered:
            self._respond(job)

    def respond_with(self, respond: Callable[[Job], None]) -> None:
        """Pass jobs that have run to `respond` instead of `answer`, which it calls at last."""
        self._respond = respond

    def answer(self, job: Job) -> None:
        """Answer a job with its outputs or its error."""
        if job.error is not None:
            self._fail(job, failed_run(job.error, job.fault))
            return
        counter = self._counter(job.call)  # the answer releases the call
        try:
            job.responder.succeed(job)
        except RequestError as error:
            self._fail(job, error)
        except Exception:  # noqa: BLE001 - an internal error fails one request, not the connection
            self._fail(job, unexpected("answering a request"))
        else:
            counter[200] += 1

    def _fail(self, job: Job, error: RequestError) -> None:
        self._count(job.call, error.status)
        job.responder.fail(error)

    def _expire(self, job: Job) -> None:
        """Answer a job whose timeout has expired, unless it is running."""
        job.timer = None
        self._waiting.pop(job, None)
        if job.started or job.answered:
            return
        job.answered = True
        job.feeds = {}
        call = job.call
        if call.of_client and not job.plan.outside:
            self._metrics.queue.observe(time.monotonic() - job.queued)
        if call.abandoned:
            self._count(call, figures.CLIENT_CLOSED)
            return
        if job.plan.timeout:
            limit = f"its timeout of {job.plan.timeout:g} s"
        else:
            limit = f"{self._task.request_seconds:g} s (spec.serving.requestTimeout)"
        self._fail(job, RequestError(504, f"the request waited longer than {limit}"))

    def _stop_timeout(self, job: Job) -> None:
        """Let no timeout end a job that no longer waits."""
        if job.timer is not None:
            job.timer.cancel()
        self._waiting.pop(job, None)

    def _expire_late(self, job: Job) -> None:
        """Handle a job that was not run: it expired, or its client disconnected."""
        if job.call.abandoned and not job.answered:
            self.give_up(job)
        else:
            self._expire(job)
            job.responder.release()

    def give_up(self, job: Job) -> None:
        """Count and release a job whose client has left."""
        self._count(job.call, figures.CLIENT_CLOSED)
        job.responder.release()

    def _observe(self, job: Job) -> None:
        seconds = job.finished - job.started
        self._metrics.queue.observe(job.started - job.queued)
        self._metrics.compute.observe(seconds)
        if self._serving is None:
            return
        buckets = self._serving.model.buckets
        if job.batch:
            self._metrics.runs.add(job.batch, seconds, succeeded=job.error is None)
        # a run beside others takes longer than those that it would be compared with
        if job.error is None and job.batch and job.alone:
            buckets.add(job.ran, seconds)
        else:
            buckets.add_untimed(job.feeds)

    def _count(self, call: InferenceCall, status: int) -> None:
        self._counter(call)[status] += 1

    def _counter(self, call: InferenceCall) -> Counter[int]:
        if call.of_client:
            return self._metrics.requests
        return Counter() if call.reserved else self._metrics.copies
