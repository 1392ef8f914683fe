"""Medians of consecutive measurements of one latency, to compare two revisions by. Pure."""

from collections import deque
from typing import Final

from enginewright_contract.base import TEXT_LENGTH
from enginewright_contract.measurements import WINDOW, WINDOWS, LatencySeries, Source

_DIGITS: Final = 7  # of a second


class Windows:
    """One series: `WINDOW` measurements each, the latest `WINDOWS`."""

    __slots__ = ("_current", "_medians", "count")

    def __init__(self, count: int = 0) -> None:
        """Continue after `count` measurements, whose windows are lost."""
        self.count = count
        self._current: list[float] = []
        self._medians: deque[tuple[float, float]] = deque(maxlen=WINDOWS)

    def add(self, seconds: float, now: float) -> None:
        """Add one measurement, at the Unix time `now`."""
        self.count += 1
        current = self._current
        current.append(seconds)
        if len(current) == WINDOW:
            current.sort()
            median = (current[(WINDOW - 1) // 2] + current[WINDOW // 2]) / 2
            self._medians.append((round(now, 3), round(median, _DIGITS)))
            current.clear()

    def series(self, source: Source, name: str, inputs: str = "") -> LatencySeries:
        """Return the complete windows as a message, with the digest of a golden sample's `inputs`."""
        return LatencySeries(
            source=source,
            name=name[:TEXT_LENGTH],
            inputs=inputs,
            count=self.count,
            windows=tuple(self._medians),
        )
