"""How fast a body arrives or a response is read, over a window. Pure: the clock is given.

A limit on the whole transfer would let a client that begins fast, or announces much, pause for long.
"""

from typing import Final

from enginewright_serving.transport.settings import TransportSettings

_RATE_SECONDS: Final = 1.0  # before which a rate says nothing


class _Window:
    """The amount transferred within about the last `seconds`."""

    __slots__ = ("_newer", "_older", "_seconds")

    def __init__(self, now: float, seconds: float) -> None:
        self._seconds = seconds
        self._older = self._newer = (now, 0)

    def update(self, now: float, moved: int) -> tuple[float, int]:
        """Return a time, up to twice the window, and how much was transferred in it."""
        since, before = self._older
        if now - self._newer[0] >= self._seconds:
            self._older, self._newer = self._newer, (now, moved)
        return now - since, moved - before


class TransferPace:
    """The progress of one transfer. Times in seconds, amounts in bytes, rates in bytes per second."""

    __slots__ = ("_judged", "_minimum", "_recent", "_window", "rate")

    def __init__(self, now: float, settings: TransportSettings) -> None:
        self._window = settings.transfer_window  # in each of which it must keep this rate
        self._minimum = settings.transfer_rate
        self._judged = _Window(now, self._window / 2)
        self._recent = _Window(now, _RATE_SECONDS)
        self.rate = float("inf")  # within the last one or two seconds, once that is known

    def update(self, now: float, moved: int, sharing: int = 1) -> bool:
        """Record the total `moved`; return False if it is too little in the last window for one of `sharing`."""
        seconds, amount = self._recent.update(now, moved)
        if seconds >= _RATE_SECONDS:
            self.rate = amount / seconds
        seconds, amount = self._judged.update(now, moved)
        return seconds < self._window or amount * sharing >= self._minimum * seconds
