"""The thread that decodes and encodes what would block the event loop for more than a millisecond."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from enginewright_runtime.serve.server.call import InferenceCall
from enginewright_runtime.serve.server.metrics import CLIENT_CLOSED
from enginewright_runtime.session.request_errors import RequestError

_T = TypeVar("_T")


class CodecThread:
    """Does one thing after another; used by the event loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "codec")
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """What is not done yet."""
        return self._waiting

    def submit(
        self,
        call: InferenceCall,
        work: Callable[[], _T],
        done: Callable[[asyncio.Future[_T]], None],
    ) -> None:
        """Do `work`, unless the client of `call` leaves before; `done` is called in the event loop."""
        self._waiting += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, partial(_unless_abandoned, call, work))
        future.add_done_callback(self._count)
        future.add_done_callback(done)

    def _count(self, _: object) -> None:
        self._waiting -= 1


def _unless_abandoned(call: InferenceCall, work: Callable[[], _T]) -> _T:
    if call.abandoned:
        raise RequestError(CLIENT_CLOSED, "the client has left")
    return work()
