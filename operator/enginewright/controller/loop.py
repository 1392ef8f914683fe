"""Workers that reconcile a queue's keys and handle all errors; metrics have controller-runtime's names."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from enginewright.controller.logs import log_context
from enginewright.controller.queue import LAZY, QueueClosed, QueueMetrics, WorkQueue
from enginewright.kube.errors import KubeError, Transient

Key = TypeVar("Key", bound=Hashable)

RESYNC: Final = 600.0  # seconds between reconciles of a key without a change, from the cache
STUCK: Final = 600.0  # seconds after which work on one key counts as stuck

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReconcileResult:
    """When to reconcile a key again, as controller-runtime's Result."""

    exists: bool = True  # else the key is never reconciled again
    requeue: bool = False  # soon: this pass has changed the facts, or waits for a change
    requeue_after: float | None = None  # seconds
    # a write was; the others were made, and `requeue_after` is when to try again
    refused: bool = False
    unsure: bool = False  # it may have been made nevertheless


class LoopMetrics:
    """Metrics of all controllers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queues = QueueMetrics(registry)
        self.total = Counter(
            "controller_runtime_reconcile",
            "Reconciles, by controller and result; requeue: the pass wrote something and another one follows.",
            ("controller", "result"),
            registry=registry,
        )
        self.errors = Counter(
            "controller_runtime_reconcile_errors",
            "Reconciles that ended with an error, or in which a write was refused.",
            ("controller",),
            registry=registry,
        )
        self.time = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconcile.",
            ("controller",),
            registry=registry,
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60),
        )
        self.workers = Gauge(
            "controller_runtime_max_concurrent_reconciles",
            "Workers of a controller.",
            ("controller",),
            registry=registry,
        )
        self.active = Gauge(
            "controller_runtime_active_workers",
            "Workers of a controller that are on a key.",
            ("controller",),
            registry=registry,
        )


class Controller(Generic[Key]):
    """One queue, its workers and what they do with a key."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[Key], Awaitable[ReconcileResult]],
        metrics: LoopMetrics,
        *,
        workers: int,
        describe: Callable[[Key], dict[str, str]],
    ) -> None:
        self.queue: WorkQueue[Key] = WorkQueue(name, metrics.queues, jitter=random.random)
        self._name = name
        self._reconcile = reconcile
        self._describe = describe
        self._metrics = metrics
        self._workers = workers
        metrics.workers.labels(name).set(workers)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the workers."""
        self._tasks = [
            asyncio.create_task(self._work(), name=f"{self._name}-{number}")
            for number in range(self._workers)
        ]

    def add(self, key: Key) -> None:
        """Queue a key; dropped before the start, which queues everything."""
        if self._tasks:
            self.queue.add(key)

    def add_lazily(self, key: Key) -> None:
        """Queue a key for a change that others will follow; likewise."""
        if self._tasks:
            self.queue.add_lazily(key)

    async def stop(self, grace: float) -> bool:
        """Accept no more keys, cancel work after `grace` seconds; returns whether nothing was cancelled."""
        self.queue.shut_down()
        if not self._tasks:
            return True
        _, late = await asyncio.wait(self._tasks, timeout=grace)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return not late

    def problem(self) -> str | None:
        """Return why this controller is not healthy, or None."""
        if any(task.done() for task in self._tasks):
            return f"a worker of {self._name} has exited"
        if self.queue.longest_running > STUCK:
            return f"a worker of {self._name} has been on one key for {STUCK:.0f} s"
        return None

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueClosed:
                return
            with (
                log_context(controller=self._name, **self._describe(key)),
                self._metrics.active.labels(self._name).track_inprogress(),
            ):
                try:
                    await self._process(key)
                finally:
                    self.queue.finish(key)

    async def _process(self, key: Key) -> None:
        started = time.monotonic()
        try:
            reconciled = await self._reconcile(key)
        except KubeError as error:
            retry_after = error.retry_after if isinstance(error, Transient) else None
            delay = self.queue.add_rate_limited(key, retry_after or 0.0)
            _logger.error("%s; retrying in %.1f s", error.message, delay)  # noqa: TRY400 - the sentence says it
            result = "error"
        except Exception:
            delay = self.queue.add_rate_limited(key)
            _logger.exception("reconcile failed, a bug; retrying in %.1f s", delay)
            result = "error"
        else:
            result = self._schedule(key, reconciled)
            if reconciled.refused:
                result = "error"
        if result == "error":
            self._metrics.errors.labels(self._name).inc()
        self._metrics.total.labels(self._name, result).inc()
        self._metrics.time.labels(self._name).observe(time.monotonic() - started)

    def _schedule(self, key: Key, reconciled: ReconcileResult) -> str:
        if not reconciled.exists:
            self.queue.forget(key)
            return "success"
        if reconciled.requeue:
            # with what others make of it, and with backoff in case a plan never settles
            self.queue.add_rate_limited(key, LAZY)
            return "requeue"
        self.queue.forget(key)
        resync = RESYNC * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load, no secret
        self.queue.add_after(key, min(reconciled.requeue_after or resync, resync))
        return "success" if reconciled.requeue_after is None else "requeue_after"
