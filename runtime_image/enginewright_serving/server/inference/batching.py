"""Joins requests along their first dimension, and splits the outputs among them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginewright_serving.server.inference.padding import Padding
from enginewright_serving.server.protocol.decode import Feeds


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What startup measured about running several requests at once, or in the event loop.

    `rows` counts the first dimension of the inputs, as `serving.batching.maxSize` does.
    """

    rows: int = 1  # of a batch; 1 without batches
    # the only rows that are used, those that have run, where the backend compiles for each shape
    sizes: tuple[int, ...] = ()
    off: str = ""  # why there are no batches
    delay: float = 0.0  # seconds that a request may wait for others
    # of one run in the event loop, so that it is short; 0 if the model's thread runs all
    turn_rows: int = 0
    turn_elements: int = 0
    # without it only requests of equal sizes join, whatever these are
    padding: Padding | None = None
    gains: tuple[tuple[int, float], ...] = ()  # elements of a row, and the gain of a batch of them

    def whole(self, rows: Sequence[int]) -> int:
        """Return how many of the first requests, which have these `rows`, to run at once."""
        if not self.sizes:
            return len(rows)
        sums = list(accumulate(rows))
        return max((count for count, sum_ in enumerate(sums, 1) if sum_ in self.sizes), default=1)


def rows_of(feeds: Feeds) -> int:
    """Return the first dimension of all inputs, 0 if they have different ones, or a scalar."""
    rows = -1
    for array in feeds.values():
        if not array.ndim or rows not in (-1, array.shape[0]):
            return 0
        rows = array.shape[0]
    return max(rows, 0)


def elements_of(feeds: Feeds) -> int:
    """Return the number of elements of all inputs."""
    return sum([array.size for array in feeds.values()])


def joinable(first: Feeds, other: Feeds) -> bool:
    """Whether two requests have the same sizes but in the first dimension."""
    return all(
        array.shape[1:] == given.shape[1:]
        for array, given in zip(first.values(), map(other.__getitem__, first), strict=True)
    )


def join(requests: Sequence[Feeds], padding: Padding | None = None) -> Feeds:
    """Return the inputs of `requests` one after another."""
    if padding is not None:
        return padding.join(requests)
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}


def split(arrays: Sequence[NDArray[Any]], rows: Sequence[int]) -> list[list[NDArray[Any]]] | None:
    """Return the outputs of each request, as views, or None if an output has another number of rows."""
    total = sum(rows)
    if any(not array.ndim or array.shape[0] != total for array in arrays):
        return None
    parts: list[list[NDArray[Any]]] = []
    at = 0
    for count in rows:
        parts.append([array[at : at + count] for array in arrays])
        at += count
    return parts
