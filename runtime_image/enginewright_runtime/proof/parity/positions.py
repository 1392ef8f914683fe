"""Finds the axis of a head [columns, boxes] that names positions: what differs in each of these is no grid. Pure.

Within a box, columns differ by their scales, within a column boxes do by their anchors. Both are the same in all
samples, but only of a grid of anchors is it unknown whether the model has seen anything: the elements of a column of
scores move by as much as its values differ, those of a box by much less.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from enginewright_runtime.proof.parity.part_sums import WHOLE, Floats

_MOST: Final = 0.99  # of the indices: few boxes may have columns of one scale
# Of real detectors, boxes move by 0.27 and 0.84 of what columns do; of queries by classes, in which neither axis has
# scales of its own, both move by as much
_LESS: Final = 0.9


def find_positions(within: Mapping[int, Floats], deviations: Mapping[int, Floats]) -> int | None:
    """Return the axis: the longest of several, unless its elements move by as large a share as those of the others.

    `within` is what the elements of each index move by, by naming axis, or 0 if that is not known; `deviations` is
    what all values of an index differ by.
    """
    shares = {
        axis: _measure_share(moves, deviations[axis])
        for axis, moves in within.items()
        if axis != WHOLE
    }
    if len(shares) < 2:
        return None
    longest = max(shares, key=lambda axis: within[axis].size)
    others = max(share for axis, share in shares.items() if axis != longest)
    if others == shares[longest] == 0:  # no two samples of one size
        return longest
    return longest if shares[longest] < _LESS * others else None


def _measure_share(moves: Floats, deviations: Floats) -> float:
    spread = (deviations > 0) & np.isfinite(moves)
    return float(np.quantile(moves[spread] / deviations[spread], _MOST)) if spread.any() else 0.0
