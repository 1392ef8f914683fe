"""The jobs of the model's threads: requests by priority, and golden inferences that may be deferred.

The event loop adds jobs, and takes back abandoned ones; the model's threads take the others, several at once if
batches are worthwhile. A lock guards the queues, and its holder may read waiting jobs: `Job` states who may change
them. Golden inferences that may be deferred wait until no request would be delayed.

A run beside others takes longer. So that times can be compared, a golden inference runs alone, as at startup, and so
does a request now and then, unless a waiting request would then begin too late.
"""

import math
import threading
import time
from typing import Final

from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.idle import Pauses
from enginewright_serving.server.inference.job import Job, JobState, fail_all, may_add
from enginewright_serving.server.inference.waiting import Waiting

_LOOK_SECONDS: Final = 1.0  # interval at which abandoned deferred jobs are looked for
# After so many runs of requests beside others, and so many seconds, one runs alone. A thread idles meanwhile.
_RUNS_BESIDE: Final = 16
_SECONDS_BESIDE: Final = 0.25
# It waits for the others for up to so many times the last run: one of them may be far longer, or hang.
_PATIENCE: Final = 2.0
_LEAST_PATIENCE: Final = 0.25  # seconds
_MARGIN: Final = 0.01  # seconds before a deadline, after which a run may begin too late for it


class JobQueue:
    """The jobs that wait for the model's threads, and which of these run."""

    def __init__(self, limits: BatchLimits, runs: int) -> None:
        self._limits = limits
        self._shared = runs > 1
        self._woken = runs if limits.delay else 1  # threads, by a job: one of them waits for others
        self._alone: dict[int, bool] = {}  # whether a current run, by thread, has been alone so far
        # the only thread that may begin a run, since it must be alone, or waits for requests to join
        self._only: int | None = None
        self._only_until = math.inf  # when the next waiting request must begin nevertheless
        self._beside = 0  # runs of requests beside others since the last one that was alone
        self._last_alone = 0.0  # when that one ended
        self._last_seconds = 0.0  # duration of the last run
        self._changed = threading.Condition(threading.Lock())
        self._waiting: Waiting[Job] = Waiting()
        self._deferred: Waiting[Job] = Waiting()  # in the order of their arrival
        self._deferring = True
        self._deferred_seconds = 0.0  # duration of the last deferred job
        self._pauses = Pauses()

    def __len__(self) -> int:
        """The number of waiting jobs but for deferred ones, abandoned ones included."""
        return len(self._waiting)

    @property
    def deferred(self) -> int:
        """The number of deferred jobs."""
        return len(self._deferred)

    @property
    def patient(self) -> int:
        """The number of deferred jobs that no thread takes before those that wait."""
        now = time.monotonic()
        with self._changed:
            return sum(not self._is_overdue(job, now) for job in self._deferred)

    # In the event loop.

    def put(self, job: Job) -> None:
        """Queue `job`, or keep it for an idle moment if it may be deferred."""
        with self._changed:
            if job.latest:
                self._deferred.append(job)
            else:
                self._waiting.add(job)
            job.move(JobState.QUEUED)  # once nothing else can fail, so that its owner can answer it
            if self._only is None:
                self._changed.notify(self._woken)
            else:  # each thread may have to end that
                self._only_until = min(self._only_until, self._latest_begin(job))
                self._changed.notify_all()

    def has_below(self, priority: int) -> bool:
        """Whether a job of a lower priority waits."""
        with self._changed:
            return self._waiting.has_below(priority)

    def give_up(self, priority: int) -> Job | None:
        """Remove and return the newest job of the lowest priority, if that is below `priority`."""
        with self._changed:
            return self._waiting.give_up(priority)

    def remove(self, job: Job) -> bool:
        """Remove a job; return False if it no longer waits."""
        with self._changed:
            return (self._deferred if job.latest else self._waiting).discard(job)

    def stop_deferring(self) -> None:
        """Let deferred jobs run without further delay: the server is draining."""
        with self._changed:
            self._deferring = False
            self._changed.notify_all()

    # In the model's threads.

    def take(self, thread: int) -> list[Job]:
        """Claim the jobs of the thread's next run, abandoned ones included; wait while there are none.

        Those that have an error already are not run.
        """
        with self._changed:
            while not isinstance(jobs := self._next(), list):
                self._changed.wait(jobs)
            try:
                self._add_joining(thread, jobs)
                self._wait_to_be_alone(thread, jobs)
            except BaseException:  # noqa: BLE001 - jobs that have left the queue are returned in any case
                fail_all(jobs, "taking requests from the queue")
                if self._only == thread:
                    self._let_all_begin()
            self._alone = dict.fromkeys(self._alone, False)
            self._alone[thread] = not self._alone
            if self._deferred:  # another thread waits for their time instead of this one
                self._changed.notify()
            return jobs

    def finish(self, thread: int, jobs: list[Job]) -> None:
        """Record the end of the run of `jobs`, which `take` has returned."""
        first = jobs[0]
        with self._changed:
            alone = self._alone.pop(thread)
            if first.started:
                self._last_seconds = first.finished - first.started
                if first.latest:
                    self._deferred_seconds = self._last_seconds
            if not self._shared:
                return
            if not alone:
                self._beside += 1
                for job in jobs:
                    job.alone = False
            elif not first.call.reserved:
                self._beside, self._last_alone = 0, time.monotonic()
            if self._only == thread:
                self._let_all_begin()
            elif self._only is not None:
                self._changed.notify_all()

    def _let_only(self, thread: int) -> None:
        self._only = thread
        self._only_until = min(map(self._latest_begin, self._waiting), default=math.inf)

    def _let_all_begin(self) -> None:
        self._only = None
        self._changed.notify_all()

    def _alone_is_due(self, now: float) -> bool:
        return self._beside >= _RUNS_BESIDE and now - self._last_alone >= _SECONDS_BESIDE

    def _next(self) -> list[Job] | float | None:
        """Return the next job, or the seconds after which to ask again, or None to wait until the queue changes."""
        now = time.monotonic()
        if self._only is not None:
            if now < self._only_until:
                return None if self._only_until == math.inf else self._only_until - now
            self._let_all_begin()
        if self._deferred and (overdue := self._find_overdue(now)) is not None:
            return self._undefer(overdue)
        if self._waiting:
            return self._first()
        if self._alone:  # the thread of that run looks next, unless it ends too late
            return self._latest() - now if self._deferred else None
        self._pauses.begin(now)
        wait = self._find_deferred_wait(now)
        return self._undefer(self._deferred[0]) if wait == 0.0 else wait

    def _first(self) -> list[Job]:
        self._waiting.be_fair()
        jobs = [self._waiting[0]]
        self._pauses.end(jobs[0].queued)
        self._waiting.popleft()  # once nothing else can fail, so that no job is lost
        jobs[0].move(JobState.CLAIMED)
        return jobs

    def _add_joining(self, thread: int, jobs: list[Job]) -> None:
        """Move those that run with the first of `jobs` to it; the lock is held."""
        waiting, most, padding = self._waiting, self._limits.rows, self._limits.padding
        first = jobs[0]
        rows = first.rows
        delay = self._limits.delay
        wait_until = self._waits_until(first) if delay else 0.0
        while first.rows and rows < most:
            if not waiting:
                wait = wait_until - time.monotonic() if delay else 0.0
                if wait <= 0:
                    break
                self._let_only(thread)
                self._changed.wait(wait)
                continue
            job = waiting[0]
            rows += job.rows
            if rows > most or not may_add(job, jobs, padding):
                break
            jobs.append(job)
            waiting.popleft()
            job.move(JobState.CLAIMED)
            if delay:
                wait_until = min(wait_until, self._waits_until(job))
        if self._only == thread:
            self._let_all_begin()

    def _waits_until(self, job: Job) -> float:
        """Return the time until which `job` may wait for others, so that it ends before its deadline."""
        return min(job.queued + self._limits.delay, self._latest_begin(job))

    def _latest_begin(self, job: Job) -> float:
        """Return the time until which the run of `job` must begin, so that it ends before its deadline."""
        return job.deadline - self._last_seconds - _MARGIN if job.deadline else math.inf

    def _wait_to_be_alone(self, thread: int, jobs: list[Job]) -> None:
        """Wait until no other run takes place, if that of `jobs` must be alone; the lock is held."""
        now = time.monotonic()
        if not self._shared or not (jobs[0].call.reserved or self._alone_is_due(now)):
            return
        patience = max(_PATIENCE * self._last_seconds, _LEAST_PATIENCE)
        until = min(now + patience, *map(self._latest_begin, jobs))  # none expires for it
        self._let_only(thread)
        while self._only == thread and self._alone:
            left = min(until, self._only_until) - time.monotonic()
            # a client that has left needs no such time; each new request looks again
            if left > 0 and not all(job.is_dropped for job in jobs):
                self._changed.wait(left)
            else:
                self._let_all_begin()
        if self._only != thread:
            self._beside = 0

    def _find_deferred_wait(self, now: float) -> float | None:
        """Return the seconds until the deferred jobs are checked again, if there are any."""
        if not self._deferred:
            return None
        free_at = self._pauses.free_at(now, self._deferred_seconds)
        return max(0.0, min(free_at, now + _LOOK_SECONDS, self._latest()) - now)

    def _latest(self) -> float:
        """Return the time until which the most urgent deferred job may wait."""
        return min([job.latest for job in self._deferred])

    def _find_overdue(self, now: float) -> Job | None:
        """Return a deferred job that waits no longer, if there is one, which may be behind others."""
        for job in self._deferred:
            if self._is_overdue(job, now):
                return job
        return None

    def _is_overdue(self, job: Job, now: float) -> bool:
        return not self._deferring or job.call.abandoned or job.latest <= now

    def _undefer(self, job: Job) -> list[Job]:
        jobs = [job]
        self._deferred.remove(job)  # likewise
        job.move(JobState.CLAIMED)
        return jobs
