"""Sums what the parts along one axis of an output hold, over samples: as numbers, and as names while they may be that. Pure."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.kinds import KindCounts
from enginewright_runtime.proof.parity.part_sums import (
    WHOLE,
    Errors,
    Floats,
    ValueSums,
    count_effective,
    measure_errors,
    pool_rms,
)
from enginewright_runtime.proof.parity.quiet_samples import QuietSamples, find_quiet
from enginewright_runtime.proof.parity.values import Array

OTHER_NAME: Final = (
    1.0  # error of another name; a number that is less far off counts as far as it is
)
MOST_NAMES: Final = 1024  # parts along an axis: names are counted in one after the other
# parts along an axis whose values are kept by sample: longer ones hold positions
_MOST_BY_SAMPLE: Final = 1 << 16
_LARGEST_NAME: Final = 10_000.0  # in floats: larger whole numbers are quantities


class AxisSums:
    """Values and errors of the parts along an axis."""

    def __init__(self, axis: int, size: int, *, floats: bool) -> None:
        """Begin with no values. A whole output of floats is none of names."""
        self.axis = axis
        self.values = ValueSums(size)
        self.size = size
        self._floats = floats
        self._samples: list[ValueSums] = []
        self._errors: list[Errors] = []  # by sample
        self._others: list[Errors] = []  # likewise, of names
        self._kinds = KindCounts(size, _LARGEST_NAME if floats else np.inf)
        self._counts_names = not floats or (axis != WHOLE and size <= MOST_NAMES)

    def add(self, want: Array, have: Array | None, dtype: str) -> None:
        """Add a sample's expected and emulated array, None if there is none."""
        values = ValueSums(self.size)
        values.add(want, self.axis, dtype)
        self.values.merge(values)
        if self.axis != WHOLE and self.size <= _MOST_BY_SAMPLE:
            self._samples.append(values)
        self._errors.append(self._measure(want, have, dtype, np.inf))
        if self._counts_names:
            self._kinds.add(want, self.axis, dtype)
            self._others.append(self._measure(want, have, dtype, OTHER_NAME))
            self._counts_names = bool(self._kinds.whole.any())

    def find_names(self, share: float) -> NDArray[np.bool_]:
        """Return which parts hold names.

        Of floats, these are parts that rounding leaves as they are: where it changes more than the `share`
        of their spread that is allowed, they are quantities, such as whole pixels.
        """
        if not self._floats or not self._counts_names:
            return np.full(self.size, not self._floats)
        errors = self.measure_others()
        rounded = np.isfinite(errors) & (errors > share * self.measure_moving())
        return self._kinds.several & ~rounded

    def measure_moving(self) -> Floats:
        """Return the spread of names: the root of the share of them that are not the most frequent one; 0 if none are."""
        return np.sqrt(self._kinds.moving) if self._counts_names else np.zeros(self.size)

    def measure_others(self) -> Floats:
        """Return the RMS error that rounding makes in names; 0 if no part has any."""
        return pool_rms(self._others) if self._counts_names else np.zeros(self.size)

    def measure_rounding(self) -> Floats:
        """Return the RMS error that rounding makes in numbers."""
        return pool_rms(self._errors)

    def find_quiet(self, share: float, spread: Floats, least: Floats) -> QuietSamples | None:
        """Return the quiet samples of the parts, see `quiet_samples.find_quiet`."""
        if not self._samples:
            return None
        return find_quiet(self._samples, self._errors, share, spread, least)

    def count_effective(self) -> Floats:
        """Return the effective number of values, see `part_sums.count_effective`."""
        return count_effective(self._errors)

    def _measure(self, want: Array, have: Array | None, dtype: str, most: float) -> Errors:
        if have is None:
            return Errors.of_unknown(self.size)
        return measure_errors(want, have, self.axis, dtype, most)
