"""How fast a body arrives or a response is read. Pure: the clock is given.

A limit on the whole transfer would let a client that begins fast, or announces much, pause for long. A limit on each
window would end a client that holds the rate in steps, as its kernel acknowledges what it has read.
"""

from typing import Final

from enginewright_serving.transport.settings import TransportSettings

_RATE_SECONDS: Final = 1.0  # before which a rate says nothing


class TransferPace:
    """The progress of one transfer. Times in seconds, amounts in bytes, rates in bytes per second."""

    __slots__ = ("_at", "_left", "_minimum", "_most", "_moved", "_newer", "_older", "rate")

    def __init__(self, now: float, settings: TransportSettings) -> None:
        self._minimum = settings.transfer_rate
        # what it may be behind; what is faster than the rate earns no more
        self._left = self._most = settings.transfer_window * settings.transfer_rate
        self._at, self._moved = now, 0
        self._older = self._newer = (now, 0)
        self.rate = float("inf")  # within the last one or two seconds, once that is known

    def update(self, now: float, moved: int, sharing: int = 1) -> bool:
        """Record the total `moved`; return False if one of `sharing` is a whole window behind."""
        since, before = self._older
        if now - self._newer[0] >= _RATE_SECONDS:
            self._older, self._newer = self._newer, (now, moved)
        if now - since >= _RATE_SECONDS:
            self.rate = (moved - before) / (now - since)
        gained = (moved - self._moved) * sharing - (now - self._at) * self._minimum
        self._at, self._moved = now, moved
        self._left = min(self._left + gained, self._most)
        return self._left > 0
