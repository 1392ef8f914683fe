"""Lies: outputs as a wrong artefact or backend might return them, made from right ones.

Needs NumPy alone, as the environments of other comparators import it too. The same lie of the same outputs
is always the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Arrays = Sequence[Array]  # one output, by sample
_MASKED: Final = -9000.0
WHOLE: Final = -1  # the axis of a lie about an output that has no axis that names things


@dataclass(frozen=True)
class Lie:
    """A wrong output: what is wrong about one slice, an index along an axis, in all samples, where no mask covers it."""

    kind: str
    output: str
    axis: int  # or WHOLE
    index: int
    other: int  # another index along the axis
    size: float = float("nan")  # RMS error of the slice over its spread; inf if it is no number


def tell(lie: Lie, right: Arrays) -> list[Array] | None:
    """Return the outputs of all samples with the lie, or None if these outputs cannot have it."""
    if lie.kind == ROWS_MISSING:
        return _drop_rows(lie, right)
    if lie.kind == ROLLED:
        if lie.axis == WHOLE:
            return None
        return [np.roll(array, 1, lie.axis) for array in right]
    wrong = [array.copy() for array in right]
    slices = [_take(array, lie.axis, lie.index) for array in wrong]
    if lie.kind == SWAPPED:
        return _swap(lie, wrong, slices)
    values = np.concatenate([item.reshape(-1) for item in slices]).astype(np.float64)
    shapes = {item.shape for item in slices}
    shown = _find_shown(values)
    if lie.kind == OTHER_SAMPLE and (len(slices) < 2 or len(shapes) > 1 or not shown.all()):
        return None
    rng = np.random.default_rng([lie.axis + 1, lie.index, tuple(KINDS).index(lie.kind)])
    changed = values
    changed[shown] = KINDS[lie.kind](values[shown], rng, len(slices))
    pieces = np.split(changed, np.cumsum([item.size for item in slices])[:-1])
    for item, piece in zip(slices, pieces, strict=True):
        item[...] = piece.reshape(item.shape)
    return wrong


def measure(right: Arrays, wrong: Arrays, axis: int, index: int) -> float:
    """Return the RMS error of a slice over its spread, inf if shapes or NaN differ."""
    if any(one.shape != other.shape for one, other in zip(right, wrong, strict=True)):
        return float("inf")
    first, second = (pool(arrays, axis, index) for arrays in (right, wrong))
    if not np.array_equal(np.isfinite(first), np.isfinite(second)):
        return float("inf")
    shown = np.isfinite(first) & (_find_shown(first) | _find_shown(second))
    first, second = first[shown], second[shown]
    error = float(np.sqrt(np.mean(np.square(second - first)))) if first.size else 0.0
    spread = float(first.std()) if first.size else 0.0
    return error / spread if spread else float("inf")


def pool(arrays: Arrays, axis: int, index: int) -> Floats:
    """Return the values of a slice over all samples."""
    return np.concatenate(
        [_take(array, axis, index).reshape(-1).astype(np.float64) for array in arrays]
    )


def _find_shown(values: Floats) -> NDArray[np.bool_]:
    """Return which values no mask covers, of real models: none has a score below its number."""
    return ~(values < _MASKED)


def _take(array: Array, axis: int, index: int) -> Array:
    """Return a view of a slice."""
    view: Array = array[...] if axis == WHOLE else array[(slice(None),) * axis + (index,)]
    return view


def _swap(lie: Lie, wrong: Arrays, slices: Arrays) -> list[Array] | None:
    if lie.axis == WHOLE or lie.other == lie.index:
        return None
    others = [_take(array, lie.axis, lie.other) for array in wrong]
    for one, other in zip(slices, others, strict=True):
        one[...], other[...] = other.copy(), one.copy()
    return list(wrong)


def _drop_rows(lie: Lie, right: Arrays) -> list[Array] | None:
    """Drop the last quarter of the longest axis but that of the slice."""
    wrong = []
    for array in right:
        sizes = [0 if axis == lie.axis else size for axis, size in enumerate(array.shape)]
        longest = int(np.argmax(sizes))
        if sizes[longest] < 2:
            return None
        most = sizes[longest] - max(1, sizes[longest] // 4)
        wrong.append(np.take(array, range(most), longest))
    return wrong


def _scale(factor: float) -> Callable[[Floats, np.random.Generator, int], Floats]:
    return lambda values, _, __: values * factor


def _add_noise(share: float) -> Callable[[Floats, np.random.Generator, int], Floats]:
    """Add noise whose RMS is exactly that share of the spread."""

    def change(values: Floats, rng: np.random.Generator, _: int) -> Floats:
        noise = rng.standard_normal(values.size)
        size = float(np.sqrt(np.mean(np.square(noise)))) or 1.0
        return np.asarray(values + noise * (share * values.std() / size))

    return change


def _put_nan(values: Floats, rng: np.random.Generator, _: int) -> Floats:
    changed = values.copy()
    changed[rng.integers(values.size)] = np.nan
    return changed


def _shift_samples(values: Floats, _: np.random.Generator, samples: int) -> Floats:
    return np.roll(values.reshape(samples, -1), 1, 0).reshape(-1)


SWAPPED: Final = "swapped"
ROLLED: Final = "class shifted"
OTHER_SAMPLE: Final = "another sample's"
ROWS_MISSING: Final = "rows missing"
NAN: Final = "NaN"
# the values of a slice over all samples, randomness, and the number of samples -> the wrong values
KINDS: Final[dict[str, Callable[[Floats, np.random.Generator, int], Floats]]] = {
    "zero": _scale(0.0),
    "constant": lambda values, _, __: np.full(values.size, values.mean()),
    "x0.1": _scale(0.1),
    "x0.5": _scale(0.5),
    "x0.9": _scale(0.9),
    "x1.1": _scale(1.1),
    "x10": _scale(10.0),
    "sign": _scale(-1.0),
    "permuted": lambda values, rng, _: rng.permutation(values),
    OTHER_SAMPLE: _shift_samples,
    "noise 1%": _add_noise(0.01),
    "noise 5%": _add_noise(0.05),
    "noise 20%": _add_noise(0.2),
    NAN: _put_nan,
    "unrelated": lambda values, rng, _: rng.normal(values.mean(), values.std(), values.size),
}
# once for an output: these change all slices of an axis
ONCE: Final = (ROLLED, ROWS_MISSING)
ALL: Final = (*KINDS, SWAPPED, *ONCE)


def plan(
    output: str, right: Arrays, moving: Sequence[tuple[int, Sequence[int]]], most: int
) -> list[Lie]:
    """Return lies about at most so many slices of each axis, evenly spaced among its `moving` indices.

    An output without axes that name things is one slice.
    """
    lies = []
    for axis, indices in moving or [(WHOLE, (0,))]:
        places = np.unique(np.linspace(0, len(indices) - 1, min(most, len(indices))).astype(int))
        chosen = [int(indices[place]) for place in places]
        for number, index in enumerate(chosen):
            other = chosen[(number + 1) % len(chosen)]
            kinds = [kind for kind in ALL if kind not in ONCE or number == 0]
            lies += [Lie(kind, output, axis, index, other) for kind in kinds]
    measured = []
    for lie in lies:
        wrong = tell(lie, right)
        if wrong is not None:
            size = measure(right, wrong, lie.axis, lie.index)
            measured.append(Lie(lie.kind, lie.output, lie.axis, lie.index, lie.other, size))
    return [lie for lie in measured if lie.size > 0]
