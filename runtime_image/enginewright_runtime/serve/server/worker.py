"""One thread that runs the model, a bounded queue before it, and the way back to the loop.

Golden inferences that may be deferred wait beside the queue for a moment in which nobody else does.
The event loop must never wait for a model: one run of a few milliseconds inside it starves every
other connection. Counters that both threads touch are written by one of them only.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from numpy.typing import NDArray

from enginewright_runtime.serve.server.connection import Connection
from enginewright_runtime.serve.server.decode import Feeds
from enginewright_runtime.serve.server.idle import Pauses
from enginewright_runtime.serve.server.inference_request import InferenceRequest
from enginewright_runtime.serve.server.message import HttpRequest
from enginewright_runtime.serve.server.run_errors import Fault

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0  # how often the thread looks whether a deferred job was given up


class Job:
    """One request on its way through the worker. Times are of `time.monotonic()`, 0: not yet."""

    __slots__ = (
        "answered",
        "arrays",
        "connection",
        "deadline",
        "error",
        "fault",
        "feeds",
        "finished",
        "latest",
        "plan",
        "queued",
        "request",
        "started",
        "timer",
    )

    def __init__(
        self,
        connection: Connection,
        request: HttpRequest,
        plan: InferenceRequest,
        feeds: Feeds,
        now: float,
    ) -> None:
        self.connection = connection
        self.request = request
        self.plan = plan
        self.feeds = feeds
        self.queued = now
        self.started = 0.0
        self.finished = 0.0
        self.deadline = now + plan.timeout if plan.timeout else 0.0
        # 0: in its turn; else it waits until then at most for a moment in which it delays nobody
        self.latest = now + request.defer if request.reserved and request.defer else 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.answered = False  # with 504; whatever the worker still finds is not wanted
        self.arrays: list[NDArray[Any]] | None = None
        self.error: Exception | None = None
        self.fault: Fault | None = None  # whose `error` is


class InferenceWorker:
    """Runs jobs one after another in a thread of its own."""

    def __init__(
        self,
        run: Callable[[list[str], Feeds], list[NDArray[Any]]],
        judge: Callable[[InferenceRequest, Feeds, Exception], Fault],
        capacity: int,
        done: Callable[[Job], None],
    ) -> None:
        """Start the thread.

        Args:
            run: outputs' names and feeds to outputs.
            judge: whose fault it is that a plan's feeds raised an error; called in the thread.
            capacity: jobs that may wait, besides the one that runs.
            done: called in the event loop for every submitted job, in order.
        """
        self._run_model = run
        self._judge = judge
        self._capacity = capacity
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job | None] = SimpleQueue()  # None: look at the deferred ones
        self._deferred: deque[Job] = deque()
        self._pauses = Pauses()  # touched by the thread
        self._deferred_seconds = 0.0  # that the last deferred job took; likewise
        self._hurried = False
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
        """Jobs that wait in the queue; those given up meanwhile count until their turn comes."""
        return self._submitted - self._taken - len(self._deferred)

    @property
    def full(self) -> bool:
        """Whether one more job would be one too many: an idle thread has yet to take its next."""
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

    def hurry(self) -> None:
        """Defer nothing any more: the server is to end."""
        self._hurried = True
        self._queue.put(None)

    def busy_seconds(self, now: float) -> float:
        """Return for how long the current run has been going on; 0 when idle."""
        since = self._busy_since
        return now - since if since else 0.0

    def alive(self) -> bool:
        """Tell whether the thread still takes jobs."""
        return self._thread.is_alive()

    def _work(self) -> None:
        while True:
            job = self._take()
            self._taken += 1
            now = time.monotonic()
            if not (job.answered or job.request.abandoned or (job.deadline and now > job.deadline)):
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
                except RuntimeError:  # the loop has ended: so has the process, but for us
                    return

    def _take(self) -> Job:
        """Wait for the next job: one of the queue, or a deferred one whose moment has come."""
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
        """Return in how many seconds the idle thread is to look at the deferred jobs; None: there are none."""
        if not self._deferred:
            return None
        free_at = self._pauses.free_at(now, self._deferred_seconds)
        return max(0.0, min(free_at, now + _LOOK_SECONDS, self._deferred[0].latest) - now)

    def _overdue(self, job: Job, now: float) -> bool:
        return self._hurried or job.request.abandoned or job.latest <= now

    def _compute(self, job: Job) -> None:
        try:
            job.arrays = self._run_model(job.plan.outputs, job.feeds)
        except Exception as error:  # noqa: BLE001 - whatever a model does, the next request is served
            job.error = error
        job.finished = time.monotonic()
        if job.error is not None:
            job.fault = self._diagnose(job, job.error)

    def _diagnose(self, job: Job, error: Exception) -> Fault:
        try:
            return self._judge(job.plan, job.feeds, error)
        except Exception:  # noqa: BLE001 - a bug of ours must not end the thread
            _log.exception("unexpected error while judging a failed run")
            return Fault.SERVER

    def _drain(self) -> None:
        self._waking = False  # before looking: what comes later wakes us again
        results = self._results
        while results:
            job = results.popleft()
            self._returned += 1
            try:
                self._done(job)
            except Exception:  # noqa: BLE001 - a bug of ours costs one connection, not those after it
                _log.exception("unexpected error while answering a request")
                job.connection.abort()
