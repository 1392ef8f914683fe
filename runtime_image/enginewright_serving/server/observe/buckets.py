"""Time in the model by size of request, since a mean over all changes when clients send larger requests.

Used by one thread at a time: the loading one, then the event loop's.
"""

import time
from collections.abc import Callable
from typing import Final

from enginewright_contract.execution import ComputeBucket, size_class
from enginewright_contract.measurements import SERIES, LatencySeries

from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.windows import Windows

_MOST_SHAPES: Final = 10_000  # remembered as having run before


class ComputeBuckets:
    """Counts and times by size."""

    __slots__ = ("_clock", "_counts", "_seconds", "_shapes", "_untimed", "_warmup", "_windows")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._windows: dict[int, Windows] = {}
        self._counts: dict[int, int] = {}
        self._seconds: dict[int, float] = {}
        self._untimed: dict[int, int] = {}
        self._warmup: dict[int, float] = {}
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()

    def add_warm_up(self, feeds: Feeds, seconds: float) -> None:
        """Count a warm-up run; the fastest of a size is kept."""
        size = _size(feeds)
        self._warmup[size] = min(seconds, self._warmup.get(size, seconds))
        self._shapes.add(_shapes(feeds))

    def add(self, feeds: Feeds, seconds: float) -> None:
        """Count a request that the model answered; the first of its shape, which may compile, without its time."""
        shapes = _shapes(feeds)
        if shapes not in self._shapes:
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes.add(shapes)
            self.add_untimed(feeds)
            return
        size = _size(feeds)
        self._counts[size] = self._counts.get(size, 0) + 1
        self._seconds[size] = self._seconds.get(size, 0.0) + seconds
        windows = self._windows.get(size) or self._new_windows(size)
        windows.add(seconds, self._clock())

    def _new_windows(self, size: int) -> Windows:
        if len(self._windows) == SERIES:
            del self._windows[min(self._windows, key=lambda window: self._counts[window])]
        self._windows[size] = windows = Windows(self._counts[size] - 1)
        return windows

    def add_untimed(self, feeds: Feeds) -> None:
        """Count a request whose time is not representative."""
        size = _size(feeds)
        self._untimed[size] = self._untimed.get(size, 0) + 1

    def report(self) -> tuple[ComputeBucket, ...]:
        """Return the counts of every size that occurred."""
        return tuple(
            ComputeBucket(
                elements=size,
                warmup_seconds=self._warmup.get(size),
                count=self._counts.get(size, 0),
                seconds=self._seconds.get(size, 0.0),
                untimed=self._untimed.get(size, 0),
            )
            for size in sorted({*self._counts, *self._warmup, *self._untimed})
        )

    def latencies(self) -> tuple[LatencySeries, ...]:
        """Return the medians of the sizes with most requests, by size."""
        return tuple(
            windows.series("requests", str(size)) for size, windows in sorted(self._windows.items())
        )


def _size(feeds: Feeds) -> int:
    return size_class(sum([array.size for array in feeds.values()]))


def _shapes(feeds: Feeds) -> tuple[tuple[int, ...], ...]:
    return tuple([array.shape for array in feeds.values()])
