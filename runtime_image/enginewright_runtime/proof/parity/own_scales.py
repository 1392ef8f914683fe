"""What a sample's values vary by, to judge each sample by its own scale. Pure.

In INT8 and FP8, the ranges of values are those of all samples. One that is a hundred times as loud as the others
takes nearly all steps, and the loss of the others is small beside its values.
"""

import math
from collections.abc import Iterable
from typing import Final

from enginewright_runtime.proof.parity.part_sums import WHOLE, ValueSums
from enginewright_runtime.proof.parity.values import Array

_STILL: Final = 1e-6  # of the largest value: what varies by less is one number


def measure_scale(values: Array, dtype: str) -> float:
    """Return the standard deviation of a sample's values, or their RMS if they are one number."""
    sums = ValueSums(1)
    sums.add(values, WHOLE, dtype)
    deviation, rms = float(sums.deviation[0]), float(sums.rms[0])
    return deviation if deviation > _STILL * float(sums.largest[0]) else rms


def measure_share(error: float, scale: float) -> float:
    """Return the RMS error of a sample by its scale; NaN for an error in zeros, which have no scale."""
    if not error:
        return 0.0
    return error / scale if scale else math.nan


def find_median(shares: Iterable[float]) -> float:
    """Return the lower median, which is above a limit if more than half of the samples are; infinite without any."""
    sizes = sorted(share for share in shares if not math.isnan(share))
    return sizes[(len(sizes) - 1) // 2] if sizes else math.inf
