"""One thread that runs the model, a bounded queue before it, and the way back to the loop.

The event loop must never wait for a model: one run of a few milliseconds inside it starves every
other connection. Counters that both threads touch are written by one of them only.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from numpy.typing import NDArray

from enginewright_runtime.server.connection import Connection
from enginewright_runtime.server.decode import Feeds
from enginewright_runtime.server.message import Request
from enginewright_runtime.server.plan import Plan

_log: Final = logging.getLogger(__name__)


class Job:
    """One request on its way through the worker. Times are of `time.monotonic()`, 0: not yet."""

    __slots__ = (
        "answered",
        "arrays",
        "connection",
        "deadline",
        "error",
        "feeds",
        "finished",
        "plan",
        "queued",
        "request",
        "started",
        "timer",
    )

    def __init__(
        self, connection: Connection, request: Request, plan: Plan, feeds: Feeds, now: float
    ) -> None:
        self.connection = connection
        self.request = request
        self.plan = plan
        self.feeds = feeds
        self.queued = now
        self.started = 0.0
        self.finished = 0.0
        self.deadline = now + plan.timeout if plan.timeout else 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.answered = False  # with 504; whatever the worker still finds is not wanted
        self.arrays: list[NDArray[Any]] | None = None
        self.error: Exception | None = None


class Worker:
    """Runs jobs one after another in a thread of its own."""

    def __init__(
        self,
        run: Callable[[list[str], Feeds], list[NDArray[Any]]],
        capacity: int,
        done: Callable[[Job], None],
    ) -> None:
        """Start the thread.

        Args:
            run: outputs' names and feeds to outputs.
            capacity: jobs that may wait, besides the one that runs.
            done: called in the event loop for every submitted job, in order.
        """
        self._run_model = run
        self._capacity = capacity
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job] = SimpleQueue()
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
        """Jobs that wait; those given up meanwhile count until their turn comes."""
        return self._submitted - self._taken

    @property
    def full(self) -> bool:
        """Whether one more job would be one too many: an idle thread has yet to take its next."""
        return self.depth >= self._capacity and self.outstanding > self._capacity

    @property
    def outstanding(self) -> int:
        """Jobs submitted and not yet handed to `done`."""
        return self._submitted - self._returned

    def submit(self, job: Job) -> None:
        """Queue `job`."""
        self._submitted += 1
        self._queue.put(job)

    def busy_seconds(self, now: float) -> float:
        """Return for how long the current run has been going on; 0 when idle."""
        since = self._busy_since
        return now - since if since else 0.0

    def alive(self) -> bool:
        """Tell whether the thread still takes jobs."""
        return self._thread.is_alive()

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            self._taken += 1
            now = time.monotonic()
            if not (job.answered or job.request.abandoned or (job.deadline and now > job.deadline)):
                job.started = self._busy_since = now
                self._compute(job)
                self._busy_since = 0.0
                job.finished = time.monotonic()
            self._results.append(job)
            if not self._waking:
                self._waking = True
                try:
                    self._loop.call_soon_threadsafe(self._drain)
                except RuntimeError:  # the loop has ended: so has the process, but for us
                    return

    def _compute(self, job: Job) -> None:
        try:
            job.arrays = self._run_model(job.plan.outputs, job.feeds)
        except Exception as error:  # noqa: BLE001 - whatever a model does, the next request is served
            job.error = error

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
