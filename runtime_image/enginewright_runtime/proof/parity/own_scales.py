"""How far the rows of outputs are off, each by its own scale: one that is loud hides the loss of all others. Pure.

In INT8 and FP8, the ranges of values are those of all samples, and in every precision what is allowed follows the
largest values of a sample. Where the first axis names nothing, each index of it is a row of a batch, a sample of its
own; else the sample is one row.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.part_sums import (
    WHOLE,
    Floats,
    ValueSums,
    count_parts,
    measure_errors,
)
from enginewright_runtime.proof.parity.values import Array

_STILL: Final = 1e-6  # of the largest value: what varies by less is one number
_MOST_ROWS: Final = 4096  # more are positions, such as those of sound


@dataclass(frozen=True, slots=True)
class RowErrors:
    """RMS errors and scales of the rows of one sample, small enough to be kept for each."""

    errors: NDArray[np.float32]
    scales: NDArray[
        np.float32
    ]  # standard deviation of the values, or their RMS if they are one number

    @classmethod
    def measure(cls, want: Array, have: Array, dtype: str, *, batched: bool) -> Self:
        """Compare two arrays of one shape; `batched`: the first axis names nothing."""
        is_batch = batched and want.ndim and 1 < want.shape[0] <= _MOST_ROWS
        axis = 0 if is_batch else WHOLE
        sums = ValueSums(count_parts(want.shape, axis))
        sums.add(want, axis, dtype)
        scales = np.where(sums.deviation > _STILL * sums.largest, sums.deviation, sums.rms)
        errors = measure_errors(want, have, axis, dtype)
        with np.errstate(over="ignore"):  # what overflows is infinite
            rms = np.sqrt(errors.squares / np.maximum(errors.count, 1.0)).astype(np.float32)
            return cls(rms, scales.astype(np.float32))

    def measure_shares(self, least: float = 0.0) -> Floats:
        """Return the errors by the scales; NaN for rows of zeros, which have none. Errors up to `least` are none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            errors = np.where(self.errors > least, self.errors, 0.0).astype(np.float64)
            return np.where(self.scales > 0, errors / self.scales, np.nan)


NO_ERRORS: Final = RowErrors(np.zeros(1, np.float32), np.ones(1, np.float32))


class Loss(NamedTuple):
    """More than half of the samples are off by more than is allowed, as more than half of the rows of each are."""

    failing: int
    samples: int
    batched: bool  # whether any has several rows
    worst: str  # the sample that is furthest off
    error: float  # of its row in the middle
    scale: float  # likewise


def find_median(shares: Iterable[float]) -> float:
    """Return the lower median, which is above a limit if more than half of the shares are; NaN without any."""
    sizes = sorted(share for share in shares if not np.isnan(share))
    return float(sizes[(len(sizes) - 1) // 2]) if sizes else np.nan


def find_loss(samples: Mapping[str, RowErrors], limit: float, least: float) -> Loss | None:
    """Return how the median of the samples' medians is above a limit, if it is; errors up to `least` are none.

    One row alone is judged as the whole output.
    """
    shares = {sample: rows.measure_shares(least) for sample, rows in samples.items()}
    medians = {
        sample: median
        for sample, of_rows in shares.items()
        if not np.isnan(median := find_median(of_rows))
    }
    if (
        find_median(medians.values()) <= limit
        or sum(shares[sample].size for sample in medians) <= 1
    ):
        return None
    worst = max(medians, key=medians.__getitem__)
    rows, row = samples[worst], int(np.argmax(shares[worst] == medians[worst]))
    return Loss(
        failing=sum(median > limit for median in medians.values()),
        samples=len(medians),
        batched=any(shares[sample].size > 1 for sample in medians),
        worst=worst,
        error=float(rows.errors[row]),
        scale=float(rows.scales[row]),
    )
