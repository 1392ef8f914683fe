"""Finds the numbers that stand for no value in an output, as a mask leaves them. Pure.

A model writes -10,000, the least number of a type or the like where a mask is 0, or adds it to the scores there,
which are then a few units apart. They would rule the largest value, the cosine and the spread of an output, so
that all values that count could be another model's. Where both outputs have one, it counts as -infinity does; where one
has, that is an error of the size of the largest value.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.values import Array, dtype_of, kind_of, pieces

NUMERICALLY_ZERO: Final = 1e-6  # an output whose largest value is not above this counts as zero
_LEAST: Final = 900.0  # magnitude of fills: -1,000 with a score added
_GAP: Final = 50.0  # times the largest of the other values
# fills within this factor are looked for at once: masks are added to one another
_LEVEL: Final = 10.0
# what is beyond it, and far from the other values, is a fill, whichever it is
_LIMIT: Final = 7500.0
# times the largest of the other values: half precision makes -65504 of its least number
_FAR: Final = 10.0
_ROUNDED: Final = 0.75  # of a fill, whatever precision rounds it
_MOST: Final = 1.25  # likewise, unless FP16 has no number for it
_HALF: Final = 65504.0  # the largest number of FP16
_SINGLE: Final = 1e38  # fills beyond it are the least number of a type, or half of it
_DIGITS: Final = 2.0**-8  # relative error of numbers in BF16
_DIGITS_FLOAT32: Final = 2.0**-23

_PLAIN: Final = "fiu"  # kinds of arrays whose elements NumPy compares

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fill:
    """The largest value of an output, and beyond what magnitude its numbers are no values."""

    largest: float = 0.0  # magnitude of the finite values that are no fill
    limit: float = np.inf  # magnitude
    most: float = np.inf  # magnitude of finite fills but FP16's least number
    below: bool = False  # whether numbers below -`limit` are fills
    above: bool = False  # likewise, above `limit`

    def covers(self, values: _Floats) -> NDArray[np.bool_]:
        """Return which numbers are fills."""
        return np.asarray(self._signs(values) != 0)

    def hide(self, values: _Floats) -> _Floats:
        """Return expected values with infinity in place of fills."""
        if self.limit == np.inf:
            return values
        signs = self._signs(values)
        return np.where(signs != 0, np.copysign(np.inf, signs), values)

    def hide_both(self, want: _Floats, have: _Floats) -> tuple[_Floats, _Floats]:
        """Return expected and actual values with infinity where both are fills, and an error of the largest value where one is."""
        if self.limit == np.inf:
            return want, have
        first, second = self._signs(want), self._signs(have)
        both = (first == second) & (first != 0)
        lost = (first != 0) & ~both
        made = (second != 0) & (first == 0) & np.isfinite(want)
        size = self.largest if self.largest > NUMERICALLY_ZERO else 1.0
        infinity = np.copysign(np.inf, first)
        have = np.where(made, want + second * size, np.where(lost & np.isfinite(have), 0.0, have))
        want = np.where(lost, first * size, want)
        return np.where(both, infinity, want), np.where(both, infinity, have)

    def count_misplaced(self, want: _Floats, have: _Floats) -> int:
        """Return how many values only one of both has as fills."""
        if self.limit == np.inf:
            return 0
        return int(np.count_nonzero(self._signs(want) != self._signs(have)))

    def _signs(self, values: _Floats) -> _Floats:
        """Return the sign of each fill, 0 of what is none."""
        signs = np.zeros_like(values)
        if self.below:
            signs[values < -self.limit] = -1.0
        if self.above:
            signs[values > self.limit] = 1.0
        if self.most < np.inf:
            sizes = np.abs(values)
            signs[(sizes > self.most) & np.isfinite(values) & (sizes != _HALF)] = 0.0
        return signs


def find_fill(array: Array, dtype: str | None) -> Fill:
    """Return the largest value of an expected output, and which of its numbers are fills, if any are.

    Fills are at least 900, and 50 times as large as every other value. Negative ones are equal or, from 7,500 on, near a round
    number, as when one is added to scores; positive ones all of it. Where there is no other value, they are one round number.
    So a column of large quantities, each another, is none.
    """
    if kind_of(array, dtype) not in {"float", "integer"}:
        return Fill()
    fill = Fill(_find_largest(array, dtype_of(array, dtype)))
    if kind_of(array, dtype) == "float":
        while fill.largest >= _LEAST:
            nearer = _find_nearer(array, dtype_of(array, dtype), fill)
            if nearer is None:
                break
            fill = nearer
    return fill


def _find_largest(array: Array, dtype: str) -> float:
    if array.dtype.kind in _PLAIN and array.dtype.name == dtype and array.size:
        with np.errstate(invalid="ignore"):
            ends = float(array.min()), float(array.max())
        if np.isfinite(ends).all():  # ten times faster than by pieces
            return max(map(abs, ends))
    return max((_measure_largest(np.abs(piece)) for piece in pieces(array, dtype)), default=0.0)


def _measure_largest(sizes: _Floats) -> float:
    return float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))


def _find_nearer(array: Array, dtype: str, beyond: Fill) -> Fill | None:
    """Return the fill with the largest values of `beyond` too, unless these are values."""
    least = max(_LEAST, beyond.largest / _LEVEL)
    count, largest, nearest = 0, 0.0, np.inf
    ends = {sign: _Ends() for sign in (-1, 1)}
    for piece in pieces(array, dtype):
        sizes = np.abs(piece)
        with np.errstate(invalid="ignore"):
            far = (sizes >= least) & (sizes <= beyond.largest)
            near = sizes[sizes < least]
        count += near.size
        largest = max(largest, _measure_largest(near))
        nearest = min(nearest, float(sizes[far].min(initial=np.inf)))
        if _GAP * largest > nearest:
            return None  # further pieces do not widen the gap, and quantities show it in the first
        for sign, item in ends.items():
            ends[sign] = item.take(sizes[far & (np.sign(piece) == sign)])
    below, above = ends[-1], ends[1]
    if count and largest <= NUMERICALLY_ZERO:
        return None  # zeros beside one number are an output that is a mask itself
    if count:  # -1001 and the like beside small values are quantities
        is_fill = below.is_one or (below.least >= _LIMIT and below.is_round(2 * largest))
    else:  # energies of one molecule are as near a round number, and so is one logarithm of 30
        is_fill = below.is_exact or (not below.count and above.is_exact)
    if above.count:
        is_fill &= above.is_one and above.is_round(0.0) and (not count or above.least >= _LIMIT)
    if not is_fill:
        return None
    most = beyond.most
    if beyond.limit == np.inf and (farthest := _MOST * max(below.most, above.most)) <= _HALF:
        most = farthest
    return Fill(
        largest,
        min(_ROUNDED * nearest, max(_LIMIT, _FAR * largest)),
        most,
        beyond.below or below.count > 0,
        beyond.above or above.count > 0,
    )


@dataclass(frozen=True, slots=True)
class _Ends:
    """Magnitudes of numbers that may be fills."""

    count: int = 0
    least: float = np.inf
    most: float = 0.0
    # how far the one that is farthest from a round number is, beyond rounding
    uneven: float = -np.inf
    inexact: float = 0.0  # likewise, relative to the number

    def take(self, sizes: _Floats) -> Self:
        """Return those with further ones."""
        if not sizes.size:
            return self
        unit = 10.0 ** np.floor(np.log10(sizes))
        away = np.minimum(np.abs(sizes - np.rint(sizes / unit) * unit), np.abs(sizes - _HALF)) * (
            sizes < _SINGLE
        )
        return type(self)(
            self.count + sizes.size,
            min(self.least, float(sizes.min())),
            max(self.most, float(sizes.max())),
            max(self.uneven, float((away - _DIGITS * sizes).max())),
            max(self.inexact, float((away / sizes).max())),
        )

    @property
    def is_one(self) -> bool:
        """Whether it is one number, several times."""
        return self.count > 1 and self.least == self.most

    @property
    def is_exact(self) -> bool:
        """Whether it is one number, and a round one but for rounding to FP32."""
        return self.count > 0 and self.least == self.most and self.inexact <= _DIGITS_FLOAT32

    def is_round(self, within: float) -> bool:
        """Return whether all are round numbers, of one digit or a type's least one, with at most so much added."""
        return self.uneven <= within
