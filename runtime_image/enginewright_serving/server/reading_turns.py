"""Turns of slow clients that are read from, while there are many of them.

If hundreds of them sent at once, the event loop would read from each before it came to any other connection.
So few are watched at a time, each for about a millisecond: what they send meanwhile waits in the kernel.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

WATCHED: Final = 2  # connections: the event loop reads from all of them before it comes to others
_SECONDS: Final = 0.001


class Reader(Protocol):
    """A connection that is read from in turns."""

    def watch(self) -> None:
        """Read what arrives from now on; no-op if the connection is closed."""

    def rest(self) -> bool:
        """Stop reading until the next turn; False: the connection awaits it already, or takes none any more."""


class ReadingTurns:
    """A queue of connections, none of which reads while it waits."""

    def __init__(self) -> None:
        """Begin without one."""
        self._waiting: deque[Reader] = deque()
        self._watched: list[Reader] = []
        self._is_scheduled = False

    def take(self, reader: Reader) -> None:
        """Watch a connection, which has stopped reading, when it is its turn."""
        self._waiting.append(reader)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        try:
            while self._watched:
                each = self._watched.pop()
                if each.rest():
                    self._waiting.append(each)
            for _ in range(min(len(self._waiting), WATCHED)):
                each = self._waiting.popleft()
                self._watched.append(each)
                each.watch()
        finally:
            self._is_scheduled = bool(self._waiting or self._watched)
            if self._is_scheduled:
                asyncio.get_running_loop().call_later(_SECONDS, self._run)
