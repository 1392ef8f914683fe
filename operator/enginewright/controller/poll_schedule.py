"""When pods are polled: often while something may change, else rarely, at a limited rate. Pure; times are seconds."""

import heapq
from collections.abc import Callable
from typing import Final

FAST: Final = 3.0  # seconds between two polls of a pod where something may change
SWEEP: Final = 30.0  # seconds between two polls of any other pod
RATE: Final = 200.0  # polls per second over all pods; half of it is the sweep's
_BURST_SPAN: Final = 0.1  # seconds: after a pause, as many polls at once as fall into this
_JITTER: Final = 0.2  # of an interval, either way
_MAX_DOUBLINGS: Final = 10


class PollSchedule:
    """A pod is waiting, with a time, or taken, until it is rescheduled."""

    def __init__(self, *, jitter: Callable[[], float]) -> None:
        self._jitter = jitter  # 0 to 1
        self._due: dict[str, float] = {}  # waiting pods
        self._heap: list[tuple[float, str]] = []  # also holds stale times
        self._slot = 0.0  # the next poll's, one every 1/RATE seconds

    def poll_now(self, pod: str, now: float) -> None:
        """Schedule the pod's poll as soon as the rate allows."""
        if pod not in self._due or self._due[pod] > now:
            self._put(pod, now)

    def reschedule(self, pod: str, now: float, *, fast: bool, failures: int, pods: int) -> None:
        """Schedule the next poll of a pod that was taken.

        A pod that does not respond is polled with backoff, up to the sweep's interval, so that a lost
        node does not delay others. `pods` is the number of all pods.
        """
        sweep = sweep_interval(pods)
        wait = min(FAST * 2.0 ** min(failures, _MAX_DOUBLINGS), sweep) if fast else sweep
        self._put(pod, now + wait * (1 + _JITTER * (2 * self._jitter() - 1)))

    def forget(self, pod: str) -> None:
        """Remove the pod from the schedule."""
        self._due.pop(pod, None)

    def take(self, now: float) -> str | None:
        """Return the pod that is overdue longest, or None if none is due."""
        self._drop_stale()
        if not self._heap or self._heap[0][0] > now:
            return None
        if self._slot - _BURST_SPAN > now:
            return None
        self._slot = max(self._slot, now) + 1 / RATE
        _, pod = heapq.heappop(self._heap)
        del self._due[pod]
        return pod

    def next_time(self) -> float | None:
        """Return when `take` may return a pod, or None while no pod waits."""
        self._drop_stale()
        if not self._heap:
            return None
        return max(self._heap[0][0], self._slot - _BURST_SPAN)

    def _put(self, pod: str, when: float) -> None:
        self._due[pod] = when
        heapq.heappush(self._heap, (when, pod))

    def _drop_stale(self) -> None:
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)


def sweep_interval(pods: int) -> float:
    """Return the seconds between two polls of a pod; longer with very many pods."""
    return max(SWEEP, pods / (RATE / 2))
