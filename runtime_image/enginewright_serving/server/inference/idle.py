"""When a golden inference can run without delaying a request. Pure: the clock is given.

A golden inference that starts just before a request delays it by its full duration. The pauses between recent
requests predict that: clients with a steady rate leave pauses of equal length, a client that sends the next request
immediately leaves almost none.
"""

from collections import deque
from typing import Final

_MOST_PAUSES: Final = 32
_MARGIN: Final = 1.5  # a run needs a pause of this many times its last duration
_PAUSE_AGE_SECONDS: Final = 60.0  # older pauses do not describe the present traffic


class Pauses:
    """The worker's recent pauses between requests; times in seconds."""

    __slots__ = ("_idle_since", "_pauses")

    def __init__(self) -> None:
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_MOST_PAUSES)  # start and length
        self._idle_since: float | None = None  # unless requests wait or run

    def begin(self, now: float) -> None:
        """No request is waiting; a pause that has already begun continues."""
        if self._idle_since is None:
            self._idle_since = now

    def end(self, now: float) -> None:
        """The next request has arrived."""
        if self._idle_since is not None:
            self._pauses.append((self._idle_since, now - self._idle_since))
            self._idle_since = None

    def free_at(self, now: float, seconds: float) -> float:
        """Return the time from which a run of `seconds` probably delays no request.

        That is now, if the run fits into the rest of the shortest recent pause; otherwise when this pause is
        longer than all recent ones, since clients have then stopped sending.
        """
        if self._idle_since is None:
            return now
        while self._pauses and self._pauses[0][0] < now - _PAUSE_AGE_SECONDS:
            self._pauses.popleft()
        lengths = [length for _, length in self._pauses]
        needed = seconds * _MARGIN
        if now - self._idle_since + needed < min(lengths, default=0.0):
            return now
        return self._idle_since + max(lengths, default=0.0) + needed
