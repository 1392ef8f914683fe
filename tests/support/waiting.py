"""Waiting for a condition, with a deadline that a busy machine postpones.

A second counts as much as the processors that a process can have in it: half, where twice as many processes want to
run as there are processors. So a test waits as long as what it waits for needs, whatever else the machine does.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_LOAD: Final = Path("/proc/loadavg")


def processor_share() -> float:
    """Return the part of a processor that a process which wants to run gets now."""
    running = int(_LOAD.read_text().split()[3].partition("/")[0])  # this process is one
    return min(1.0, len(os.sched_getaffinity(0)) / max(running, 1))


class Deadline:
    """The end of a wait."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        share: Callable[[], float] = processor_share,
    ) -> None:
        """End after so many seconds on an idle machine."""
        self._left, self._clock, self._share = seconds, clock, share
        self._seen = clock()

    def measure_left(self) -> float:
        """Return the seconds that are left; the deadline has to be asked again and again."""
        now = self._clock()
        self._left -= (now - self._seen) * self._share()
        self._seen = now
        return self._left

    def is_over(self) -> bool:
        return self.measure_left() <= 0


def until(
    condition: Callable[[], T],
    what: str = "the condition",
    seconds: float = 60,
    interval: float = 0.02,
) -> T:
    """Poll until a condition is true, and return what it returned."""
    deadline = Deadline(seconds)
    while not (result := condition()):
        assert not deadline.is_over(), f"{what} did not come within {seconds} s"
        time.sleep(interval)
    return result
