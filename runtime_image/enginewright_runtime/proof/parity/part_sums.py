"""Sums values and errors along one axis of arrays, in pieces, so that large outputs need little memory. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.fills import find_fill
from enginewright_runtime.proof.parity.values import Array, wide

WHOLE: Final = -1  # in place of an axis: all elements are one part
_PIECE: Final = 1 << 18  # elements that are converted at a time

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of each index along an axis, of one sample: arrays of [size of the axis]."""

    squares: Floats  # sums of squared errors; inf where they are not known
    fourths: Floats  # sums of their fourth powers
    count: Floats  # of finite expected values

    @classmethod
    def of_unknown(cls, size: int) -> Self:
        """Return those of an array that is missing, or of another shape."""
        return cls(np.full(size, np.inf), np.full(size, np.inf), np.ones(size))


class ValueSums:
    """Sums of the finite values of each index along an axis that are no fills, over samples."""

    def __init__(self, size: int) -> None:
        """Begin with no values; `size` is that of the axis."""
        self.size = size
        self.count: Floats = np.zeros(size)
        self.largest: Floats = np.zeros(size)
        self.total: Floats = np.zeros(size)
        self.squares: Floats = np.zeros(size)

    def add(self, values: Array, axis: int, dtype: str) -> None:
        """Add a sample's array; `dtype` is as `values.dtype_of` returns it."""
        fill = find_fill(values, dtype)
        for (numbers,) in split_parts((values,), axis, dtype):
            piece = fill.hide(numbers)
            finite = np.isfinite(piece)
            kept = np.where(finite, piece, 0.0)
            self.count += finite.sum((0, 2))
            self.total += kept.sum((0, 2))
            self.squares += np.square(kept).sum((0, 2))
            self.largest = np.maximum(self.largest, np.abs(kept).max((0, 2), initial=0.0))

    def merge(self, other: "ValueSums") -> None:
        """Add those of further samples."""
        self.count += other.count
        self.total += other.total
        self.squares += other.squares
        self.largest = np.maximum(self.largest, other.largest)

    @property
    def rms(self) -> Floats:
        """The RMS of the values, 0 without any."""
        return np.sqrt(self.squares / np.maximum(self.count, 1.0))

    @property
    def mean(self) -> Floats:
        """The mean of the values, 0 without any."""
        return self.total / np.maximum(self.count, 1.0)

    @property
    def deviation(self) -> Floats:
        """The standard deviation of the values, 0 without any."""
        squares = self.squares / np.maximum(self.count, 1.0)
        return np.sqrt(np.maximum(squares - np.square(self.mean), 0.0))


def measure_errors(
    want: Array, have: Array, axis: int, dtype: str, most: Floats | float = np.inf
) -> Errors:
    """Return the errors along an axis of two arrays of one shape, where the expected value is finite and no fill.

    A value that is not finite there has an infinite error. Errors above `most`, which is of all indices
    or of each, count as that.
    """
    squares, fourths, count = np.zeros((3, count_parts(want.shape, axis)))
    limits = np.square(np.broadcast_to(most, squares.shape))[:, None]
    fill = find_fill(want, dtype)
    for numbers in split_parts((want, have), axis, dtype):
        first, second = fill.hide_both(*numbers)
        finite = np.isfinite(first)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = np.square(np.where(finite, second - first, 0.0))
            errors[np.isnan(errors)] = np.inf
            errors = np.minimum(errors, limits)
            squares += errors.sum((0, 2))
            fourths += np.square(errors).sum((0, 2))
        count += finite.sum((0, 2))
    return Errors(squares, fourths, count)


def count_parts(shape: tuple[int, ...], axis: int) -> int:
    """Return the number of parts along an axis, 1 for the whole."""
    return 1 if axis == WHOLE else shape[axis]


def pool_rms(errors: Sequence[Errors]) -> Floats:
    """Return the RMS error of each index over samples, 0 without values."""
    squares = np.sum([item.squares for item in errors], axis=0)
    count = np.sum([item.count for item in errors], axis=0)
    rms: Floats = np.sqrt(squares / np.maximum(count, 1.0))
    return rms


def count_effective(errors: Sequence[Errors]) -> Floats:
    """Return how many values, each with an error of the same size, would vary as much: few errors may be all there is.

    The participation ratio: the square of the sum of squares, by the sum of fourth powers.
    """
    squares, fourths, count = (
        np.sum([getattr(item, name) for item in errors], axis=0)
        for name in ("squares", "fourths", "count")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.square(squares) / fourths
    effective: Floats = np.clip(
        np.where(np.isfinite(ratio), ratio, count), 1.0, np.maximum(count, 1.0)
    )
    return effective


def split_parts(arrays: Sequence[Array], axis: int, dtype: str) -> Iterator[list[Floats]]:
    """Yield the arrays as float64 of [before, size of the axis, after], in pieces of the other axes."""
    shape = arrays[0].shape
    size = count_parts(shape, axis)
    at = len(shape) if axis == WHOLE else axis
    before, after = int(np.prod(shape[:at])), int(np.prod(shape[at + 1 :]))
    blocks = [array.reshape(before, size, after) for array in arrays]
    width = max(1, min(after, _PIECE // max(1, size)))
    height = max(1, _PIECE // max(1, size * width))
    for top in range(0, before, height):
        for left in range(0, after, width):
            yield [
                wide(block[top : top + height, :, left : left + width], dtype) for block in blocks
            ]
