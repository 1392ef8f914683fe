"""Time in the model by size of request, so that live figures compare with warm-up like with like.

A mean over all requests moves when clients send larger ones; by size it moves when the model got
slower. Touched by one thread at a time: the loading one, then the event loop's.
"""

from typing import Final

from enginewright.contract.execution import ComputeBucket

from enginewright_runtime.server.decode import Feeds

_BUCKETS: Final = 64  # no request has 2**64 elements


class ComputeBuckets:
    """Counts and times; a bucket takes the sizes above the one before it, up to a power of two."""

    __slots__ = ("_counts", "_seconds", "_warmup")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._seconds = [0.0] * _BUCKETS
        self._warmup: dict[int, float] = {}

    def warmed_up(self, feeds: Feeds, seconds: float) -> None:
        """Count a run at warm-up; the best of a bucket is what the model can do."""
        index = _index(feeds)
        self._warmup[index] = min(seconds, self._warmup.get(index, seconds))

    def add(self, feeds: Feeds, seconds: float) -> None:
        """Count a request that the model has answered."""
        index = _index(feeds)
        self._counts[index] += 1
        self._seconds[index] += seconds

    def told(self) -> tuple[ComputeBucket, ...]:
        """Return the buckets that anything fell into."""
        return tuple(
            ComputeBucket(
                elements=1 << index,
                warmup_seconds=self._warmup.get(index),
                count=self._counts[index],
                seconds=self._seconds[index],
            )
            for index in range(_BUCKETS)
            if self._counts[index] or index in self._warmup
        )


def _index(feeds: Feeds) -> int:
    elements = 0
    for array in feeds.values():
        elements += array.size
    return (elements - 1).bit_length() if elements else 0
