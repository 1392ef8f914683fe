"""Where the model runs: its thread with a bounded queue, or, if a run is short, the event loop.

What is queued when the thread has finished a run is run together, if batches are worthwhile. A few
milliseconds inside the event loop would stall every other connection, so `turns` takes short runs only,
and only while the thread has nothing to do. Golden inferences that may be deferred wait outside the
queue until no request would be delayed. Counters that both threads use are written by one of them only.
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

from enginewright_runtime.serve.server.batching import BatchLimits
from enginewright_runtime.serve.server.decode import Feeds
from enginewright_runtime.serve.server.idle import Pauses
from enginewright_runtime.serve.server.job import Job, RequestPlan
from enginewright_runtime.serve.server.run_errors import Fault
from enginewright_runtime.serve.server.runs import ModelRuns
from enginewright_runtime.serve.server.turns import Turns

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0  # interval at which abandoned deferred jobs are looked for


class InferenceWorker:
    """Runs jobs in its own thread, one or one batch at a time, and short ones in the event loop."""

    def __init__(
        self,
        run: Callable[[list[str], Feeds], list[NDArray[Any]]],
        judge: Callable[[RequestPlan, Feeds, Exception], Fault],
        capacity: int,
        limits: BatchLimits,
        done: Callable[[Job], None],
    ) -> None:
        """Start the thread.

        Args:
            run: takes output names and feeds, returns the outputs.
            judge: returns who caused the error that a request's feeds raised; called in the thread.
            capacity: jobs that may wait, in addition to the running one.
            limits: of batches, and of runs in the event loop.
            done: called in the event loop for every submitted job.
        """
        self._runs = ModelRuns(run)
        self._limits = limits
        self._turns = Turns(self._runs, limits, done, self._enqueue)
        self._judge = judge
        self._capacity = capacity
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job | None] = SimpleQueue()  # None: check the deferred jobs
        self._held: Job | None = None  # taken from the queue for the next run; used by the thread
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
        return self._submitted - self._taken - len(self._deferred) + len(self._turns)

    @property
    def full(self) -> bool:
        """Whether the queue has no capacity; an idle thread may not have dequeued its next job yet."""
        queued_or_running = self.outstanding - len(self._deferred)
        return self.depth >= self._capacity and queued_or_running > self._capacity

    @property
    def outstanding(self) -> int:
        """Jobs submitted and not yet handed to `done`."""
        return self._submitted - self._returned + len(self._turns)

    def submit(self, job: Job) -> None:
        """Queue `job`, or keep it for an idle moment if it may be deferred."""
        if job.latest:
            self._submitted += 1
            self._deferred.append(job)
            self._queue.put(None)
        elif self._turns.takes(job) and not self._is_busy:
            self._turns.add(job)
        else:
            self._enqueue(job)

    def _enqueue(self, job: Job) -> None:
        self._submitted += 1
        self._queue.put(job)

    @property
    def _is_busy(self) -> bool:
        """Whether the thread runs a job, or has one to run."""
        return bool(self._busy_since) or self._submitted - self._returned > len(self._deferred)

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
            jobs = self._batch(self._take())
            self._taken += len(jobs)
            self._run(jobs)
            self._results.extend(jobs)
            if not self._waking:
                self._waking = True
                try:
                    self._loop.call_soon_threadsafe(self._drain)
                except RuntimeError:  # the loop has ended, the process is exiting
                    return

    def _batch(self, first: Job) -> list[Job]:
        """Return `first` and the queued jobs that run with it, those that nobody waits for included."""
        jobs, most = [first], self._limits.rows
        rows = first.rows
        wait_until = first.queued + self._limits.delay
        while first.rows and rows < most:
            wait = wait_until - time.monotonic()
            try:
                job = self._queue.get(wait > 0, max(wait, 0.0))
            except Empty:
                break
            if job is None:
                continue
            rows += job.rows
            if rows > most or not first.joins(job):
                self._held = job
                break
            jobs.append(job)
        return jobs

    def _run(self, jobs: list[Job]) -> None:
        now = time.monotonic()
        waiting = [each for each in jobs if not (each.is_dropped or each.is_late(now))]
        while waiting:
            count = self._limits.whole([each.rows for each in waiting])
            self._compute(waiting[:count])
            waiting = waiting[count:]

    def _take(self) -> Job:
        """Wait for the next job: from the queue, or a deferred one that may run now."""
        held, self._held = self._held, None
        if held is not None:
            return held
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

    def _compute(self, jobs: list[Job]) -> None:
        self._busy_since = time.monotonic()
        if not self._runs.attempt(jobs) and len(jobs) > 1:
            for job in jobs:  # so that only those fail that would alone
                self._busy_since = time.monotonic()
                self._runs.attempt([job])
        for job in jobs:
            if job.error is not None:
                job.fault = self._diagnose(job, job.error)
        self._busy_since = 0.0
        if jobs[0].latest:
            self._deferred_seconds = jobs[0].finished - jobs[0].started

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
