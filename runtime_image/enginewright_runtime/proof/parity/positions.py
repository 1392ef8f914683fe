"""Finds the axis of a head [columns, boxes] that names positions: what differs in each of these is no grid. Pure.

Within a box, columns differ by their scales, within a column boxes do by their anchors. Both are the same in all
samples, but only of a grid of anchors is it unknown whether the model has seen anything. Of queries by classes, either
axis may be the longer one, and what differs between queries alone is a grid too.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from enginewright_runtime.proof.parity.part_sums import WHOLE, Floats

# Of real detectors, boxes are 56 times as many as columns and more, and classes at most five times as many as queries
_CLEARLY_LONGER: Final = 20
_MOST: Final = 0.99  # of the indices: few boxes may have columns of one scale
_LESS: Final = 0.9  # of what columns move by, relative to what they differ by: boxes move by 0.27 and 0.84 of it
_SCALES: Final = (0.1, 0.9)  # of the deviations along an axis
_FAR_APART: Final = (
    4.0  # ratio of these where columns have scales of their own: 1.04 of queries by classes
)


def find_positions(within: Mapping[int, Floats], deviations: Mapping[int, Floats]) -> int | None:
    """Return the axis: the longest of several, if it is by far, or else if the elements of another axis have scales of their own and move by more of them.

    `within` is what the elements of each index move by, by naming axis, or 0 if that is not known; `deviations` is
    what all values of an index differ by.
    """
    axes = sorted((axis for axis in within if axis != WHOLE), key=lambda axis: within[axis].size)
    if len(axes) < 2:
        return None
    *others, longest = axes
    if within[longest].size >= _CLEARLY_LONGER * within[others[-1]].size:
        return longest
    share, scales = (
        [measure(within[axis], deviations[axis]) for axis in axes]
        for measure in (_measure_share, _measure_scales)
    )
    if not any(share):  # no two samples of one size
        return longest
    has_scales = max(scales[:-1]) > max(_FAR_APART, 2 * scales[-1])
    return longest if has_scales and share[-1] < _LESS * max(share[:-1]) else None


def _measure_share(moves: Floats, deviations: Floats) -> float:
    spread = (deviations > 0) & np.isfinite(moves)
    return float(np.quantile(moves[spread] / deviations[spread], _MOST)) if spread.any() else 0.0


def _measure_scales(_: Floats, deviations: Floats) -> float:
    spread = deviations[deviations > 0]
    if not spread.size:
        return 1.0
    least, most = np.quantile(spread, _SCALES)
    return float(most / least)
