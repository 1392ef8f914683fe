"""Counts the values of parts that hold names, such as the classes of detections. Pure.

A name is right or wrong, whatever its number is: class 3 instead of 4 is no small error. Integers and
booleans are names, and so are floats of a part that holds nothing but small whole numbers.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.fills import find_fill
from enginewright_runtime.proof.parity.part_sums import Floats, split_parts
from enginewright_runtime.proof.parity.values import Array

_NONE: Final = (np.empty(0), np.empty(0))


class KindCounts:
    """Counts how often each value occurs in each index along an axis, over samples."""

    def __init__(self, size: int, below: float = np.inf) -> None:
        """Begin with no values; `size` is that of the axis, and names are whole numbers `below` that."""
        self.whole: NDArray[np.bool_] = np.ones(size, np.bool_)  # indices with such numbers alone
        self._below = below
        self._kinds: list[tuple[Floats, Floats]] = [_NONE] * size  # values, and their numbers

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
                    self._kinds[index] = _NONE
                else:
                    self._kinds[index] = _merge(*self._kinds[index], part)

    @property
    def several(self) -> NDArray[np.bool_]:
        """Which indices hold names of at least two kinds."""
        return self.whole & np.array([len(values) > 1 for values, _ in self._kinds], np.bool_)

    @property
    def moving(self) -> Floats:
        """The share of the values that are not the most frequent one, 0 without any."""
        return np.array(
            [1 - counts.max() / counts.sum() if len(counts) else 0.0 for _, counts in self._kinds]
        )


def _merge(values: Floats, counts: Floats, part: Floats) -> tuple[Floats, Floats]:
    more, times = np.unique(part, return_counts=True)
    kinds, places = np.unique(np.concatenate((values, more)), return_inverse=True)
    return kinds, np.bincount(places, np.concatenate((counts, times)), len(kinds)).astype(
        np.float64
    )
