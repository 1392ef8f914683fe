"""How long work may take, whatever else runs on the machine and however many cores it has.

Elapsed time passes early on a loaded machine. The processor time of all threads passes early on a
machine of many cores. So that neither decides what is found, both must be over. Pure.
"""

import time
from collections.abc import Callable


class TimeLimit:
    """A limit of processor time and of elapsed time, from now on."""

    def __init__(self, seconds: float, clocks: tuple[Callable[[], float], ...] = ()) -> None:
        """Begin; `clocks`, in seconds, are by default this process's processor time and elapsed time."""
        read = clocks or (time.process_time, time.monotonic)
        self._ends = [(clock, clock() + seconds) for clock in read]

    def over(self) -> bool:
        """Return whether the time is up by every clock."""
        return all(clock() > end for clock, end in self._ends)
