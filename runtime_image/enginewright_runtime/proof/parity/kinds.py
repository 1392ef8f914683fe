"""Counts the values of parts that hold names, such as the classes of detections. Pure.

A name is right or wrong, whatever its number is: class 3 instead of 4 is no small error. Integers, booleans
and strings are names, and so are floats of a part that holds nothing but small whole numbers.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.fills import find_fill
from enginewright_runtime.proof.parity.part_sums import Floats, split_parts
from enginewright_runtime.proof.parity.values import Array

_MOST_KINDS: Final = 1 << 20  # along an axis: 16 bytes are kept of each
_LEAST_KINDS: Final = 1024  # of each index


class KindCounts:
    """Counts how often each value occurs in each index along an axis, over samples."""

    def __init__(self, size: int, below: float = np.inf) -> None:
        """Begin with no values; `size` is that of the axis, and names are whole numbers `below` that."""
        self.whole: NDArray[np.bool_] = np.ones(size, np.bool_)  # indices with such numbers alone
        self._below = below
        most = max(_LEAST_KINDS, _MOST_KINDS // max(1, size))
        self._kinds = [_KindsOfPart(most) for _ in range(size)]

    def add(self, values: Array, axis: int, dtype: str) -> None:
        """Add a sample's array; `dtype` is as `values.dtype_of` returns it."""
        fill = find_fill(values, dtype)
        for (numbers,) in split_parts((values,), axis, dtype):
            piece = fill.hide(numbers)
            for index in np.flatnonzero(self.whole):
                part = piece[:, index]
                part = part[np.isfinite(part)]
                if np.any(part != np.rint(part)) or np.any(np.abs(part) >= self._below):
                    self.whole[index] = False
                    self._kinds[index] = _KindsOfPart(0)
                else:
                    self._kinds[index].add(part)

    @property
    def several(self) -> NDArray[np.bool_]:
        """Which indices hold names of at least two kinds."""
        return self.whole & np.array([kinds.are_several() for kinds in self._kinds], np.bool_)

    @property
    def moving(self) -> Floats:
        """The share of the values that are not the most frequent one, 0 without any."""
        return np.array([kinds.measure_moving() for kinds in self._kinds])


class _KindsOfPart:
    """The values of one index, and how often each occurs.

    New ones are merged when they are as many as those counted before, so that n values cost n log n. Of more than
    `most` kinds the rarest are forgotten, as by J. Misra and D. Gries, "Finding repeated elements" (1982): the count
    of the most frequent one is low by at most a share of 2 / most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0
        self._values: Floats = np.zeros(0)
        self._counts: Floats = np.zeros(0)
        self._recent: list[tuple[Floats, Floats]] = []
        self._waiting = 0
        self._several = False

    def add(self, part: Floats) -> None:
        values, counts = np.unique(part, return_counts=True)
        self._total += part.size
        self._recent.append((values, counts.astype(np.float64)))
        self._waiting += values.size
        if self._waiting > max(self._values.size, _LEAST_KINDS):
            self._merge()

    def are_several(self) -> bool:
        self._merge()
        return self._several

    def measure_moving(self) -> float:
        self._merge()
        return 1 - float(self._counts.max(initial=0)) / self._total if self._total else 0.0

    def _merge(self) -> None:
        values, counts = zip((self._values, self._counts), *self._recent, strict=True)
        self._values, places = np.unique(np.concatenate(values), return_inverse=True)
        self._counts = np.zeros(self._values.size)
        np.add.at(self._counts, places, np.concatenate(counts))
        self._recent, self._waiting = [], 0
        self._several |= self._values.size > 1
        if self._values.size > self._most:
            rarest = self._values.size - self._most // 2
            self._counts -= np.partition(self._counts, rarest)[rarest]
            kept = self._counts > 0
            self._values, self._counts = self._values[kept], self._counts[kept]
