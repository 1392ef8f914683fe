"""The processes of the steps as the event loop uses them: a bounded number of requests waits for one."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from enginewright_runtime.serve.server.call import InferenceCall
from enginewright_runtime.serve.server.metrics import CLIENT_CLOSED
from enginewright_runtime.session.processing.process import StepProcess
from enginewright_runtime.session.request_errors import RequestError

_T = TypeVar("_T")


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
        """Requests that wait or run."""
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
            done: called in the event loop.
            deadline: of `time.monotonic()`; 0: none.
        """
        self._waiting += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, partial(self._do, call, work, deadline))
        future.add_done_callback(self._count)
        future.add_done_callback(done)

    def _count(self, _: object) -> None:
        self._waiting -= 1

    def _do(self, call: InferenceCall, work: Callable[[StepProcess], _T], deadline: float) -> _T:
        if call.abandoned:
            raise RequestError(CLIENT_CLOSED, "the client has left")
        if deadline and time.monotonic() > deadline:
            raise RequestError(504, "the request waited longer than its timeout for a step")
        process = self._idle.get()
        try:
            return work(process)
        finally:
            self._idle.put(process)
