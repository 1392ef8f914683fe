"""One series of latency measurements: its baseline and its current value. Pure.

The baseline is set when the measurements are stable, and lowered if it proves too high: a pod that
started under other load would otherwise have a far too high limit. It is never raised, since that
would hide gradual slowdown.
"""

import logging
from collections import deque
from statistics import median_low, quantiles
from typing import Final

_log: Final = logging.getLogger(__name__)
_KEPT: Final = 64  # measurements: about a minute at one a second
BASELINE_PROBES: Final = 10  # measurements for the baseline
WINDOW_SECONDS: Final = 20.0  # the current latency is the median of this window
_SETTLED_SHARE: Final = 0.2  # by which the medians of both halves of the baseline's may differ
_UNSETTLED_MOST: Final = 60  # measurements after which their lower quartile is the baseline
LOWERING_LEAST: Final = 20  # measurements; if three quarters of them
_LOWERING_SHARE: Final = 0.9  # are below this share of the baseline, it is lowered
_WINDOW_LEAST: Final = 5  # measurements, if those of the window are fewer
_WINDOW_MINIMUM: Final = 3  # with fewer the current latency is unknown


class Trend:
    """Measurements in seconds, with times of one clock."""

    def __init__(self, first_runs: int = 0) -> None:
        """Ignore the first `first_runs` measurements, which include initialization."""
        self._first_runs = self._left_out = first_runs
        self._all: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._unsettled = 0
        self._fresh = 0  # measurements since the baseline was set
        self.baseline: float | None = None
        self.lowered = 0  # how often the baseline was lowered

    def add(self, seconds: float, now: float) -> None:
        """Record a measurement."""
        if self._left_out:
            self._left_out -= 1
            return
        self._all.append((now, seconds))
        self._fresh += 1
        if self.baseline is None:
            self._settle()
        elif self._fresh >= LOWERING_LEAST:
            self._lower(self.baseline)

    def restart(self) -> None:
        """Discard the measurements but keep the baseline."""
        self._all.clear()
        self._left_out = self._first_runs
        self._fresh = self._unsettled = 0

    def last(self, now: float, oldest: float = float("inf")) -> float | None:
        """Return the last measurement, if it is not older than `oldest` seconds."""
        return self._all[-1][1] if self._all and self._all[-1][0] >= now - oldest else None

    def current(self, now: float, oldest: float = float("inf")) -> float | None:
        """Return the median of the window, of at least _WINDOW_LEAST measurements, none older than `oldest` seconds, or None."""
        valid = [pair for pair in self._all if pair[0] >= now - oldest]
        recent = [seconds for at, seconds in valid if at >= now - WINDOW_SECONDS]
        if len(recent) < _WINDOW_LEAST:
            recent = [seconds for _, seconds in valid][-_WINDOW_LEAST:]
        return median_low(recent) if len(recent) >= _WINDOW_MINIMUM else None

    def _settle(self) -> None:
        """Set the baseline when both halves of the last measurements agree, or after too many."""
        self._unsettled += 1
        last = [seconds for _, seconds in self._all][-BASELINE_PROBES:]
        if len(last) < BASELINE_PROBES:
            return
        half = len(last) // 2
        before, after = median_low(last[:half]), median_low(last[half:])
        if abs(before - after) <= _SETTLED_SHARE * min(before, after):
            self._take(median_low(last))
        elif self._unsettled >= _UNSETTLED_MOST:
            self._take(quantiles(last, n=4)[0])  # the least disturbed measurements

    def _lower(self, baseline: float) -> None:
        """Lower the baseline when three quarters of the last measurements are well below it."""
        last = [seconds for _, seconds in self._all][-LOWERING_LEAST:]
        if quantiles(last, n=4)[2] < _LOWERING_SHARE * baseline:
            self.lowered += 1
            self._take(median_low(last))
            _log.info(
                "the baseline of %.3g ms was too high: lowered to %.3g ms",
                baseline * 1000,
                (self.baseline or 0.0) * 1000,
            )

    def _take(self, seconds: float) -> None:
        self.baseline = seconds
        self._fresh = 0
