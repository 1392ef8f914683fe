"""Work queue with client-go's semantics (k8s.io/client-go/util/workqueue).

A key that is queued already is not queued twice; a key that changes while it is being worked on
is queued again when that work is done, so no two workers ever hold one key and no change is lost.

Unlike client-go's, it leaves a key alone for a moment after work on it: one action of a controller or a kubelet
comes as a burst of changes, and our own writes come back among them. A key that has rested is worked on at once,
and none waits longer than that, however many changes there are. A change that others will follow, as of a pod that
starts, waits for them a little longer.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Key = TypeVar("Key", bound=Hashable)

_BASE_DELAY: Final = 0.1  # seconds, doubled at each failure
_MAX_DELAY: Final = 300.0
REST: Final = 0.2  # seconds from the end of work on a key to the next
LAZY: Final = 0.5  # seconds for which a change waits for those that follow it
_BUCKETS: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)


class QueueClosed(Exception):  # noqa: N818 - the end of work, not an error
    """The queue was shut down and is empty."""


class QueueMetrics:
    """Metrics of all queues, under client-go's names; `name` is the queue's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("name",)
        self.depth = Gauge(
            "workqueue_depth", "Current number of keys in the queue.", labels, registry=registry
        )
        self.adds = Counter("workqueue_adds", "Keys added to the queue.", labels, registry=registry)
        self.retries = Counter(
            "workqueue_retries", "Keys added again after an error.", labels, registry=registry
        )
        self.wait = Histogram(
            "workqueue_queue_duration_seconds",
            "Time that keys waited in the queue for a worker.",
            labels,
            registry=registry,
            buckets=_BUCKETS,
        )
        self.work = Histogram(
            "workqueue_work_duration_seconds",
            "Time that processing a key took.",
            labels,
            registry=registry,
            buckets=_BUCKETS,
        )
        self.unfinished = Gauge(
            "workqueue_unfinished_work_seconds",
            "Sum of the ages of all work in progress; it keeps growing while workers are stuck.",
            labels,
            registry=registry,
        )
        self.longest = Gauge(
            "workqueue_longest_running_processor_seconds",
            "Age of the oldest work in progress.",
            labels,
            registry=registry,
        )


class WorkQueue(Generic[Key]):
    """Keys for workers of one event loop; times are the loop's, so tests can turn its clock."""

    def __init__(self, name: str, metrics: QueueMetrics, *, jitter: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self._jitter = jitter
        self._waiting: deque[Key] = deque()
        self._dirty: set[Key] = set()
        self._processing: dict[Key, float] = {}  # started when
        self._resting: dict[Key, asyncio.TimerHandle] = {}
        self._added: dict[Key, float] = {}  # queued when
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._lazy: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._adds = metrics.adds.labels(name)
        self._retries = metrics.retries.labels(name)
        self._wait = metrics.wait.labels(name)
        self._work = metrics.work.labels(name)
        metrics.depth.labels(name).set_function(lambda: len(self._waiting))
        metrics.unfinished.labels(name).set_function(self._sum_unfinished)
        metrics.longest.labels(name).set_function(lambda: self.longest_running)

    def add(self, key: Key) -> None:
        """Queue `key` unless it is queued: once it has rested, and lazily while it is worked on, which is what changes it."""
        if key in self._processing:
            self.add_lazily(key)
            return
        if self._closed or key in self._dirty:
            return
        self._dirty.add(key)
        self._adds.inc()
        self._added[key] = self._loop.time()
        if key not in self._resting:
            self._waiting.append(key)
            self._wake()

    def add_lazily(self, key: Key) -> None:
        """Queue `key` within `LAZY` seconds, unless it is worked on before for another reason."""
        if not (self._closed or key in self._dirty or key in self._lazy):
            self._lazy[key] = self._loop.call_later(LAZY, self._due_lazily, key)

    def add_after(self, key: Key, delay: float) -> None:
        """Queue `key` in `delay` seconds; of several delays for one key the earliest counts."""
        if self._closed:
            return
        if delay <= 0:
            self.add(key)
            return
        when = self._loop.time() + delay
        if pending := self._later.get(key):
            if pending.when() <= when:
                return
            pending.cancel()
        self._later[key] = self._loop.call_at(when, self._due, key)

    def add_rate_limited(self, key: Key, at_least: float = 0.0) -> float:
        """Queue `key` again after a failure, later each time; returns the seconds until then.

        Between 50% and 100% of 0.1 s doubled per failure, at most five minutes; never less than
        `at_least`, which comes from a server's Retry-After. A failure while the next attempt is due sooner, as
        after a watch event, counts no more than the one before.
        """
        failures, now = self._failures.get(key, 0), self._loop.time()
        delay = min(_BASE_DELAY * 2.0 ** min(failures, 30), _MAX_DELAY)
        delay = max(delay * (0.5 + 0.5 * self._jitter()), at_least)
        if (pending := self._later.get(key)) and pending.when() <= now + delay:
            return pending.when() - now
        self._failures[key] = failures + 1
        self._retries.inc()
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """Forget the delays of `key`, on which work was done just now: its next failure starts at the shortest one."""
        self._failures.pop(key, None)
        if pending := self._later.pop(key, None):
            pending.cancel()

    async def get(self) -> Key:
        """Take the next key, which stays taken until `done`; QueueClosed after a shutdown."""
        while not self._waiting:
            if self._closed:
                raise QueueClosed
            getter: asyncio.Future[None] = self._loop.create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                # The wake-up was for this getter, which is leaving: pass it on.
                if getter.done() and not getter.cancelled() and self._waiting:
                    self._wake()
                raise
        key = self._waiting.popleft()
        self._dirty.discard(key)
        if lazy := self._lazy.pop(key, None):
            lazy.cancel()
        now = self._loop.time()
        self._wait.observe(now - self._added.pop(key, now))
        self._processing[key] = now
        return key

    def finish(self, key: Key) -> None:
        """End the work on `key`; once it has rested, queue it again if it was added meanwhile."""
        now = self._loop.time()
        self._work.observe(now - self._processing.pop(key, now))
        if not self._closed:
            self._resting[key] = self._loop.call_at(now + REST, self._end_rest, key)

    def shut_down(self) -> None:
        """Accept no more keys and drop waiting ones: a level-triggered loop finds them again."""
        self._closed = True
        for timers in (self._later, self._lazy, self._resting):
            for timer in timers.values():
                timer.cancel()
            timers.clear()
        self._waiting.clear()
        self._dirty.clear()
        while self._getters:
            self._wake()

    @property
    def longest_running(self) -> float:
        """Seconds since the oldest work in progress began; 0 without any."""
        now = self._loop.time()
        return max((now - started for started in self._processing.values()), default=0.0)

    def _due(self, key: Key) -> None:
        self._later.pop(key, None)
        self.add(key)

    def _due_lazily(self, key: Key) -> None:
        del self._lazy[key]
        self.add(key)

    def _end_rest(self, key: Key) -> None:
        del self._resting[key]
        if key in self._dirty:
            self._waiting.append(key)
            self._wake()

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _sum_unfinished(self) -> float:
        now = self._loop.time()
        return sum(now - started for started in self._processing.values())
