"""Finds the samples of a part beside which others are so loud that their loss would go unnoticed. Pure.

The errors of a part are judged over all samples, by what they move it by. Where one sample moves a column a hundred
times as much as the others do, the column may be lost in all of these. If they are most of the samples, their errors
are judged by themselves too. (Of whole outputs, see `own_scales`.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.part_sums import Errors, Floats, ValueSums

_SLACK: Final = 1 + 2.0**-20  # files round levels


@dataclass(frozen=True, slots=True)
class QuietSamples:
    """What is expected of parts in the quiet samples of each: arrays of [parts], 0 of parts that have none."""

    centre: Floats  # about which samples are quiet or loud
    level: Floats  # RMS distance from it, of the loudest quiet sample
    spread: Floats  # standard deviation of the values in the quiet samples
    error: Floats  # RMS error that rounding makes in them; inf if it is not known

    def find(self, values: ValueSums) -> NDArray[np.bool_]:
        """Return of which parts a sample with these values is a quiet one."""
        level = _measure_level(values.mean, values.deviation, self.centre)
        return (self.spread > 0) & (values.count > 0) & (level <= self.level * _SLACK)

    def select(self, index: int) -> Self:
        """Return those of a single part."""
        part = slice(index, index + 1)
        return type(self)(*(getattr(self, item.name)[part] for item in fields(self)))


def find_quiet(
    samples: Sequence[ValueSums], errors: Sequence[Errors], unnoticed: Floats, least: Floats
) -> QuietSamples | None:
    """Return the quiet samples of each part: all whose loss adds no more squares than `unnoticed`, if these are most; None of any.

    `samples` and `errors` are of each sample the values, and the errors of rounding. What the quiet samples move a
    part by has to be above `least`, below which it is rounding.
    """
    count, mean, deviation = (
        np.array([getattr(item, name) for item in samples])
        for name in ("count", "mean", "deviation")
    )
    filled = count > 0
    centre = _find_median(mean, filled)
    levels = np.where(filled, _measure_level(mean, deviation, centre), np.inf)
    order = np.argsort(levels, axis=0)
    ranked, counts = (np.take_along_axis(item, order, 0) for item in (levels, count))
    with np.errstate(over="ignore"):
        squares = np.square(np.where(counts > 0, ranked, 0.0)) * counts
    lost = np.cumsum(np.where(counts > 0, squares, np.inf), axis=0)
    number = (lost <= unnoticed).sum(0)
    most = 2 * number > filled.sum(0)
    level = np.take_along_axis(ranked, np.maximum(number - 1, 0)[None], 0)[0]
    quiet = most & (levels <= level)
    total = np.maximum(np.where(quiet, count, 0.0).sum(0), 1.0)
    middle = np.where(quiet, count * mean, 0.0).sum(0) / total
    about = count * (np.square(deviation) + np.square(mean - middle))
    spread = np.sqrt(np.where(quiet, about, 0.0).sum(0) / total)
    rounding = [np.where(own, item.squares, 0.0) for own, item in zip(quiet, errors, strict=True)]
    shown = most & (spread > least)
    if not shown.any():
        return None
    error = np.sqrt(np.sum(rounding, axis=0) / total)
    return QuietSamples(*(np.where(shown, item, 0.0) for item in (centre, level, spread, error)))


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
