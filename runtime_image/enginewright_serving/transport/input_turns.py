"""Turns of connections whose input arrives faster than it is processed.

In each turn of the event loop only as many proceed as fit into a fraction of a millisecond, followed by a pause, so
that clients that send thousands of requests at once, or a body in tiny pieces, delay neither other connections nor
the thread that runs the model.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_SECONDS: Final = 0.0005
_PAUSE_SECONDS: Final = 0.001
_MOST: Final = 16  # in one turn of the event loop, since reading afterwards takes time, too


class InputTurns:
    """A queue of what proceeds when it is its turn."""

    def __init__(self, rests_above: int = 0) -> None:
        """Pause while more than `rests_above` wait."""
        self._rests_above = rests_above
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    @property
    def is_crowded(self) -> bool:
        """Whether so many wait that there are pauses."""
        return len(self._waiting) > self._rests_above

    def take(self, proceed: Callable[[], None]) -> None:
        """Call `proceed` in a later turn of the event loop, after those that wait already."""
        self._waiting.append(proceed)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        began = time.monotonic()
        count = 0
        try:
            for _ in range(min(len(self._waiting), _MOST)):
                count += 1
                self._waiting.popleft()()
                if time.monotonic() > began + _SECONDS:
                    break
        finally:
            self._schedule(is_busy=count == _MOST or time.monotonic() > began + _SECONDS)

    def _schedule(self, *, is_busy: bool) -> None:
        self._is_scheduled = bool(self._waiting)
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        if is_busy and self.is_crowded:
            loop.call_later(_PAUSE_SECONDS, self._run)
        else:
            loop.call_soon(self._run)
