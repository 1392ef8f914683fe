"""Measures over the golden samples what is expected of each part of the outputs. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from enginewright_runtime.proof.parity.axis_sums import AxisSums
from enginewright_runtime.proof.parity.input_sizes import InputSizes
from enginewright_runtime.proof.parity.measuring import Figures, measure
from enginewright_runtime.proof.parity.movement import Movement, NameChanges
from enginewright_runtime.proof.parity.own_scales import RowErrors, find_median
from enginewright_runtime.proof.parity.part_sums import (
    WHOLE,
    Floats,
    ValueSums,
    count_parts,
)
from enginewright_runtime.proof.parity.parts import AxisParts, Parts
from enginewright_runtime.proof.parity.positions import find_positions
from enginewright_runtime.proof.parity.rounding_figures import RoundingFigures
from enginewright_runtime.proof.parity.tolerances import Tolerance, Tolerances
from enginewright_runtime.proof.parity.values import Array, dtype_of, kind_of

_STILL: Final = 8.0  # units in the last place of the largest value that are no movement
_NOTHING: Final = (
    1e-10  # of the output's largest value: movement of parts that are zero but for rounding
)
_UNIT: Final = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # in the last place; others as float32
_UNIT_FLOAT32: Final = 2.0**-23
# Of the deviation within positions: without a grid, that of two samples is 0.7 of the spread. Of correct INT8
# detectors, few columns have errors of half of it, and a column that is dead has one of all of it
_WITHIN: Final = 1.5

Outputs = Mapping[str, Array]


class PartsBuilder:
    """Measures what is expected of every part, one sample at a time."""

    def __init__(
        self,
        axes: Mapping[str, Sequence[int]],
        dtypes: Mapping[str, str],
        tolerances: Tolerances,
        scales: Mapping[str, float],
    ) -> None:
        """Take the axes of each output (see `axes`) and the outputs' declared types.

        `tolerances` are the precision's, `scales` as of `comparison.scales_of`.
        """
        self._axes = axes
        self._dtypes = dtypes
        self._tolerances = tolerances
        self._scales = scales
        self._allowed: dict[str, Tolerance] = {}
        self._figures: dict[str, list[Figures] | None] = {}  # or None if rounding is not known
        self._movements: dict[str, Movement | None] = {}  # of floats
        self._changes: dict[str, NameChanges] = {}  # of others
        # by which rounding is off, by the own scales of the rows of each sample
        self._shares: dict[str, list[float]] = {}
        self._sums: dict[str, list[AxisSums]] = {}
        self._shapes: dict[str, list[tuple[int, ...]]] = {}  # by sample
        self._input_sizes = InputSizes()

    def add(
        self, expected: Outputs, emulated: Outputs | None, feeds: Outputs | None = None
    ) -> None:
        """Add a sample's outputs and those of the emulation; None if it refuses the sample.

        `feeds` are its inputs, whose sizes tell whether outputs may hold a grid.
        """
        sizes = tuple(array.shape for array in (feeds or {}).values())
        if feeds is not None:
            self._input_sizes.add(feeds)
        for output, axes in self._axes.items():
            want, have = expected[output], (emulated or {}).get(output)
            have = have if have is not None and have.shape == want.shape else None
            dtype = dtype_of(want, self._dtypes.get(output))
            floats = kind_of(want, self._dtypes.get(output)) == "float"
            # anchors of one image may lie along the first axis as well
            is_batch = 0 not in axes and (feeds is None or _is_batch(want, feeds))
            self._allowed[output] = self._tolerances.of_output(output, dtype)
            self._shapes.setdefault(output, []).append(want.shape)
            self._add_figures(output, want, have)
            if output not in self._sums:
                self._movements[output] = Movement(rows=is_batch) if floats else None
                self._sums[output] = [
                    AxisSums(axis, count_parts(want.shape, axis), floats=floats) for axis in axes
                ]
            if (movement := self._movements[output]) is not None:
                movement.add(want, dtype, sizes)
            else:
                self._changes.setdefault(output, NameChanges(rows=0 not in axes)).add(want)
            for item in self._sums[output]:
                item.add(want, have, dtype)
            if floats:
                share = np.inf
                if have is not None:
                    rows = RowErrors.measure(want, have, dtype, batched=0 not in axes)
                    share = find_median(rows.measure_shares())
                self._shares.setdefault(output, []).append(share)

    def _add_figures(self, output: str, want: Array, have: Array | None) -> None:
        figures = self._figures.setdefault(output, [])
        if have is None or figures is None:
            self._figures[output] = None
            return
        allowed, dtype = self._allowed[output], self._dtypes.get(output)
        figures.append(measure(want, have, allowed, dtype, self._scales.get(output, 0.0)))

    def build(self) -> Parts:
        """Return the parts of the outputs that have any."""
        return {
            output: tuple(self._build_output(output, sums))
            for output, sums in self._sums.items()
            if sums
        }

    def _build_output(self, output: str, axes: Sequence[AxisSums]) -> Iterator[AxisParts]:
        movement = self._movements[output]
        within = {
            sums.axis: np.zeros(sums.size)
            if movement is None
            else movement.measure(sums.axis, sums.values.mean)
            for sums in axes
        }
        positions = find_positions(within, {sums.axis: sums.values.deviation for sums in axes})
        if positions is not None:
            within[positions] = np.zeros_like(within[positions])
        for sums in axes:
            may_be_grid = sums.axis != positions and self._may_be_grid(output)
            yield self._build_axis(output, sums, within[sums.axis], may_be_grid=may_be_grid)

    def _build_axis(
        self, output: str, sums: AxisSums, within: Floats, *, may_be_grid: bool
    ) -> AxisParts:
        """Return the parts along an axis; `within` is what they deviate by within positions, 0 where the axis names these."""
        values, figures = sums.values, self._figures[output]
        part = self._allowed[output].part
        names = sums.find_names(np.inf if part is None else part)
        least = self._find_least(output, values)
        spread = _limit_spread(values.deviation, within, least)
        return AxisParts(
            axis=sums.axis,
            magnitude=np.where(names, 1.0, values.rms),
            spread=np.where(names, self._find_moving(output, sums), spread),
            error=np.where(names, sums.measure_others(), sums.measure_rounding()),
            count=np.where(names, values.count, sums.count_effective()),
            names=names,
            bound=~names & (may_be_grid | np.isnan(within)),
            own_share=find_median(self._shares.get(output, ())) if sums.axis == WHOLE else np.inf,
            figures=None if sums.axis != WHOLE or figures is None else RoundingFigures.of(figures),
            quiet=sums.find_quiet(part or 0.0, np.where(names, 0.0, spread), least),
        )

    def _find_moving(self, output: str, sums: AxisSums) -> Floats:
        """Return the spread of names, of the whole no more than what changes within positions."""
        moving = sums.measure_moving()
        if sums.axis == WHOLE and output in self._changes:
            moving = np.minimum(moving, self._changes[output].measure())
        return moving

    def _find_least(self, output: str, values: ValueSums) -> Floats:
        """Return the standard deviation of each part that is no movement."""
        unit = _UNIT.get(self._dtypes.get(output, ""), _UNIT_FLOAT32)
        largest = values.largest
        least: Floats = np.maximum(_STILL * unit * largest, _NOTHING * largest.max(initial=0.0))
        return least

    def _may_be_grid(self, output: str) -> bool:
        """Return whether a grid may be all that differs along axes without positions, as each sample has a size of its own."""
        movement = self._movements[output]
        if movement is None:
            return False
        ruled_out = self._input_sizes.rule_out_grid(self._shapes[output])
        return movement.is_alone() and (movement.is_partial or not ruled_out)


def _limit_spread(deviation: Floats, within: Floats, least: Floats) -> Floats:
    """Return the standard deviation of the parts, but no more than a multiple of what they deviate by within positions.

    A grid of anchors, the same in all samples, is no movement; where that is all that differs, it counts.
    """
    spread = np.where(deviation > least, deviation, 0.0)
    return np.where(within > least, np.minimum(spread, _WITHIN * within), spread)


def _is_batch(want: Array, feeds: Outputs) -> bool:
    """Return whether an output's first axis is as long as that of an input."""
    return want.shape[:1] in {array.shape[:1] for array in feeds.values()}
