"""Runs in limited memory, which the outputs of earlier runs share until they are sent.

ONNX Runtime's Python interface does not copy outputs: they stay in the session's arena, and what they leave
there once they are sent is returned to it at the end of the next run. So a run that finds too little memory
is tried once more, after those outputs have been sent.
"""

import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from numpy.typing import NDArray

from enginewright_runtime.core.ort_messages import is_out_of_memory
from enginewright_runtime.serve.server.decode import Feeds
from enginewright_runtime.serve.server.request_failures import busy

_WAIT_SECONDS: Final = 2.0  # for outputs to be sent; clients that read slowly take longer


class RunsInLimitedMemory:
    """Runs of a `ShrinkingSession`; one thread at a time."""

    def __init__(
        self,
        run: Callable[[list[str], Feeds], list[NDArray[Any]]],
        wait_seconds: float = _WAIT_SECONDS,
    ) -> None:
        """Create it; `run` takes output names and feeds, returns the outputs."""
        self._run = run
        self._wait_seconds = wait_seconds
        self._sending: list[weakref.ref[NDArray[Any]]] = []  # outputs, some of which are gone
        # callbacks of weak references may come in the midst of anything: `put` allows that
        self._sent: SimpleQueue[object] = SimpleQueue()

    def run(self, outputs: list[str], feeds: Feeds) -> list[NDArray[Any]]:
        """Return `outputs` for `feeds`.

        Raises:
            RequestError: 503, outputs that are still being sent take the memory.
            Exception: ONNX Runtime's; also if the memory does not suffice without other outputs.
        """
        try:
            return self._remember(self._run(outputs, feeds))
        except Exception as error:
            if not is_out_of_memory(str(error)):
                raise
        is_free = self._wait_until_sent()
        try:
            return self._remember(self._run(outputs, feeds))
        except Exception as error:
            if is_free or not is_out_of_memory(str(error)):
                raise
            why = "outputs of other requests, which are being sent, take the memory that this one needs"
            raise busy(why) from error

    def _remember(self, arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        with suppress(Empty):
            while True:
                self._sent.get_nowait()  # of no use any more
        self._sending = [each for each in self._sending if each() is not None]
        self._sending += [weakref.ref(array, self._sent.put) for array in arrays]
        return arrays

    def _wait_until_sent(self) -> bool:
        """Wait until no output of an earlier run is left; False: that takes too long."""
        end = time.monotonic() + self._wait_seconds
        while any(each() is not None for each in self._sending):
            left = end - time.monotonic()
            if left <= 0:
                return False
            try:
                self._sent.get(timeout=left)
            except Empty:
                continue
        return True
