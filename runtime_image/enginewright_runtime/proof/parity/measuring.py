"""Measures how one array differs from another, in pieces, and checks it against a tolerance. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.fills import NUMERICALLY_ZERO, Fill, find_fill
from enginewright_runtime.proof.parity.tolerances import Tolerance
from enginewright_runtime.proof.parity.values import (
    Array,
    dtype_of,
    kind_of,
    pieces,
    text_of,
    wide,
)

_PIECE: Final = 1 << 18  # elements that are converted at a time
_SIGNIFICANT: Final = 0.01  # of the largest: relative errors of smaller values are rounding
_MOST_AXES: Final = 3  # of class scores: [classes], [batch, classes] or [batch, steps, classes]
_SINGLE: Final = 1e-6  # of a share that a file holds in single precision

_Floats = NDArray[np.float64]


@dataclass(slots=True)
class Figures:
    """How one output of one sample differs from the expected one."""

    elements: int
    numeric: bool = True  # whether errors were measured; otherwise elements are equal or not
    largest: float = 0.0  # magnitude of the expected values, for the tolerance
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0  # of values that are at least 1% of the largest
    cosine: float | None = None  # unless the expected output is near zero, or one number
    rows: int = 0  # of class scores, if the shape is one of class scores
    rows_agreeing: int = 0
    nan: int = 0  # NaN where the expected value is not
    inf: int = 0  # infinite where the expected value is not, or has the other sign
    finite: int = 0  # finite where the expected value is not
    misplaced: int = 0  # fills (see `fills`) where the expected value is none, and reverse
    outside: int = 0  # elements outside the tolerance, or unequal
    beyond: int = 0  # of those, elements too far outside to be allowed as outliers
    absent: int = 0  # the same in both, and no value: NaN, infinite or masked

    @property
    def outside_share(self) -> float:
        """The share of the elements with values that are outside the tolerance."""
        return self.outside / max(self.elements - self.absent, 1)


class Mismatch(NamedTuple):
    """The figure that exceeds its tolerance."""

    figure: str  # type | shape | elements | outliers | equal | cosine | top1 | finite
    description: str  # that follows an output's name
    allowed: str = ""  # the tolerance, unless the description states it

    @property
    def full_description(self) -> str:
        """The description and the tolerance."""
        return f"{self.description}; allowed: {self.allowed}" if self.allowed else self.description


def measure(
    want: Array,
    have: Array,
    allowed: Tolerance,
    dtype: str | None = None,
    largest: float = 0.0,
) -> Figures:
    """Return how `have` differs from `want`, of the same shape and type.

    `largest` is the magnitude over all samples, used if `allowed.across_samples`. Floats with one
    to three axes and two or more elements along the last one count as class scores. A row agrees if
    the expected score of the top class in `have` is within a margin of the highest expected score,
    so that ties agree: `allowed.scale` of its magnitude, at least `allowed.atol` and `allowed.tie`.
    """
    kind = kind_of(want, dtype)
    if kind == "float" or (kind == "integer" and allowed.all_numbers):
        figures = Figures(elements=want.size)
        figures.largest = largest if allowed.across_samples else 0.0
        fill = find_fill(want, dtype)
        if not allowed.fills:
            fill = Fill(fill.largest)
        name = dtype_of(want, dtype)
        _measure_numbers(figures, want, have, allowed, name, fill)
        if kind == "float" and 1 <= want.ndim <= _MOST_AXES and want.shape[-1] > 1:
            _add_rows(figures, want, have, allowed, name, fill)
        return figures
    unequal = _unequal_strings(want, have) if kind == "string" else np.count_nonzero(want != have)
    return Figures(elements=want.size, numeric=False, outside=int(unequal))


def _unequal_strings(want: Array, have: Array) -> int:
    """Count unequal strings without NumPy's string arrays, whose elements all have the largest size."""
    return sum(
        text_of(first) != text_of(second)
        for first, second in zip(want.reshape(-1), have.reshape(-1), strict=True)
    )


def form_fault(
    want: Array, have: Array, dtype: str | None, shape: tuple[int | None, ...] | None = None
) -> Mismatch | None:
    """Return how type or shape differ; `shape`, with None for dynamic sizes, replaces `want`'s."""
    types = dtype_of(want, dtype), dtype_of(have, dtype)
    if types[0] != types[1]:
        return Mismatch("type", f"has type {types[1]}, expected {types[0]}")
    sizes = want.shape if shape is None else shape
    wanted_shape = "[" + ", ".join("?" if size is None else str(size) for size in sizes) + "]"
    if len(sizes) != have.ndim:
        return Mismatch(
            "shape",
            f"has {have.ndim} dimensions, shape {list(have.shape)}, expected {len(sizes)},"
            f" shape {wanted_shape}",
        )
    if any(size not in {None, actual} for size, actual in zip(sizes, have.shape, strict=True)):
        return Mismatch("shape", f"has shape {list(have.shape)}, expected {wanted_shape}")
    return None


def largest_of(array: Array, dtype: str | None) -> float:
    """Return the largest finite magnitude that is no fill, 0 without numbers."""
    return find_fill(array, dtype).largest


def has_numbers(array: Array, dtype: str | None) -> bool:
    """Return whether any element can be compared: a finite number, or of another type than floats."""
    if kind_of(array, dtype) != "float":
        return array.size > 0
    fill = find_fill(array, dtype)
    return any(
        bool(np.isfinite(fill.hide(piece)).any()) for piece in pieces(array, dtype_of(array, dtype))
    )


def fault(figures: Figures, allowed: Tolerance) -> Mismatch | None:
    """Return the first figure of one sample that exceeds the tolerance, if any does."""
    if not figures.elements:
        return None
    if figures.numeric:
        return _element_fault(figures, allowed) or _aggregate_fault(figures, allowed)
    share = figures.outside_share
    if share <= allowed.unequal:
        return None
    return Mismatch("equal", f"differs in {share:.1%} of its elements")


def _element_fault(figures: Figures, allowed: Tolerance) -> Mismatch | None:
    if figures.nan or figures.inf or figures.finite:
        return Mismatch("finite", _describe_misplaced(figures))
    about = (
        f"largest absolute error {figures.max_abs_error:.3g}, largest value {figures.largest:.3g}"
    )
    if figures.misplaced:
        about += f", {figures.misplaced} masked in one output alone"
    share = figures.outside_share
    if share > allowed.outliers:
        description = f"is outside the tolerance in {share:.1%} of its elements ({about})"
        return Mismatch("elements", description, _describe_tolerance(allowed))
    if figures.beyond:
        description = f"is far outside the tolerance in {figures.beyond} of its elements ({about})"
        return Mismatch("outliers", description, _describe_tolerance(allowed))
    return None


def _aggregate_fault(figures: Figures, allowed: Tolerance) -> Mismatch | None:
    cosine, least = figures.cosine, allowed.cosine
    if cosine is not None and least is not None and cosine < least:
        description = f"has cosine similarity {cosine:.4f}, below the minimum of {least:g} for {allowed.label}"
        return Mismatch("cosine", description)
    return _top_class_fault((figures,), allowed) if allowed.top1 == 1.0 else None


def fault_over_samples(figures: Sequence[Figures], allowed: Tolerance) -> Mismatch | None:
    """Return that too few rows keep their top class, if so: a share below 100% of a few rows means nothing."""
    return None if allowed.top1 == 1.0 else _top_class_fault(figures, allowed)


def _top_class_fault(figures: Sequence[Figures], allowed: Tolerance) -> Mismatch | None:
    count, agreeing = (
        sum(getattr(item, name) for item in figures) for name in ("rows", "rows_agreeing")
    )
    if allowed.top1 is None or not count or agreeing / count >= allowed.top1 - _SINGLE:
        return None
    return Mismatch(
        "top1",
        f"has the same top class in {agreeing / count:.1%} of {count} rows"
        f"{f' of {len(figures)} samples' if len(figures) > 1 else ''}, below the minimum of {allowed.top1:.0%} for {allowed.label}",
    )


def _describe_misplaced(figures: Figures) -> str:
    kinds = ((figures.nan, "NaN"), (figures.inf, "infinite"), (figures.finite, "finite"))
    counts = [f"{count} {kind}" for count, kind in kinds if count]
    return (
        "has NaN or infinity in other places than expected:"
        f" {' and '.join(counts)} of {figures.elements} values"
    )


def _describe_tolerance(allowed: Tolerance) -> str:
    if not allowed.scale:
        return f"{allowed.rtol:g} of the value plus {allowed.atol:g}, by {allowed.label}"
    return (
        f"{_percent(1 - allowed.outliers)} within {_percent(allowed.rtol)} of the value plus"
        f" {_percent(allowed.scale)} of the largest, the rest within"
        f" {_percent(allowed.outlier_size)} of the largest, by {allowed.label}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _measure_numbers(
    figures: Figures, want: Array, have: Array, allowed: Tolerance, dtype: str, fill: Fill
) -> None:
    own = fill.largest
    figures.largest = max(figures.largest, own)
    dot = expected = actual = 0.0
    for piece, other_piece in zip(pieces(want, dtype), pieces(have, dtype), strict=True):
        figures.misplaced += fill.count_misplaced(piece, other_piece)
        first, second = fill.hide_both(piece, other_piece)
        _count_misplaced(figures, first, second)
        both = np.isfinite(first) & np.isfinite(second)
        figures.absent += _count_absent(first, second)
        _add_errors(figures, first[both], second[both], allowed)
        # in units of the largest, so that squares do not overflow
        one, other = first[both] / (own or 1.0), second[both] / (own or 1.0)
        dot += float(one @ other)
        expected += float(one @ one)
        actual += float(other @ other)
    cosine_floor = max(
        allowed.cosine_floor, allowed.scale * figures.largest if allowed.across_samples else 0.0
    )
    if own > cosine_floor and want.size > 1:
        figures.cosine = _cosine(dot, expected, actual)


def _count_absent(want: _Floats, have: _Floats) -> int:
    """Return how many are the same in both, and no number."""
    finite = np.isfinite(want)
    if finite.all():
        return 0
    same = (want == have) | (np.isnan(want) & np.isnan(have))
    return int(np.count_nonzero(same & ~finite))


def _count_misplaced(figures: Figures, want: _Floats, have: _Floats) -> None:
    finite = np.isfinite(have)
    if finite.all() and np.isfinite(want).all():
        return
    figures.nan += int(np.count_nonzero(np.isnan(have) & ~np.isnan(want)))
    figures.inf += int(np.count_nonzero(np.isinf(have) & (have != want)))
    figures.finite += int(np.count_nonzero(finite & ~np.isfinite(want)))


def _add_errors(figures: Figures, want: _Floats, have: _Floats, allowed: Tolerance) -> None:
    if not want.size:
        return
    size = np.abs(want)
    with np.errstate(over="ignore"):  # an error that overflows float64 is infinite
        error = np.abs(have - want)
    is_zero = figures.largest <= NUMERICALLY_ZERO
    floor = max(allowed.atol, allowed.zero_atol) if is_zero else allowed.atol
    tolerance = allowed.rtol * size + max(allowed.scale * figures.largest, floor)
    outside = error > tolerance
    figures.outside += int(np.count_nonzero(outside))
    limit = tolerance + allowed.outlier_size * figures.largest
    figures.beyond += int(np.count_nonzero(error > limit))
    figures.max_abs_error = max(figures.max_abs_error, float(error.max()))
    significant = (size > 0) & (size >= _SIGNIFICANT * figures.largest)
    relative = np.divide(error, size, out=np.zeros_like(error), where=significant)
    figures.max_rel_error = max(figures.max_rel_error, float(relative.max()))


def _cosine(dot: float, want: float, have: float) -> float:
    """Return the cosine; 0 where `have` is zero, since `want` is not."""
    length = math.sqrt(want * have)
    return max(-1.0, min(1.0, dot / length)) if length else 0.0


def _add_rows(
    figures: Figures, want: Array, have: Array, allowed: Tolerance, dtype: str, fill: Fill
) -> None:
    classes = want.shape[-1]
    first, second = want.reshape(-1, classes), have.reshape(-1, classes)
    step = max(1, _PIECE // classes)
    tie = min(allowed.tie, allowed.scale * figures.largest)
    for start in range(0, len(first), step):
        rows = slice(start, start + step)
        expected, chosen = _best(first[rows], dtype), _best(second[rows], dtype)
        best = _scores(first[rows], expected, dtype)
        taken = _scores(first[rows], chosen, dtype)
        margin = np.maximum(allowed.scale * np.abs(best), max(allowed.atol, tie))
        with np.errstate(invalid="ignore"):  # of rows that are not finite
            agreeing = (taken >= best - margin) | (chosen == expected)
        shown = ~fill.covers(best)
        figures.rows += int(np.count_nonzero(shown))
        figures.rows_agreeing += int(np.count_nonzero(agreeing & shown))


def _best(rows: Array, dtype: str) -> NDArray[np.intp]:
    best = np.zeros(len(rows), np.intp)
    for start in range(0, rows.shape[1], _PIECE):
        piece = start + wide(rows[:, start : start + _PIECE], dtype).argmax(axis=1)
        then, now = _scores(rows, best, dtype), _scores(rows, piece, dtype)
        best = np.where((now > then) | (np.isnan(now) & ~np.isnan(then)), piece, best)
    return best


def _scores(rows: Array, classes: NDArray[np.intp], dtype: str) -> _Floats:
    return wide(rows[np.arange(len(rows)), classes], dtype)
