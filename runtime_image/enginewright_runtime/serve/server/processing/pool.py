"""The processes of the steps as the event loop uses them: a bounded number of requests waits for one."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, TypeVar

from enginewright_runtime.serve.server.call import InferenceCall
from enginewright_runtime.serve.server.metrics import CLIENT_CLOSED
from enginewright_runtime.session.processing.process import StepProcess
from enginewright_runtime.session.request_errors import RequestError

_T = TypeVar("_T")


class _Waiting(Generic[_T]):
    """One request that waits for a process, or uses it."""

    __slots__ = ("_lock", "_work", "call", "done", "timer")

    def __init__(
        self,
        call: InferenceCall,
        work: Callable[[StepProcess], _T],
        done: Callable[[asyncio.Future[_T]], None],
    ) -> None:
        self.call = call
        self.done: Callable[[asyncio.Future[_T]], None] | None = done  # None: it was called
        self.timer: asyncio.TimerHandle | None = None
        self._work: Callable[[StepProcess], _T] | None = work
        self._lock = threading.Lock()

    def take(self) -> Callable[[StepProcess], _T] | None:
        """Return the work, once, to whichever thread asks first: to do it, or to give it up."""
        with self._lock:
            work, self._work = self._work, None
        return work


class StepPool:
    """Threads that each use one process at a time."""

    def __init__(self, processes: tuple[StepProcess, ...]) -> None:
        self._executor = ThreadPoolExecutor(len(processes), "steps")
        self._idle: SimpleQueue[StepProcess] = SimpleQueue()
        for each in processes:
            self._idle.put(each)
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Requests that wait or run; until a thread looks at them, also those that have expired."""
        return self._waiting

    def submit(
        self,
        call: InferenceCall,
        work: Callable[[StepProcess], _T],
        done: Callable[[asyncio.Future[_T]], None],
        *,
        deadline: float = 0.0,
    ) -> None:
        """Do `work` in a thread, unless its client has left or `deadline` has passed before.

        Args:
            call: the request.
            work: gets a process.
            done: called in the event loop; if it has not begun at the deadline, then.
            deadline: of `time.monotonic()`; 0: none.
        """
        self._waiting += 1
        loop = asyncio.get_running_loop()
        waiting = _Waiting(call, work, done)
        future = loop.run_in_executor(self._executor, self._do, waiting)
        future.add_done_callback(lambda ended: self._ended(waiting, ended))
        if deadline:
            waiting.timer = loop.call_later(deadline - time.monotonic(), _expire, waiting)

    def _ended(self, waiting: _Waiting[_T], future: asyncio.Future[_T]) -> None:
        self._waiting -= 1
        if waiting.timer is not None:
            waiting.timer.cancel()
        if waiting.done is not None:
            waiting.done(future)
        else:
            future.exception()

    def _do(self, waiting: _Waiting[_T]) -> _T:
        work = waiting.take()
        if work is None or waiting.call.abandoned:  # None: it has expired, and was answered
            raise RequestError(CLIENT_CLOSED, "the client has left")
        process = self._idle.get()
        try:
            return work(process)
        finally:
            self._idle.put(process)


def _expire(waiting: _Waiting[_T]) -> None:
    """Refuse a request whose deadline has passed, unless its work has begun."""
    if waiting.take() is None or waiting.done is None:
        return
    done, waiting.done = waiting.done, None
    expired: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    expired.set_exception(
        RequestError(504, "the request waited longer than its timeout for a step")
    )
    done(expired)
