"""The thread that runs the model, its bounded queue, and the return of results to the event loop.

Golden inferences that may be deferred wait outside the queue until no request would be delayed. The
event loop must never run the model: a few milliseconds inside it stall every other connection.
Counters that both threads use are written by one of them only.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from enginewright_runtime.serve.server.call import InferenceCall, Responder
from enginewright_runtime.serve.server.decode import Feeds
from enginewright_runtime.serve.server.idle import Pauses
from enginewright_runtime.serve.server.run_errors import Fault

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0  # interval at which abandoned deferred jobs are looked for


class InferencePlan(Protocol):
    """What a request asks for besides its inputs."""

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in the order of the answer."""

    @property
    def timeout(self) -> float:
        """Seconds that it may wait; 0: without limit."""

    @property
    def has_run(self) -> bool:
        """Whether a request with the same shapes has run."""


class Job:
    """One request in the worker. Times are of `time.monotonic()`, 0: not yet."""

    __slots__ = (
        "answered",
        "arrays",
        "call",
        "deadline",
        "error",
        "fault",
        "feeds",
        "finished",
        "latest",
        "plan",
        "queued",
        "responder",
        "started",
        "timer",
    )

    def __init__(
        self,
        call: InferenceCall,
        plan: InferencePlan,
        feeds: Feeds,
        responder: Responder,
        now: float,
    ) -> None:
        self.call = call
        self.plan = plan
        self.feeds = feeds
        self.responder = responder
        self.queued = now
        self.started = 0.0
        self.finished = 0.0
        self.deadline = now + plan.timeout if plan.timeout else 0.0
        # of a deferred job: the time until which it may wait for an idle moment; 0: not deferred
        self.latest = now + call.defer if call.reserved and call.defer else 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.answered = False  # with 504; the worker's result is discarded
        self.arrays: list[NDArray[Any]] | None = None
        self.error: Exception | None = None
        self.fault: Fault | None = None  # who caused `error`


class InferenceWorker:
    """Runs jobs one at a time in its own thread."""

    def __init__(
        self,
        run: Callable[[list[str], Feeds], list[NDArray[Any]]],
        judge: Callable[[InferencePlan, Feeds, Exception], Fault],
        capacity: int,
        done: Callable[[Job], None],
    ) -> None:
        """Start the thread.

        Args:
            run: takes output names and feeds, returns the outputs.
            judge: returns who caused the error that a request's feeds raised; called in the thread.
            capacity: jobs that may wait, in addition to the running one.
            done: called in the event loop for every submitted job, in order.
        """
        self._run_model = run
        self._judge = judge
        self._capacity = capacity
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job | None] = SimpleQueue()  # None: check the deferred jobs
        self._deferred: deque[Job] = deque()
        self._pauses = Pauses()  # used by the thread
        self._deferred_seconds = 0.0  # duration of the last deferred job; likewise
        self._deferring = True
        self._results: deque[Job] = deque()
        self._waking = False
        self._submitted = 0  # written by the loop
        self._taken = 0  # written by the thread
        self._returned = 0  # written by the loop
        self._busy_since = 0.0  # written by the thread
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """Jobs that wait in the queue, including abandoned ones that were not yet dequeued."""
        return self._submitted - self._taken - len(self._deferred)

    @property
    def full(self) -> bool:
        """Whether the queue has no capacity; an idle thread may not have dequeued its next job yet."""
        queued_or_running = self.outstanding - len(self._deferred)
        return self.depth >= self._capacity and queued_or_running > self._capacity

    @property
    def outstanding(self) -> int:
        """Jobs submitted and not yet handed to `done`."""
        return self._submitted - self._returned

    def submit(self, job: Job) -> None:
        """Queue `job`, or keep it for an idle moment if it may be deferred."""
        self._submitted += 1
        if job.latest:
            self._deferred.append(job)
            self._queue.put(None)
        else:
            self._queue.put(job)

    def stop_deferring(self) -> None:
        """Run deferred jobs without further delay: the server is draining."""
        self._deferring = False
        self._queue.put(None)

    def busy_seconds(self, now: float) -> float:
        """Return how long the current run has taken so far; 0 when idle."""
        since = self._busy_since
        return now - since if since else 0.0

    def alive(self) -> bool:
        """Return whether the thread is alive."""
        return self._thread.is_alive()

    def _work(self) -> None:
        while True:
            job = self._take()
            self._taken += 1
            now = time.monotonic()
            if not (job.answered or job.call.abandoned or (job.deadline and now > job.deadline)):
                job.started = self._busy_since = now
                self._compute(job)
                self._busy_since = 0.0
            if job.latest and job.started:
                self._deferred_seconds = job.finished - job.started
            self._results.append(job)
            if not self._waking:
                self._waking = True
                try:
                    self._loop.call_soon_threadsafe(self._drain)
                except RuntimeError:  # the loop has ended, the process is exiting
                    return

    def _take(self) -> Job:
        """Wait for the next job: from the queue, or a deferred one that may run now."""
        while True:
            now = time.monotonic()
            if self._deferred and self._overdue(self._deferred[0], now):
                return self._deferred.popleft()
            wait: float | None = 0.0
            if self._queue.empty():
                self._pauses.begin(now)
                wait = self._deferred_in(now)
                if wait == 0.0:
                    return self._deferred.popleft()
            with contextlib.suppress(Empty):
                if job := self._queue.get(wait != 0.0, wait):
                    self._pauses.end(job.queued)
                    return job

    def _deferred_in(self, now: float) -> float | None:
        """Return the seconds until the deferred jobs are checked again; None: there are none."""
        if not self._deferred:
            return None
        free_at = self._pauses.free_at(now, self._deferred_seconds)
        return max(0.0, min(free_at, now + _LOOK_SECONDS, self._deferred[0].latest) - now)

    def _overdue(self, job: Job, now: float) -> bool:
        return not self._deferring or job.call.abandoned or job.latest <= now

    def _compute(self, job: Job) -> None:
        try:
            job.arrays = self._run_model(job.plan.outputs, job.feeds)
        except Exception as error:  # noqa: BLE001 - after any error the next request is served
            job.error = error
        job.finished = time.monotonic()
        if job.error is not None:
            job.fault = self._diagnose(job, job.error)

    def _diagnose(self, job: Job, error: Exception) -> Fault:
        try:
            return self._judge(job.plan, job.feeds, error)
        except Exception:  # noqa: BLE001 - an internal error must not end the thread
            _log.exception("unexpected error while diagnosing a failed run")
            return Fault.SERVER

    def _drain(self) -> None:
        self._waking = False  # first, so that later results schedule another call
        results = self._results
        while results:
            job = results.popleft()
            self._returned += 1
            try:
                self._done(job)
            except Exception:  # noqa: BLE001 - an internal error ends one connection, not the others
                _log.exception("unexpected error while answering a request")
                job.responder.abort()
