"""Runs the model in threads with a bounded queue, or, if a run is short, in the event loop.

A few milliseconds in the event loop would stall every other connection, so `turns` takes short runs only, while the
threads are idle. There are several threads where concurrent runs are worthwhile. A counter is written by one thread
only.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from enginewright_runtime.core.request_errors import RequestError
from numpy.typing import NDArray

from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.job import Job, JobState, RequestPlan, fail_all
from enginewright_serving.server.inference.job_queue import JobQueue
from enginewright_serving.server.inference.run_errors import Fault
from enginewright_serving.server.inference.runs import ModelRuns
from enginewright_serving.server.inference.turns import Turns
from enginewright_serving.server.protocol.decode import Feeds

_log: Final = logging.getLogger(__name__)
_RETRY_SECONDS: Final = 0.1  # after an error in the queue itself


class InferenceWorker:
    """Runs jobs in its own threads, each one or one batch at a time, and short ones in the event loop."""

    def __init__(
        self,
        run: Callable[[list[str], Feeds], list[NDArray[Any]]],
        judge: Callable[[RequestPlan, Feeds, Exception], Fault],
        capacity: int,
        limits: BatchLimits,
        runs: int,
        done: Callable[[Job], None],
        on_lost_thread: Callable[[], None],
    ) -> None:
        """Start a thread for each of `runs`; `capacity` jobs may wait.

        `judge` returns who caused an error, in a thread; `done` gets every submitted job, in the event loop. No error
        of a request ends a thread; where one ends nevertheless, it calls `on_lost_thread`: its jobs would wait
        for ever.
        """
        self._runs = ModelRuns(run, limits.padding)
        self._limits = limits
        self._turns = Turns(self._runs, limits, done, self._enqueue)
        self._judge = judge
        self.capacity = capacity
        self._done = done
        self._on_lost_thread = on_lost_thread
        self._loop = asyncio.get_running_loop()
        self._queue = JobQueue(limits, runs)
        self._results: deque[Job] = deque()
        self._waking = False
        self._submitted = 0  # written by the loop
        self._returned = 0  # written by the loop
        self._busy_since = [0.0] * runs  # each written by its thread
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name="model", daemon=True)
            for number in range(runs)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def depth(self) -> int:
        """Jobs that wait, abandoned ones included."""
        return len(self._queue) + len(self._turns.waiting)

    @property
    def full(self) -> bool:
        """Whether the queue has no capacity; an idle thread may not have dequeued its next job yet."""
        return self.depth >= self.capacity and (
            # an overdue golden inference is the next job of an idle thread
            self.outstanding - self._queue.patient > self.capacity
        )

    @property
    def outstanding(self) -> int:
        """Jobs submitted and not yet handed to `done`."""
        return self._submitted - self._returned + len(self._turns.waiting)

    def submit(self, job: Job) -> None:
        """Queue `job`, or keep it for an idle moment if it may be deferred."""
        job.holder = self
        if not job.latest and self._turns.takes(job) and not self._is_busy:
            self._turns.add(job)
        else:
            self._enqueue(job)

    def _enqueue(self, job: Job) -> None:
        self._queue.put(job)
        self._submitted += 1  # unless that has failed: a drain would wait for it

    @property
    def _is_busy(self) -> bool:
        """Whether a thread runs a job, or has one to run."""
        return any(self._busy_since) or self._submitted - self._returned > self._queue.deferred

    def has_below(self, priority: int) -> bool:
        """Whether a job of a lower priority waits."""
        return self._queue.has_below(priority) or self._turns.waiting.has_below(priority)

    def give_up(self, priority: int) -> Job | None:
        """Remove and return the newest job of the lowest priority, if that is below `priority`, without `done`."""
        job = self._queue.give_up(priority)
        if job is not None:
            self._returned += 1
        else:
            job = self._turns.waiting.give_up(priority)
        if job is not None:
            job.move(JobState.RECEIVED)
        return job

    def withdraw(self, job: Job) -> bool:
        """Remove a waiting job, deferred or not, without `done`; return False if it no longer waits."""
        is_queued = self._queue.remove(job)
        self._returned += is_queued
        waits = is_queued or self._turns.waiting.discard(job)
        if waits:
            job.move(JobState.RECEIVED)
        return waits

    def stop_deferring(self) -> None:
        """Run deferred jobs without further delay: the server is draining."""
        self._queue.stop_deferring()

    @property
    def runs_in_loop(self) -> bool:
        """Whether the event loop runs short requests itself now."""
        return self._limits.turn_rows > 0 and not self._turns.is_paused(time.monotonic())

    def busy_seconds(self, now: float) -> float:
        """Return how long the longest current run has taken so far, 0 when idle."""
        return max([now - since for since in self._busy_since if since], default=0.0)

    def _work(self, thread: int) -> None:
        try:
            while not self._loop.is_closed():  # else the process is exiting
                self._work_once(thread)
        except BaseException:
            _log.exception("a thread that runs the model ends")
            raise
        finally:
            if not self._loop.is_closed():
                self._on_lost_thread()

    def _work_once(self, thread: int) -> None:
        try:
            jobs = self._queue.take(thread)
        except BaseException:  # noqa: BLE001 - the thread serves the next requests; nothing was taken
            _log.exception("unexpected error while waiting for requests")
            time.sleep(_RETRY_SECONDS)
            return
        try:
            self._run(thread, jobs)
        except BaseException:  # noqa: BLE001 - likewise
            fail_all(jobs, "running requests")
            self._busy_since[thread] = 0.0
        self._queue.finish(thread, jobs)
        for job in jobs:
            job.move(JobState.DONE)
        self._results.extend(jobs)
        if not self._waking:
            self._waking = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._drain)

    def _run(self, thread: int, jobs: list[Job]) -> None:
        waiting = _waiting(jobs)
        while waiting:
            count = self._limits.whole([job.rows for job in waiting])
            self._compute(thread, waiting[:count])
            waiting = _waiting(waiting[count:])  # some may have expired meanwhile

    def _compute(self, thread: int, jobs: list[Job]) -> None:
        self._busy_since[thread] = time.monotonic()
        if not self._runs.attempt(jobs) and len(jobs) > 1:
            for job in jobs:
                job.forget_run()
            for job in jobs:  # so that only those fail that would alone
                self._busy_since[thread] = now = time.monotonic()
                if not (job.is_dropped or job.is_late(now)):
                    self._runs.attempt([job])
        for job in jobs:
            if job.error is not None and not job.answered:
                # several runs find out who is at fault: each has its time before it counts as stuck
                self._busy_since[thread] = time.monotonic()
                job.fault = self._diagnose(job, job.error)
        self._busy_since[thread] = 0.0

    def _diagnose(self, job: Job, error: Exception) -> Fault:
        if isinstance(error, RequestError):  # not of the model: it was not run
            return Fault.SERVER
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
                job.abort()


def _waiting(jobs: list[Job]) -> list[Job]:
    now = time.monotonic()
    return [
        job for job in jobs if not (job.is_dropped or job.is_late(now) or job.error is not None)
    ]
