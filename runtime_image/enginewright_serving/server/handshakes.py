"""TLS handshakes that have begun: how many there may be, and in which order they are continued.

Until a client's first record is complete, its handshake is a few bytes. From then on it takes a hundred
kilobytes, so that few may be in progress; and a step of it takes up to a millisecond of computing, so that
one is made in each turn of the event loop, and a flood does not delay what is accepted. The newest comes first:
in a flood, the older ones have often been given up by their clients.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from enginewright_serving.server.eviction import Eviction, OpenConnection

IN_PROGRESS: Final = 256


class Handshake(OpenConnection, Protocol):
    """A handshake that has received something."""

    def shake_hands(self) -> None:
        """Continue it with what has arrived."""


class Handshakes:
    """Those of one port."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create it; `clock` is `Handshake.waits`' one."""
        self._begun: set[Handshake] = set()
        self._eviction = Eviction(clock, newest=IN_PROGRESS // 8)
        self._waiting: dict[Handshake, None] = {}
        self._scheduled = False

    def take(self, handshake: Handshake) -> None:
        """Continue a handshake when it is its turn; close another one if too many are in progress."""
        if handshake not in self._begun:
            if len(self._begun) >= IN_PROGRESS:
                self._eviction.close_one(self._begun)
            self._begun.add(handshake)
        self._waiting[handshake] = None
        self._schedule()

    def leave(self, handshake: Handshake) -> None:
        """Forget a handshake; idempotent."""
        self._begun.discard(handshake)
        self._waiting.pop(handshake, None)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._waiting:
            handshake, _ = self._waiting.popitem()
            handshake.shake_hands()
        if self._waiting:
            self._schedule()
