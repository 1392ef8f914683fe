"""Requests of a model with steps: before > the model's queue > after, then the answer.

Runs in the event loop but for the steps themselves. The sidecar's own requests carry the inputs of the model, and
bypass the steps.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.processing.frames import count_bytes
from enginewright_runtime.session.processing.process import StepProcess

import enginewright_serving.server.observe.metrics as figures
from enginewright_serving.server.api.inference import WAITING_COPIES, InferenceService
from enginewright_serving.server.inference.job import Job, RequestPlan, Responder
from enginewright_serving.server.inference.processing.runs import StepRuns
from enginewright_serving.server.inference.processing.served import ServedSteps, StepRoute
from enginewright_serving.server.inference.request_failures import (
    busy,
    refuse_errors,
    report_unexpected,
)
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.protocol.priorities import LOWEST
from enginewright_serving.transport.call import InferenceCall
from enginewright_serving.transport.inflight import InFlight

_T = TypeVar("_T")


def _accept(feeds: Feeds) -> None:
    """Have no limit but the model's own."""


@dataclass(frozen=True, slots=True)
class _ModelPlan:
    """What a request asks of the model itself (`RequestPlan`)."""

    outputs: list[str]
    timeout: float
    asked: RequestPlan  # by the client
    feeds: Feeds  # of the client
    values: Feeds  # for the steps after the model
    route: StepRoute

    @property
    def priority(self) -> int:
        return self.asked.priority

    @property
    def has_run(self) -> bool:
        """Whether a request with the same shapes has run: not known, the steps decide the shapes."""
        return False


class _StepPool:
    """Threads that each use one process at a time."""

    def __init__(self, processes: tuple[StepProcess, ...], capacity: int) -> None:
        self.threads = RequestThreads(
            "steps", len(processes), capacity, "requests", "for a step of spec.processing"
        )
        self._idle: SimpleQueue[StepProcess] = SimpleQueue()
        for process in processes:
            self._idle.put(process)

    def submit(
        self,
        call: InferenceCall,
        do: Callable[[StepProcess], _T],
        done: Callable[[asyncio.Future[_T]], None],
        *,
        priority: int,
        deadline: float = 0.0,
    ) -> None:
        """As `RequestThreads.submit`; `do` gets a process."""
        self.threads.submit(
            call, partial(self._do, do), done, priority=priority, deadline=deadline, gives_way=True
        )

    def _do(self, do: Callable[[StepProcess], _T]) -> _T:
        process = self._idle.get()
        try:
            return do(process)
        finally:
            self._idle.put(process)


class ChainedRequests:
    """Takes decoded requests of clients instead of the model."""

    def __init__(
        self,
        steps: ServedSteps,
        inference: InferenceService,
        inflight: InFlight,
        metrics: figures.Metrics,
        task: ServeTask,
    ) -> None:
        self._steps = steps
        self._pool = _StepPool(steps.processes, task.max_queue)
        self._inference = inference
        self._inflight = inflight
        self._metrics = metrics
        # for the steps, without a timeout; 0 if unlimited
        self._wait_seconds = task.request_seconds
        self._runs = StepRuns(steps, inflight.account.limit)

    def submit(
        self,
        call: InferenceCall,
        plan: RequestPlan,
        feeds: Feeds,
        responder: Responder,
        *,
        waited: float = 0.0,
        check: Callable[[Feeds], None] = _accept,
        refuse: Callable[[RequestError], None],
    ) -> None:
        """Run the steps before the model, then queue the request; `refuse` gets the error if that fails.

        `plan` and `feeds` are of the chain; `waited` seconds of the timeout have passed; `check` may refuse what the
        model would get. Raises RequestError 503 if too many wait, 400 if an image is too large, or none.
        """
        threads = self._pool.threads
        priority = LOWEST if call.copy else plan.priority
        if call.copy and threads.waiting > WAITING_COPIES:
            raise busy("too many requests wait for the steps, for one more copy")
        threads.check_room(priority)
        if images := self._runs.image_bytes(feeds):
            self._inflight.hold(call, call.accounted + images)
        threads.make_room(priority)
        now = time.monotonic()
        wait = plan.timeout - waited if plan.timeout else self._wait_seconds
        self._pool.submit(
            call,
            partial(self._run_before, feeds, check),
            partial(self._on_prepared, call, plan, feeds, responder, waited, now, refuse),
            priority=priority,
            deadline=now + wait if wait else 0.0,
        )

    def _run_before(
        self, feeds: Feeds, check: Callable[[Feeds], None], process: StepProcess
    ) -> tuple[Feeds, Feeds]:
        own, produced = self._runs.before(feeds, process)
        check(own)
        return own, produced

    def _on_prepared(
        self,
        call: InferenceCall,
        asked: RequestPlan,
        feeds: Feeds,
        responder: Responder,
        waited: float,
        began: float,
        refuse: Callable[[RequestError], None],
        done: asyncio.Future[tuple[Feeds, Feeds]],
    ) -> None:
        with refuse_errors(refuse, "running the steps before the model"):
            own, produced = done.result()
            seconds = time.monotonic() - began
            if call.of_client:
                self._metrics.preprocess.observe(seconds)
            self._inflight.hold(call, call.accounted + count_bytes(produced.values()))
            route = self._steps.route(asked.outputs)
            kept = self._runs.select_values(route, feeds, produced)
            plan = _ModelPlan(route.model_outputs, asked.timeout, asked, feeds, kept, route)
            self._inference.submit(call, plan, own, responder, waited=waited + seconds)

    def respond(self, job: Job) -> None:
        """Run the steps after the model on the outputs of `job`, then answer it."""
        plan = job.plan
        if job.error is not None or not isinstance(plan, _ModelPlan):
            self._inference.results.answer(job)
            return
        assert job.arrays is not None  # noqa: S101 - it succeeded
        given = dict(zip(plan.outputs, job.arrays, strict=True))
        if not plan.route.after_outputs:
            self._answer(job, plan, given)
            return
        self._pool.submit(
            job.call,
            partial(self._runs.after, plan.route, plan.values, given),
            partial(self._on_processed, job, plan, given, time.monotonic()),
            priority=job.priority,
        )

    def _on_processed(
        self,
        job: Job,
        plan: _ModelPlan,
        given: Feeds,
        began: float,
        done: asyncio.Future[Feeds],
    ) -> None:
        if job.call.abandoned:
            done.exception()
            job.responder.release()
            return
        try:
            arrays = given | done.result()
        except RequestError as error:
            job.error = error
        except Exception:  # noqa: BLE001 - an internal error fails one request, not the connection
            job.error = report_unexpected("running the steps after the model")
        else:
            if job.call.of_client:
                self._metrics.postprocess.observe(time.monotonic() - began)
            self._answer(job, plan, arrays)
            return
        self._inference.results.answer(job)

    def _answer(self, job: Job, plan: _ModelPlan, arrays: Feeds) -> None:
        own = job.feeds  # the model's
        job.arrays = [arrays[name] if name in arrays else own[name] for name in plan.asked.outputs]
        job.feeds = plan.feeds
        self._inference.results.answer(job)
