"""Judges an output as a whole, and what each index of an axis that names things holds, over all samples. Pure.

A tensor as a whole hides its parts: the tolerance and the cosine of a detector's head are ruled by its
largest columns, so that a column of scores may be constant, reversed or another's. Each part (a column,
a channel, a class) is therefore judged by its own scale. It agrees if the RMS of its errors is a small
share of its spread, the standard deviation of its expected values. If it is not, two causes are told
apart by the error that rounding to the precision makes there, measured on the source (`proof.rounding`):
an error far above that is a fault; another says only that the samples do not move the part enough.
"""

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from enginewright_contract.manifest import UnjudgedParts
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.measuring import Figures, measure
from enginewright_runtime.proof.parity.part_sums import (
    WHOLE,
    Errors,
    Floats,
    ValueSums,
    count_effective,
    count_parts,
    measure_errors,
    pool_rms,
)
from enginewright_runtime.proof.parity.rounding_figures import RoundingFigures
from enginewright_runtime.proof.parity.tolerances import Tolerance, Tolerances
from enginewright_runtime.proof.parity.values import Array, dtype_of
from enginewright_runtime.session.arrays import read_arrays, write_arrays

PARTS: Final = "parts.npz"  # beside the golden samples
# Ratio of two RMS errors of one distribution that n values of each exceed once in a thousand times:
# the square root of the F distribution's quantile, for n = 1, 2, …; at most 6, as more hides faults of
# samples with few values, and no correct artefact of real models needed it
_RATIOS: Final = np.array((6.0, 6.0, 6.0, 6.0, 5.5, 4.5, 3.9, 3.5, 3.2))
_RATIO: Final = 3.0  # for more values: errors are neither independent nor of one size
_MOST: Final = 0.9  # of the parts that agree: the others' errors are outliers
_LEAST_PARTS: Final = 10  # of which that share means something
_STILL: Final = 8.0  # units in the last place of the largest value that are no movement
_NOTHING: Final = (
    1e-10  # of the output's largest value: movement of parts that are zero but for rounding
)
_UNIT: Final = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # in the last place; others as float32
_UNIT_FLOAT32: Final = 2.0**-23
_NAMED: Final = 20  # indices that are kept

Outputs = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class AxisParts:
    """What is expected of each index along one axis of an output: arrays of [size of the axis], float32 in files.

    Axis `WHOLE` stands for the output as a whole, of which all elements are one part.
    """

    axis: int
    magnitude: Floats  # RMS of the expected values
    spread: Floats  # their standard deviation; 0 if the samples do not move them
    error: Floats  # RMS error that rounding to the precision makes; inf if it is not known
    count: Floats  # effective number of values, see `part_sums.count_effective`
    figures: RoundingFigures | None = None  # of the whole, if rounding could be emulated


Parts = Mapping[str, tuple[AxisParts, ...]]  # by output


@dataclass(frozen=True, slots=True)
class FaultyPart:
    """The worst part of an output, of those that fail."""

    axis: int
    index: int
    failing: int  # parts of the axis that fail
    sample: str  # with the largest error, of those that are judged together
    error: float  # RMS
    spread: float
    rounding: float  # RMS error that rounding makes

    @property
    def severity(self) -> float:
        """The error relative to the spread; infinite in a part that does not move."""
        return self.error / self.spread if self.spread else float("inf")

    def describe(self, allowed: Tolerance) -> str:
        """Return text that follows the output's name."""
        share = (
            f"{100 * self.error / self.spread:.3g}% of what the samples move it by"
            if self.spread
            else "although the samples do not move it"
        )
        more = f" and {self.failing - 1} more" if self.failing > 1 else ""
        where = (
            "as a whole"
            if self.axis == WHOLE
            else f"in index {self.index} of axis {self.axis}{more}"
        )
        return (
            f"differs {where}, over all samples: RMS error {self.error:.3g}, {share}; allowed: {100 * (allowed.part or 0.0):.3g}% by {allowed.label};"
            f" rounding costs {self.rounding:.3g} there"
        )


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
        self._figures: dict[str, list[Figures] | None] = {}  # or None if rounding is not known
        self._values: dict[tuple[str, int], ValueSums] = {}
        self._errors: dict[tuple[str, int], list[Errors]] = {}

    def add(self, expected: Outputs, emulated: Outputs | None) -> None:
        """Add a sample's outputs and those of the emulation; None if it refuses the sample."""
        for output, axes in self._axes.items():
            want, have = expected[output], (emulated or {}).get(output)
            have = have if have is not None and have.shape == want.shape else None
            dtype = dtype_of(want, self._dtypes.get(output))
            self._add_figures(output, want, have)
            for axis in axes:
                size = count_parts(want.shape, axis)
                values = self._values.setdefault((output, axis), ValueSums(size))
                values.add(want, axis, dtype)
                self._errors.setdefault((output, axis), []).append(
                    Errors.of_unknown(size)
                    if have is None
                    else measure_errors(want, have, axis, dtype)
                )

    def _add_figures(self, output: str, want: Array, have: Array | None) -> None:
        figures = self._figures.setdefault(output, [])
        if have is None or figures is None:
            self._figures[output] = None
            return
        dtype = self._dtypes.get(output)
        allowed = self._tolerances.of_output(output, dtype_of(want, dtype))
        figures.append(measure(want, have, allowed, dtype, self._scales.get(output, 0.0)))

    def build(self) -> Parts:
        """Return the parts of the outputs that have any."""
        parts: dict[str, tuple[AxisParts, ...]] = {}
        for (output, axis), values in self._values.items():
            unit = _UNIT.get(self._dtypes.get(output, ""), _UNIT_FLOAT32)
            spread, figures = values.deviation, self._figures[output]
            least = np.maximum(
                _STILL * unit * values.largest, _NOTHING * values.largest.max(initial=0.0)
            )
            made = AxisParts(
                axis=axis,
                magnitude=values.rms,
                spread=np.where(spread > least, spread, 0.0),
                error=pool_rms(self._errors[output, axis]),
                count=count_effective(self._errors[output, axis]),
                figures=None if axis != WHOLE or figures is None else RoundingFigures.of(figures),
            )
            parts[output] = (*parts.get(output, ()), made)
        return parts


@dataclass(frozen=True, slots=True)
class _Run:
    """Errors of the parts of one output of one sample, small enough to be kept for each sample."""

    squares: tuple[NDArray[np.float32] | None, ...]  # by axis, sums; or None if all are 0
    counts: tuple[float, ...]  # by axis, values of each part


class PartsJudge:
    """Judges the parts of outputs over the latest run of each sample."""

    def __init__(self, parts: Parts) -> None:
        """Take what is expected."""
        self._parts = parts
        self._runs: dict[str, dict[str, _Run]] = {}  # by output and sample

    def add(self, sample: str, output: str, want: Array, have: Array, dtype: str | None) -> None:
        """Take an output of a sample, of the expected shape; an earlier run of the sample is forgotten."""
        kind = dtype_of(want, dtype)
        self._keep(
            sample, output, want, lambda axis: measure_errors(want, have, axis, kind).squares
        )

    def add_equal(self, sample: str, output: str, want: Array) -> None:
        """Take an output that equals the expected one, at no cost."""
        self._keep(sample, output, want, lambda _: None)

    def fit(
        self, output: str, rank: int, allowed: Tolerance, *, as_rounding: bool = True
    ) -> Tolerance:
        """Return the tolerance of a whole output of this model.

        Rows along an axis that holds positions have no classes. `as_rounding`: with what rounding costs the
        output, where that is known.
        """
        parts = self._parts.get(output, ())
        if parts and all(item.axis != rank - 1 for item in parts):
            allowed = replace(allowed, top1=None)
        figures = next((item.figures for item in parts if item.axis == WHOLE), None)
        return figures.widen(allowed) if as_rounding and figures is not None else allowed

    def find_fault(self, output: str, allowed: Tolerance) -> FaultyPart | None:
        """Return the worst part whose error is above what the tolerance and rounding allow."""
        faults = []
        for number, parts, errors in self._pool(output):
            failing = np.flatnonzero(_fails(parts, errors, allowed, self._find_size(output)))
            if not len(failing):
                continue
            with np.errstate(divide="ignore"):  # what does not move is worst
                sizes = errors[failing] / parts.spread[failing]
            worst = int(failing[np.argmax(sizes)])
            runs = self._runs[output]
            faults.append(
                FaultyPart(
                    parts.axis,
                    worst,
                    len(failing),
                    max(runs, key=lambda sample: _find_error(runs[sample], number, worst)),
                    float(errors[worst]),
                    float(parts.spread[worst]),
                    float(parts.error[worst]),
                )
            )
        return max(faults, key=lambda fault: fault.severity, default=None)

    def find_unjudged(self, output: str, allowed: Tolerance) -> tuple[UnjudgedParts, ...]:
        """Return the parts that the samples do not move enough to be judged, by axis."""
        return tuple(
            UnjudgedParts(
                axis=parts.axis,
                indices=tuple(int(index) for index in unjudged[:_NAMED]),
                count=len(unjudged),
                of=len(parts.spread),
            )
            for _, parts, errors in self._pool(output)
            if len(
                unjudged := np.flatnonzero(
                    _is_unjudged(parts, errors, allowed, self._find_size(output))
                )
            )
        )

    def _find_size(self, output: str) -> float:
        """Return the RMS of the whole output, 0 if it is not known."""
        wholes = (item for item in self._parts.get(output, ()) if item.axis == WHOLE)
        return max((float(item.magnitude[0]) for item in wholes), default=0.0)

    def _keep(
        self, sample: str, output: str, want: Array, measure: Callable[[int], Floats | None]
    ) -> None:
        parts = self._parts.get(output, ())
        # the sizes of naming axes do not differ between samples
        if parts and all(_fits(part, want.shape) for part in parts):
            squares = (measure(part.axis) for part in parts)
            with np.errstate(over="ignore"):  # what overflows is infinite
                kept = tuple(None if item is None else item.astype(np.float32) for item in squares)
            counts = tuple(want.size / len(part.count) for part in parts)
            self._runs.setdefault(output, {})[sample] = _Run(kept, counts)

    def _pool(self, output: str) -> Iterator[tuple[int, AxisParts, Floats]]:
        """Yield the axes that have parts, with the RMS error of each part over the samples."""
        runs = [*self._runs.get(output, {}).values()]
        for number, parts in enumerate(self._parts.get(output, ()) if runs else ()):
            squares = np.zeros(len(parts.count))
            for run in runs:
                if (own := run.squares[number]) is not None:
                    squares += own
            count = sum(run.counts[number] for run in runs)
            yield number, parts, np.sqrt(squares / max(count, 1.0))


def _fits(part: AxisParts, shape: tuple[int, ...]) -> bool:
    return part.axis < len(shape) and count_parts(shape, part.axis) == len(part.count)


def _find_error(run: _Run, axis: int, index: int) -> float:
    squares = run.squares[axis]
    return 0.0 if squares is None else float(squares[index])


def _fails(parts: AxisParts, errors: Floats, allowed: Tolerance, size: float) -> NDArray[np.bool_]:
    if allowed.part is None:  # each element is judged by the user's own tolerance
        return np.zeros(len(errors), np.bool_)
    few = np.clip(parts.count.astype(np.int64), 1, len(_RATIOS)) - 1
    ratio = np.where(parts.count > len(_RATIOS), _RATIO, _RATIOS[few])
    ratio = ratio * _find_excess(parts, errors, allowed.part)
    # what does not move has no scale but its size, and what elements of the whole may differ by
    least = max(allowed.atol, allowed.zero_atol, allowed.scale * size)
    still = np.maximum(allowed.part * parts.magnitude, least)
    share = np.where(parts.spread > 0, allowed.part * parts.spread, still)
    # a conversion within a precision on one provider rounds nothing
    rounding = ratio * parts.error if allowed.rounds else np.zeros(len(errors))
    negligible = min(allowed.atol, allowed.negligible * size)
    fails: NDArray[np.bool_] = errors > np.maximum(np.maximum(share, rounding), negligible)
    return fails


def _find_excess(parts: AxisParts, errors: Floats, share: float) -> float:
    """Return how many times the emulated error this artefact's rounding costs, at least 1, by the parts that agree.

    A precision is rounded to in several ways: with ranges of a run or of calibration data, by tensor or channel.
    What that costs throughout an axis is no fault of the part in which it costs most.
    """
    moving = parts.spread > 0
    agrees = moving & (errors <= share * parts.spread)
    if np.count_nonzero(agrees) < max(_LEAST_PARTS, np.count_nonzero(moving) / 2):
        return 1.0
    rounded = agrees & (parts.error > 0) & np.isfinite(parts.error)
    times = errors[rounded] / parts.error[rounded]
    return max(1.0, float(np.quantile(times, _MOST))) if times.size else 1.0


def _is_unjudged(
    parts: AxisParts, errors: Floats, allowed: Tolerance, size: float
) -> NDArray[np.bool_]:
    if allowed.part is None:
        return np.zeros(len(errors), np.bool_)
    agrees = (parts.spread > 0) & (errors <= allowed.part * parts.spread)
    return ~agrees & ~_fails(parts, errors, allowed, size)


def write_parts(path: Path, parts: Parts) -> None:
    """Write arrays AXIS/OUTPUT, float32 of [4, size of the axis]: magnitude, spread, error and count.

    Of the whole, the fields of `RoundingFigures` follow, if they are known.
    """
    by_axis: dict[str, dict[str, NDArray[Any]]] = {}
    for output, items in parts.items():
        for item in items:
            rows = np.stack((item.magnitude, item.spread, item.error, item.count))
            if item.figures is not None:
                rows = np.concatenate((rows, np.array(astuple(item.figures))[:, None]))
            by_axis.setdefault(str(item.axis), {})[output] = rows.astype(np.float32)
    write_arrays(path, by_axis)


def read_parts(path: Path) -> Parts:
    """Read what `write_parts` wrote; raises OSError, or ValueError if the file is damaged."""
    parts: dict[str, tuple[AxisParts, ...]] = {}
    try:
        for axis, arrays in read_arrays(path).items():
            for output, rows in arrays.items():
                magnitude, spread, error, count, *further = rows
                figures = RoundingFigures(*(float(row[0]) for row in further)) if further else None
                item = AxisParts(int(axis), magnitude, spread, error, count, figures)
                parts[output] = (*parts.get(output, ()), item)
    except (zipfile.BadZipFile, EOFError, TypeError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from error
    return parts
