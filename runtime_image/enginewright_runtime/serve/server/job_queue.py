"""The jobs of the model's thread: requests by priority, and golden inferences that may be deferred.

The event loop adds jobs, the model's thread takes them; a lock guards what both use. What is queued when
the thread asks for more is taken together, if batches are worthwhile. Golden inferences that may be
deferred wait until no request would be delayed.
"""

import threading
import time
from collections import deque
from typing import Final

from enginewright_runtime.serve.server.batching import BatchLimits
from enginewright_runtime.serve.server.idle import Pauses
from enginewright_runtime.serve.server.job import Job
from enginewright_runtime.serve.server.waiting import Waiting

_LOOK_SECONDS: Final = 1.0  # interval at which abandoned deferred jobs are looked for


class JobQueue:
    """What waits for the model's thread."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._changed = threading.Condition(threading.Lock())
        self._waiting = Waiting()
        self._deferred: deque[Job] = deque()
        self._deferring = True
        self._deferred_seconds = 0.0  # duration of the last deferred job
        self._pauses = Pauses()

    def __len__(self) -> int:
        """The number of waiting jobs but for deferred ones, including those that nobody waits for."""
        return len(self._waiting)

    @property
    def deferred(self) -> int:
        """The number of deferred jobs."""
        return len(self._deferred)

    # In the event loop.

    def put(self, job: Job) -> None:
        """Queue `job`, or keep it for an idle moment if it may be deferred."""
        with self._changed:
            if job.latest:
                self._deferred.append(job)
            else:
                self._waiting.add(job)
            self._changed.notify()

    def has_below(self, priority: int) -> bool:
        """Whether a job of a lower priority waits."""
        with self._changed:
            return self._waiting.has_below(priority)

    def give_up(self, priority: int) -> Job | None:
        """Remove and return the newest job of the lowest priority; None: none is below `priority`."""
        with self._changed:
            return self._waiting.give_up(priority)

    def stop_deferring(self) -> None:
        """Let deferred jobs run without further delay: the server is draining."""
        with self._changed:
            self._deferring = False
            self._changed.notify()

    # In the model's thread.

    def take(self) -> list[Job]:
        """Wait for the jobs of the next run, those that nobody waits for included."""
        with self._changed:
            while True:
                now = time.monotonic()
                if self._deferred and self._overdue(self._deferred[0], now):
                    return [self._deferred.popleft()]
                if self._waiting:
                    return self._batch()
                self._pauses.begin(now)
                wait = self._deferred_in(now)
                if wait == 0.0:
                    return [self._deferred.popleft()]
                self._changed.wait(wait)

    def ran(self, job: Job) -> None:
        """Take note of the duration of a job if it may be deferred."""
        if job.latest:
            self._deferred_seconds = job.finished - job.started

    def _batch(self) -> list[Job]:
        """Return the first job and those that run with it; the lock is held."""
        waiting, most = self._waiting, self._limits.rows
        waiting.be_fair()
        first = waiting.popleft()
        self._pauses.end(first.queued)
        jobs, rows = [first], first.rows
        wait_until = first.queued + self._limits.delay
        while first.rows and rows < most:
            if not waiting:
                wait = wait_until - time.monotonic() if self._limits.delay else 0.0
                if wait <= 0 or not self._changed.wait(wait):
                    break
                continue
            job = waiting[0]
            rows += job.rows
            if rows > most or not first.joins(job):
                break
            jobs.append(waiting.popleft())
        return jobs

    def _deferred_in(self, now: float) -> float | None:
        """Return the seconds until the deferred jobs are checked again; None: there are none."""
        if not self._deferred:
            return None
        free_at = self._pauses.free_at(now, self._deferred_seconds)
        return max(0.0, min(free_at, now + _LOOK_SECONDS, self._deferred[0].latest) - now)

    def _overdue(self, job: Job, now: float) -> bool:
        return not self._deferring or job.call.abandoned or job.latest <= now
