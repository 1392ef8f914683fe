"""A time limit that depends neither on other load nor on the number of cores. Pure.

Elapsed time alone ends too early on a loaded machine, CPU time alone on one with many cores: both must exceed it.
"""

import time
from collections.abc import Callable


class TimeLimit:
    """A limit of both CPU time and elapsed time, from now on."""

    def __init__(self, seconds: float, clocks: tuple[Callable[[], float], ...] = ()) -> None:
        """Start it; `clocks`, in seconds, default to this process's CPU time and elapsed time."""
        read = clocks or (time.process_time, time.monotonic)
        self._ends = [(clock, clock() + seconds) for clock in read]

    def over(self) -> bool:
        """Return whether every clock exceeds the limit."""
        return all(clock() > end for clock, end in self._ends)
