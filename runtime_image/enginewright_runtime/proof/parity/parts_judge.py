"""Judges an output as a whole, and what each index of an axis that names things holds, over all samples. Pure.

A tensor as a whole hides its parts: the tolerance and the cosine of a detector's head are ruled by its
largest columns, so that a column of scores may be constant, reversed or another's. Each part (a column,
a channel, a class) is therefore judged by its own scale. It agrees if the RMS of its errors is a small
share of its spread, the standard deviation of its expected values. If it is not, two causes are told
apart by the error that rounding to the precision makes there, measured on the source (`proof.rounding`):
an error far above that is a fault; another says only that the samples do not move the part enough.

Names, such as classes (see `kinds`), are judged by the same rule: the error of one is whether it is another,
and the spread says how many are not the most frequent one.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from enginewright_contract.manifest import UnjudgedParts
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.axis_sums import OTHER_NAME
from enginewright_runtime.proof.parity.faulty_part import FaultyPart
from enginewright_runtime.proof.parity.own_scales import NO_ERRORS, Loss, RowErrors, find_loss
from enginewright_runtime.proof.parity.part_pools import (
    Expected,
    Pool,
    Run,
    find_worst_sample,
    measure_expected,
    pool_runs,
)
from enginewright_runtime.proof.parity.part_sums import WHOLE, Floats, count_parts, measure_errors
from enginewright_runtime.proof.parity.parts import AxisParts, Parts
from enginewright_runtime.proof.parity.tolerances import Tolerance
from enginewright_runtime.proof.parity.values import Array, dtype_of

# Ratio of two RMS errors of one distribution that n values of each exceed once in a thousand times:
# the square root of the F distribution's quantile, for n = 1, 2, …; at most 6, as more hides faults of
# samples with few values, and no correct artefact of real models needed it
_RATIOS: Final = np.array((6.0, 6.0, 6.0, 6.0, 5.5, 4.5, 3.9, 3.5, 3.2))
_RATIO: Final = 3.0  # for more values: errors are neither independent nor of one size
# Names that may be others where rounding changes none, as it may change the next: 3 errors squared, but at
# most half of what moves
_CHANCE: Final = 9.0
_TIE: Final = 6.0  # times rounding's RMS error: two scores, each up to three times as far off
_MOST: Final = 0.9  # of the parts that agree: the others' errors are outliers
_LEAST_PARTS: Final = 10  # of which that share means something
_SLACK: Final = 1 + 2.0**-20  # files round spreads, and counts of names are often at the limit
_NAMED: Final = 20  # indices that are kept


class PartsJudge:
    """Judges the parts of outputs over the latest run of each sample."""

    def __init__(self, parts: Parts) -> None:
        """Take what is expected."""
        self._parts = parts
        self._runs: dict[str, dict[str, Run]] = {}  # by output and sample
        self._expected: dict[tuple[str, str], Expected] = {}  # likewise

    def add(self, sample: str, output: str, want: Array, have: Array, dtype: str | None) -> None:
        """Take an output of a sample, of the expected shape; an earlier run of the sample is forgotten."""
        kind = dtype_of(want, dtype)
        whole = self._find_whole(output)
        rows = NO_ERRORS
        if whole is not None and not whole[1].names[0]:
            batched = all(parts.axis != 0 for parts in self._parts[output])
            rows = RowErrors.measure(want, have, kind, batched=batched)

        def measure_squares(parts: AxisParts) -> Floats:
            most = np.where(parts.names, OTHER_NAME, np.inf)
            return measure_errors(want, have, parts.axis, kind, most).squares

        self._keep(sample, output, want, kind, measure_squares, rows)

    def add_equal(self, sample: str, output: str, want: Array, dtype: str | None) -> None:
        """Take an output that equals the expected one, at no cost but for the first."""
        self._keep(sample, output, want, dtype_of(want, dtype), lambda _: None)

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
        whole = self._find_whole(output)
        figures = None if whole is None else whole[1].figures
        if whole is None or figures is None or not as_rounding:
            return allowed
        error = float(whole[1].error[0])
        if math.isfinite(error):
            # other rows than in the emulation may be ties, and of features, which are no classes, many are
            allowed = replace(allowed, tie=_TIE * error)
        return figures.widen(allowed)

    def find_fault(self, output: str, allowed: Tolerance) -> FaultyPart | None:
        """Return the worst part whose error is above what the tolerance and rounding allow."""
        faults = []
        for pool in self._pool(output):
            failing = np.flatnonzero(_fails(pool, allowed, self._find_size(output)))
            if not len(failing):
                continue
            parts = pool.parts
            with np.errstate(divide="ignore"):  # what does not move is worst
                sizes = pool.errors[failing] / parts.spread[failing]
            worst = int(failing[np.argmax(sizes)])
            faults.append(
                FaultyPart(
                    parts.axis,
                    worst,
                    len(failing),
                    find_worst_sample(self._runs[output], pool, worst),
                    float(pool.errors[worst]),
                    float(parts.spread[worst]),
                    float(parts.error[worst]),
                    names=round(pool.sizes[worst]) if parts.names[worst] else 0,
                    quiet=pool.over_all is not None,
                )
            )
        if not faults and (fault := self._find_loss(output, allowed)):
            return fault
        return max(faults, key=lambda fault: fault.severity, default=None)

    def find_unjudged(self, output: str, allowed: Tolerance) -> tuple[UnjudgedParts, ...]:
        """Return the parts that the samples do not move enough to be judged, by axis."""
        size = self._find_size(output)
        unjudged: dict[int, NDArray[np.bool_]] = {}  # by axis, whether each part is
        for pool in self._pool(output):
            if self._may_be_unjudged(output, pool.parts):
                axis, own = pool.parts.axis, _is_unjudged(pool, allowed, size)
                unjudged[axis] = unjudged.get(axis, False) | own
        whole = self._find_whole(output)
        if whole is not None and self._may_be_lost(output, whole[1], allowed):
            unjudged[WHOLE] = np.ones(1, np.bool_)
        return tuple(
            UnjudgedParts(
                axis=axis,
                indices=tuple(int(index) for index in np.flatnonzero(parts)[:_NAMED]),
                count=int(parts.sum()),
                of=len(parts),
            )
            for axis, parts in unjudged.items()
            if parts.any()
        )

    def _find_whole(self, output: str) -> tuple[int, AxisParts] | None:
        """Return the whole, and its place among the output's axes."""
        places = enumerate(self._parts.get(output, ()))
        return next((place for place in places if place[1].axis == WHOLE), None)

    def _find_size(self, output: str) -> float:
        """Return the RMS of the whole output, 0 if it is not known."""
        whole = self._find_whole(output)
        return 0.0 if whole is None else float(whole[1].magnitude[0])

    def _may_be_unjudged(self, output: str, parts: AxisParts) -> bool:
        """Return whether parts along an axis may be. Of integers the whole says it for all: each holds few names."""
        whole = self._find_whole(output)
        return parts.axis == WHOLE or whole is None or not whole[1].names[0]

    def _find_loss(self, output: str, allowed: Tolerance) -> FaultyPart | None:
        """Return how an output differs in most samples, each row by its own scale, which a loud one hides."""
        whole = self._find_whole(output)
        if whole is None:
            return None
        parts = whole[1]
        rounding = _find_own_rounding(parts, allowed)
        loss = self._find_row_loss(output, parts, allowed, rounding)
        if loss is None:
            return None
        return FaultyPart(
            axis=WHOLE,
            index=0,
            failing=loss.failing,
            sample=loss.worst,
            error=loss.error,
            spread=loss.scale,
            rounding=parts.own_share * loss.scale,
            samples=loss.samples,
            batched=loss.batched,
        )

    def _may_be_lost(self, output: str, parts: AxisParts, allowed: Tolerance) -> bool:
        """Return whether most samples are off by more than the table allows, where what rounding costs is not known."""
        rounding = _find_own_rounding(parts, allowed)
        return (
            not math.isfinite(rounding)
            and self._find_row_loss(output, parts, allowed, 0.0) is not None
        )

    def _find_row_loss(
        self, output: str, parts: AxisParts, allowed: Tolerance, rounding: float
    ) -> Loss | None:
        if allowed.part is None or parts.names[0] or not math.isfinite(rounding):
            return None
        rows = {sample: run.rows for sample, run in self._runs.get(output, {}).items()}
        least = max(allowed.atol, allowed.zero_atol)
        return find_loss(rows, max(allowed.part, rounding), least)

    def _keep(
        self,
        sample: str,
        output: str,
        want: Array,
        dtype: str,
        measure: Callable[[AxisParts], Floats | None],
        rows: RowErrors = NO_ERRORS,
    ) -> None:
        parts = self._parts.get(output, ())
        # the sizes of naming axes do not differ between samples
        if parts and all(_fits(part, want.shape) for part in parts):
            kept = tuple(measure(part) for part in parts)
            key = output, sample
            if key not in self._expected:
                self._expected[key] = measure_expected(parts, want, dtype)
            self._runs.setdefault(output, {})[sample] = Run(kept, self._expected[key], rows)

    def _pool(self, output: str) -> Iterator[Pool]:
        return pool_runs([*self._runs.get(output, {}).values()], self._parts.get(output, ()))


def _fits(part: AxisParts, shape: tuple[int, ...]) -> bool:
    return part.axis < len(shape) and count_parts(shape, part.axis) == len(part.count)


def _find_ratios(parts: AxisParts) -> Floats:
    """Return how many times rounding's error the errors of another conversion may be by chance."""
    few = np.clip(parts.count.astype(np.int64), 1, len(_RATIOS)) - 1
    return np.where(parts.count > len(_RATIOS), _RATIO, _RATIOS[few])


def _find_own_rounding(parts: AxisParts, allowed: Tolerance) -> float:
    """Return what rounding may cost most rows of a whole output, by their own scales; infinite if it is not known."""
    return float(_find_ratios(parts)[0]) * parts.own_share if allowed.rounds else 0.0


def _fails(pool: Pool, allowed: Tolerance, size: float) -> NDArray[np.bool_]:
    parts, errors = pool.parts, pool.errors
    if allowed.part is None:  # each element is judged by the user's own tolerance
        return np.zeros(len(errors), np.bool_)
    # what does not move has no scale but its size, and what elements of the whole may differ by
    least = max(allowed.atol, allowed.zero_atol, allowed.scale * size)
    still = np.maximum(allowed.part * parts.magnitude, least)
    share = np.where(parts.spread > 0, allowed.part * _SLACK * parts.spread, still)
    # a conversion within a precision on one provider rounds nothing
    widest = pool.over_all or pool
    ratio = _find_ratios(parts) * _find_excess(widest.parts, widest.errors, allowed.part)
    rounding = ratio * parts.error if allowed.rounds else np.zeros(len(errors))
    moving = np.square(parts.spread) * pool.sizes
    chance = np.where(parts.names, np.sqrt(np.clip(moving / 2, 1.0, _CHANCE) / pool.sizes), 0.0)
    negligible = np.full(len(errors), _find_negligible(pool, allowed, size))
    fails: NDArray[np.bool_] = errors > np.max((share, rounding, chance, negligible), axis=0)
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


def _find_negligible(pool: Pool, allowed: Tolerance, size: float) -> float:
    """Return the RMS error that is none; of quiet samples what an output of zeros may have, as their values may be."""
    if pool.over_all:
        return max(allowed.atol, allowed.zero_atol)
    return min(allowed.atol, allowed.negligible * size)


def _is_unjudged(pool: Pool, allowed: Tolerance, size: float) -> NDArray[np.bool_]:
    parts, errors = pool.parts, pool.errors
    if allowed.part is None:
        return np.zeros(len(errors), np.bool_)
    moving = parts.spread > 0
    agrees = moving & ~parts.bound & (errors <= allowed.part * _SLACK * parts.spread)
    if pool.over_all:  # parts without quiet samples are judged over all
        agrees |= ~moving | (errors <= _find_negligible(pool, allowed, size))
    return ~agrees & ~_fails(pool, allowed, size)
