"""When a golden inference may run without a request waiting behind it. Pure: the clock is given.

One thread runs the model, so a golden inference that begins just before a request costs that request
its whole time. The pauses between the last requests say when that is likely: clients that ask at a
steady rate leave the same pause each time, one that asks again and again leaves hardly any.
"""

from collections import deque
from typing import Final

_REMEMBERED: Final = 32  # pauses
_MARGIN: Final = 1.5  # times the run's last duration that a pause must have to hold it
_REMEMBERED_SECONDS: Final = 60.0  # older pauses say nothing of what is asked now


class Pauses:
    """The worker's latest pauses between requests; times in seconds."""

    __slots__ = ("_idle_since", "_pauses")

    def __init__(self) -> None:
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)  # begin and length
        self._idle_since: float | None = None  # None: requests wait or are run

    def begin(self, now: float) -> None:
        """Nothing waits; a pause that goes on already does so."""
        if self._idle_since is None:
            self._idle_since = now

    def end(self, now: float) -> None:
        """The next request has come."""
        if self._idle_since is not None:
            self._pauses.append((self._idle_since, now - self._idle_since))
            self._idle_since = None

    def free_at(self, now: float, seconds: float) -> float:
        """Return from when on a run of `seconds` probably delays nobody, nothing waiting by then.

        At once where what is left of every remembered pause would hold the run, which is at its begin if
        ever; else as soon as this pause is longer than any of them: the clients have stopped asking.
        """
        if self._idle_since is None:
            return now
        while self._pauses and self._pauses[0][0] < now - _REMEMBERED_SECONDS:
            self._pauses.popleft()
        lengths = [length for _, length in self._pauses]
        needed = seconds * _MARGIN
        if now - self._idle_since + needed < min(lengths, default=0.0):
            return now
        return self._idle_since + max(lengths, default=0.0) + needed
