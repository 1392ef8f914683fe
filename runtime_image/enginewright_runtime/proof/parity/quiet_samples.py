"""Finds the samples of a part beside which others are so loud that their loss would go unnoticed. Pure.

The errors of a part are judged over all samples, by what they move it by. Where one sample moves a column a hundred
times as much as the others do, the column may be lost in all of these. If they are most of the samples, their errors
are judged by themselves too. (Of whole outputs, see `own_scales`.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.part_sums import Errors, Floats, ValueSums

# Values of a sample that tell whether it is quiet: of fewer, some are small by chance.
_LEAST_VALUES: Final = 8
# Share of what all samples move a part by: values of most are not below that by chance.
_FAR: Final = 0.03
_LEAST_SAMPLES: Final = 4
_LEAST_OF_FEW: Final = 6  # samples of few values
_SLACK: Final = 1 + 2.0**-20  # files round levels


@dataclass(frozen=True, slots=True)
class QuietSamples:
    """What is expected of parts in the quiet samples of each: arrays of [parts], 0 of parts that have none."""

    centre: Floats  # about which samples are quiet or loud
    level: Floats  # RMS distance from it, up to which a sample is quiet
    spread: Floats  # standard deviation of the values in the quiet samples
    error: Floats  # RMS error that rounding makes in them; inf if it is not known

    def find(self, values: ValueSums) -> NDArray[np.bool_]:
        """Return of which parts a sample with these values is a quiet one."""
        level = _measure_level(values.mean, values.deviation, self.centre)
        return (self.spread > 0) & (values.count > 0) & (level <= self.level * _SLACK)


def find_quiet(
    samples: Sequence[ValueSums],
    errors: Sequence[Errors],
    share: float,
    spread: Floats,
    least: Floats,
) -> QuietSamples | None:
    """Return the quiet samples of each part, if they are most of them: those whose loss is an error within its `share` of the `spread`; None of any.

    `samples` and `errors` are of each sample the values, and the errors of rounding. What the quiet samples move a
    part by has to be above `least`, below which it is rounding.
    """
    count, mean, deviation = (
        np.array([getattr(item, name) for item in samples])
        for name in ("count", "mean", "deviation")
    )
    filled = count > 0
    number = filled.sum(0)
    few = 2 * (filled & (count < _LEAST_VALUES)).sum(0) >= number
    shares = np.where(few, min(share, _FAR), share)
    centre = _find_median(mean, filled)
    levels = np.where(filled, _measure_level(mean, deviation, centre), np.inf)
    level, moving = np.zeros((2, len(spread)))
    further = spread
    # of those that are quiet beside the loudest, some may be loud beside the others
    for _ in samples:
        quiet = levels <= shares * further
        most = (2 * quiet.sum(0) > number) & (further > least)
        if not most.any():
            break
        level = np.where(most, shares * further, level)
        further = np.where(most, _measure_spread(quiet, count, mean, deviation), 0.0)
        moving = np.where(most, further, moving)
    shown = (moving > least) & (number >= np.where(few, _LEAST_OF_FEW, _LEAST_SAMPLES))
    if not shown.any():
        return None
    error = np.sqrt(_average(levels <= level, np.array([item.squares for item in errors]), count))
    return QuietSamples(*(np.where(shown, item, 0.0) for item in (centre, level, moving, error)))


def _measure_spread(
    quiet: NDArray[np.bool_], count: Floats, mean: Floats, deviation: Floats
) -> Floats:
    """Return the standard deviation of the values in the quiet samples of each part, 0 without any."""
    middle = _average(quiet, count * mean, count)
    squares = count * (np.square(deviation) + np.square(mean - middle))
    return np.sqrt(_average(quiet, squares, count))


def _average(quiet: NDArray[np.bool_], sums: Floats, count: Floats) -> Floats:
    """Return the mean of values, given their sums by sample, over the quiet samples of each part."""
    total = np.maximum(np.where(quiet, count, 0.0).sum(0), 1.0)
    average: Floats = np.where(quiet, sums, 0.0).sum(0) / total
    return average


def _measure_level(mean: Floats, deviation: Floats, centre: Floats) -> Floats:
    level: Floats = np.sqrt(np.square(deviation) + np.square(mean - centre))
    return level


def _find_median(values: Floats, filled: NDArray[np.bool_]) -> Floats:
    """Return the lower median of the samples that are filled, 0 without any."""
    number = filled.sum(0)
    ranked = np.sort(np.where(filled, values, np.inf), axis=0)
    middle = np.take_along_axis(ranked, np.maximum((number - 1) // 2, 0)[None], 0)[0]
    median: Floats = np.where(number > 0, middle, 0.0)
    return median
