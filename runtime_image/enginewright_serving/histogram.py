"""Histograms for Prometheus; its client library alone would cost a sidecar 7 MB."""

from bisect import bisect_left
from collections import Counter
from typing import Final

_SIZE_POWERS: Final = range(6, 31, 2)  # bounds of 64 B, 256 B, 1 KiB, ... 1 GiB
_ALL_POWERS: Final = 64


class DurationHistogram:
    """Counts of durations in seconds, by their upper `bounds`."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.total = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    @property
    def count(self) -> int:
        """Durations counted."""
        return sum(self._counts)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """Return upper bound and cumulative count of every bucket; the last one counts all."""
        rows = []
        cumulative = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            cumulative += count
            rows.append((bound, cumulative))
        return rows


class SizeHistogram:
    """Counts of sizes in bytes, by powers of two: finding the bucket is one instruction."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self.total = 0
        self._counts = [0] * (_ALL_POWERS + 1)

    def observe(self, size: int) -> None:
        """Count one size, which is at least 0."""
        self._counts[(size - 1).bit_length()] += 1
        self.total += size

    def buckets(self) -> list[tuple[str, int]]:
        """Return upper bound and cumulative count of every bucket; the last one counts all."""
        counts = self._counts
        rows = [(str(2**power), sum(counts[: power + 1])) for power in _SIZE_POWERS]
        return [*rows, ("+Inf", sum(counts))]


class RunCounts:
    """Runs of a model, by the requests of each, which are few different numbers."""

    __slots__ = ("_failed", "succeeded")

    def __init__(self) -> None:
        self.succeeded: dict[int, tuple[int, float]] = {}  # requests -> runs, seconds of all
        self._failed: Counter[int] = Counter()

    def add(self, requests: int, seconds: float, *, succeeded: bool) -> None:
        """Count one run."""
        if succeeded:
            count, total = self.succeeded.get(requests, (0, 0.0))
            self.succeeded[requests] = count + 1, total + seconds
        else:
            self._failed[requests] += 1

    @property
    def requests(self) -> int:
        """Requests of all runs."""
        return sum(requests * count for requests, count in self._counts())

    def buckets(self, bounds: tuple[int, ...]) -> list[tuple[str, int]]:
        """Return upper bound and cumulative count of every bucket; the last one counts all."""
        counts = self._counts()
        rows = [(str(bound), sum(n for size, n in counts if size <= bound)) for bound in bounds]
        return [*rows, ("+Inf", sum(count for _, count in counts))]

    def _counts(self) -> list[tuple[int, int]]:
        return [
            *((size, count) for size, (count, _) in self.succeeded.items()),
            *self._failed.items(),
        ]
