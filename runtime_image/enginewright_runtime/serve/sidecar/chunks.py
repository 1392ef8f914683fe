"""Compares large arrays piece by piece, so that a comparison takes a few megabytes beside them. Pure."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_PIECE: Final = 1 << 18  # elements at a time


def equal(want: NDArray[Any], have: NDArray[Any]) -> bool:
    """Tell whether two arrays have the same type, shape and elements; NaN equals nothing."""
    if want.dtype != have.dtype or want.shape != have.shape:
        return False
    return all(np.array_equal(first, second) for first, second in _chunks(want, have))


def largest_error(want: NDArray[Any], have: NDArray[Any]) -> float:
    """Return the largest finite absolute error of `have`, of the shape of `want`, in its units."""
    largest = 0.0
    for first, second in _chunks(want, have):
        if np.array_equal(first, second):
            continue
        with np.errstate(invalid="ignore", over="ignore"):  # of infinities, which others judge
            gap = np.abs(first - second)
        largest = max(largest, float(np.max(gap, initial=0.0, where=np.isfinite(gap))))
    return largest


def _chunks(want: NDArray[Any], have: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    first, second = want.reshape(-1), have.reshape(-1)
    for start in range(0, first.size, _PIECE):
        yield first[start : start + _PIECE], second[start : start + _PIECE]
