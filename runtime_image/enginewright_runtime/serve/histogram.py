"""A Prometheus histogram of durations; its client library alone would cost a sidecar 7 MB."""

from bisect import bisect_left


class DurationHistogram:
    """Counts of durations in seconds, by their upper `bounds`."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.total = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

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
