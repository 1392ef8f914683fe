"""The processes of the steps as the event loop uses them: each request has one of them to itself."""

import asyncio
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from enginewright_runtime.session.processing.process import StepProcess

from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.transport.call import InferenceCall

_T = TypeVar("_T")


class StepPool:
    """Threads that each use one process at a time."""

    def __init__(self, processes: tuple[StepProcess, ...], capacity: int) -> None:
        """Create it; `capacity` requests may wait."""
        self.threads = RequestThreads(
            "steps", len(processes), capacity, "requests", "for a step of spec.processing"
        )
        self._idle: SimpleQueue[StepProcess] = SimpleQueue()
        for each in processes:
            self._idle.put(each)

    def submit(
        self,
        call: InferenceCall,
        do: Callable[[StepProcess], _T],
        done: Callable[[asyncio.Future[_T]], None],
        *,
        priority: int,
        deadline: float = 0.0,
    ) -> None:
        """As `RequestThreads.submit`; `do` gets a process."""
        self.threads.submit(
            call, partial(self._do, do), done, priority=priority, deadline=deadline, gives_way=True
        )

    def _do(self, do: Callable[[StepProcess], _T]) -> _T:
        process = self._idle.get()
        try:
            return do(process)
        finally:
            self._idle.put(process)
