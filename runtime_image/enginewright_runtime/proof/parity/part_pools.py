"""Pools the errors of parts over samples: over all, and over those that are quiet of each part (see `quiet_samples`). Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.own_scales import NO_ERRORS, RowErrors
from enginewright_runtime.proof.parity.part_sums import Floats, ValueSums, count_parts
from enginewright_runtime.proof.parity.parts import AxisParts
from enginewright_runtime.proof.parity.values import Array

Flags = NDArray[np.bool_]


class Expected(NamedTuple):
    """What the expected values of a sample say, by axis."""

    counts: tuple[Floats, ...]  # values of each part
    quiet: tuple[Flags | None, ...]  # parts of which it is a quiet sample, if any has some


@dataclass(frozen=True, slots=True)
class Run:
    """Errors of the parts of one output of one sample, small enough to be kept for each sample."""

    squares: tuple[Floats | None, ...]  # by axis, sums; or None if all are 0
    expected: Expected
    rows: RowErrors = NO_ERRORS  # of floats


class Pool(NamedTuple):
    """Errors of the parts along an axis, over all samples or over quiet ones."""

    number: int  # of the axis, in the output's parts
    parts: AxisParts  # of quiet samples: what these move them by, and rounding costs there
    errors: Floats  # RMS
    sizes: Floats  # values of each part
    over_all: "Pool | None" = None  # of quiet samples


def measure_expected(parts: Sequence[AxisParts], want: Array, dtype: str) -> Expected:
    """Return what an expected array says; `dtype` is as `values.dtype_of` returns it."""
    counts, quiet = [], []
    for part in parts:
        sums = ValueSums(count_parts(want.shape, part.axis))
        sums.add(want, part.axis, dtype)
        counts.append(sums.count)
        quiet.append(None if part.quiet is None else part.quiet.find(sums))
    return Expected(tuple(counts), tuple(quiet))


def pool_runs(runs: Sequence[Run], axes: Sequence[AxisParts]) -> Iterator[Pool]:
    """Yield the axes over all runs, and over the quiet samples where an axis has parts with some."""
    for number, parts in enumerate(axes if runs else ()):
        over_all = Pool(number, parts, *_measure_errors(runs, number, [None] * len(runs)))
        yield over_all
        if (quiet := parts.quiet) is not None:
            expected = replace(parts, spread=quiet.spread, error=quiet.error)
            chosen = [run.expected.quiet[number] for run in runs]
            yield Pool(number, expected, *_measure_errors(runs, number, chosen), over_all)


def find_worst_sample(runs: Mapping[str, Run], pool: Pool, index: int) -> str:
    """Return the sample in which a part has the largest error, of those that the pool is of."""

    def find_error(sample: str) -> float:
        squares = runs[sample].squares[pool.number]
        quiet = runs[sample].expected.quiet[pool.number] if pool.over_all else None
        if squares is None or (quiet is not None and not quiet[index]):
            return 0.0
        return float(squares[index])

    return max(runs, key=find_error)


def _measure_errors(
    runs: Sequence[Run], number: int, chosen: Sequence[Flags | None]
) -> tuple[Floats, Floats]:
    """Return the RMS errors along an axis and the values of each part; `chosen` are those of each run that count, or None for all."""
    squares, sizes = np.zeros((2, len(runs[0].expected.counts[number])))
    for run, flags in zip(runs, chosen, strict=True):
        counted = 1.0 if flags is None else flags
        sizes += run.expected.counts[number] * counted
        if (own := run.squares[number]) is not None:
            squares += own if flags is None else np.where(flags, own, 0.0)
    sizes = np.maximum(sizes, 1.0)
    return np.sqrt(squares / sizes), sizes
