"""Requests that wait for the model, in the order of their priorities. Pure.

Within a priority the oldest comes first. Now and then the one that has waited longest comes first: otherwise a client
that keeps the model busy with urgent requests would stop all others.
"""

from bisect import bisect_right, insort_right
from collections import deque
from typing import Final, Protocol, TypeVar

from enginewright_serving.transport.call import InferenceCall

FAIR_RUNS: Final = 8  # one of so many runs takes the request that has waited longest


class Waits(Protocol):
    """A waiting request."""

    @property
    def call(self) -> InferenceCall:
        """The request."""

    @property
    def priority(self) -> int:
        """Its priority; 1 is the highest."""

    @property
    def queued(self) -> float:
        """Since when, as `time.monotonic()`."""


_W = TypeVar("_W", bound=Waits)


class Waiting(deque[_W]):
    """A queue whose first job is the next one, and whose last one is given up first."""

    __slots__ = ("_passed",)

    def __init__(self) -> None:
        super().__init__()
        self._passed = 0  # runs that took a job before those of lower priorities

    def add(self, job: _W) -> None:
        """Insert `job` after those of its priority and before those of lower ones."""
        if self and self[-1].priority > job.priority:
            insort_right(self, job, key=_priority)
        else:
            self.append(job)

    def be_fair(self) -> None:
        """Before a run, move the job that has waited longest to the front, if it is its turn."""
        if self[0].priority == self[-1].priority:
            return
        self._passed += 1
        if self._passed < FAIR_RUNS:
            return
        self._passed = 0
        oldest = at = 0
        while at < len(self):  # the oldest of each priority
            if self[at].queued < self[oldest].queued:
                oldest = at
            at = bisect_right(self, self[at].priority, at, key=_priority)
        job = self[oldest]
        del self[oldest]
        self.appendleft(job)

    def remove_abandoned(self) -> list[_W]:
        """Remove and return the jobs whose clients have left, in their order."""
        abandoned = [job for job in self if job.call.abandoned]
        if abandoned:
            kept = [job for job in self if not job.call.abandoned]
            self.clear()
            self.extend(kept)
        return abandoned

    def discard(self, job: _W) -> bool:
        """Remove `job`; return False if it is not here."""
        try:
            self.remove(job)
        except ValueError:
            return False
        return True

    def has_below(self, priority: int) -> bool:
        """Whether a job of a lower priority waits."""
        return bool(self) and self[-1].priority > priority

    def give_up(self, priority: int) -> _W | None:
        """Remove and return the newest job of the lowest priority, if that is below `priority`."""
        return self.pop() if self.has_below(priority) else None


def _priority(job: Waits) -> int:
    return job.priority
