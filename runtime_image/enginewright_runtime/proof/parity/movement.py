"""How far each element of an output moves from sample to sample. Pure.

A detector's boxes lie on a grid of anchors, the same in every sample: what differs between positions says
nothing of what the model has seen, and would hide that it sees nothing.
"""

import copy
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.fills import Fill, find_fill
from enginewright_runtime.proof.parity.part_sums import WHOLE, Floats, count_parts
from enginewright_runtime.proof.parity.values import Array, wide

_MOST: Final = 1 << 23  # elements of all sizes, as 20 bytes are kept of each
_MOST_OF_ONE: Final = 1 << 21  # of one size: of larger outputs every nth element is kept
_PIECE: Final = 1 << 18  # elements that are converted at a time
_SMALL: Final = 1e-4  # of a variance: a grid of less is not what it consists of

Shape = tuple[int, ...]
Sizes = tuple[Shape, ...]  # of the inputs of a sample


class _Deviations:
    """Sums of the finite elements of arrays of one shape that are no fills, by Chan's method."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._step = _choose_step(shape)
        size = len(range(0, math.prod(shape), self._step))
        self.counts = np.zeros(size, np.int32)
        self.means, self.squares = np.zeros((2, size))

    @property
    def most(self) -> int:
        """How many samples have any of the elements."""
        return int(self.counts.max(initial=0))

    def add(self, arrays: Array, dtype: str, fill: Fill) -> None:
        """Add arrays, [number of them, elements]."""
        chosen = arrays[:, :: self._step]
        width = max(1, _PIECE // len(arrays))
        for start in range(0, chosen.shape[1], width):
            piece = slice(start, start + width)
            numbers = fill.hide(wide(chosen[:, piece], dtype))
            finite = np.isfinite(numbers)
            kept = np.where(finite, numbers, 0.0)
            more = finite.sum(0, dtype=np.int32)
            means = kept.sum(0) / np.maximum(more, 1)
            squares = np.square(np.where(finite, kept - means, 0.0)).sum(0)
            self._include(piece, more, means, squares)

    def merge(self, other: "_Deviations") -> None:
        """Add those of further arrays."""
        self._include(slice(None), other.counts, other.means, other.squares)

    def _include(
        self, piece: slice, more: NDArray[np.int32], means: Floats, squares: Floats
    ) -> None:
        before = self.counts[piece].copy()
        self.counts[piece] += more
        share = more / np.maximum(self.counts[piece], 1)
        gaps = means - self.means[piece]
        self.means[piece] += gaps * share
        self.squares[piece] += squares + np.square(gaps) * before * share

    def locate(self, axis: int) -> NDArray[np.int64]:
        """Return the index along an axis of each element."""
        after = 1 if axis == WHOLE else math.prod(self._shape[axis + 1 :])
        chosen = np.arange(0, math.prod(self._shape), self._step)
        return chosen // after % count_parts(self._shape, axis)


def _choose_step(shape: Shape) -> int:
    """Return of how many elements one is kept: a number without a divisor of any axis, so that each index has its share."""
    elements = math.prod(shape)
    step = -(-elements // _MOST_OF_ONE)
    while math.gcd(step, elements) > 1:
        step += 1
    return step


class NameChanges:
    """Counts the names that differ from those at the same place in the sample before, of the same size.

    Tokens or a map that are the same in every sample are no movement, however many kinds they hold.
    """

    def __init__(self, *, rows: bool) -> None:
        """Begin without samples; `rows` as of `Movement`."""
        self._rows = rows
        self._latest: dict[Shape, Array] = {}  # [1, …]
        self._changed = self._count = 0

    def add(self, values: Array) -> None:
        """Add a sample's array."""
        arrays = values if self._rows and values.ndim else values[None]
        if not arrays.size:
            return
        before = self._latest.get(arrays.shape[1:], arrays[:0])
        arrays = np.concatenate((before, arrays))
        self._changed += int(np.count_nonzero(arrays[1:] != arrays[:-1]))
        self._count += arrays[1:].size
        self._latest[arrays.shape[1:]] = arrays[-1:]

    def measure(self) -> float:
        """Return the root of their share, as of `AxisSums.measure_moving`; infinite if no two samples have one size."""
        return math.sqrt(self._changed / self._count) if self._count else math.inf


class Movement:
    """Sums the deviations of each element over the samples of its shape.

    Where outputs have several shapes, they also depend on the sizes of the inputs: pictures of 256 x 320 and of
    320 x 256 have as many anchors, in other places.
    """

    def __init__(self, *, rows: bool) -> None:
        """Begin without samples. `rows`: the first axis names nothing, so that each row of a batch is a sample."""
        self._rows = rows
        self._by_size: dict[tuple[Sizes, Shape], _Deviations] = {}
        self._elements = 0
        self.is_partial = False  # whether samples were left out, as there are too many elements

    def add(self, values: Array, dtype: str, inputs: Sizes = ()) -> None:
        """Add a sample's array, and the sizes of its inputs; `dtype` is as `values.dtype_of` returns it."""
        arrays = values if self._rows and values.ndim else values[None]
        if not arrays.size:
            return
        shape = arrays.shape[1:]
        size = (tuple(item[1:] if self._rows else item for item in inputs), shape)
        if size not in self._by_size:
            deviations = _Deviations(shape)
            if self._elements + deviations.counts.size > _MOST:
                self.is_partial = True
                return
            self._elements += deviations.counts.size
            self._by_size[size] = deviations
        rows = arrays.reshape(len(arrays), -1)
        self._by_size[size].add(rows, dtype, find_fill(values, dtype))

    def is_alone(self) -> bool:
        """Return whether each array has a size of its own, so that what moves and what differs between positions look alike."""
        deviations = self._list_deviations()
        return bool(deviations) and all(item.most <= 1 for item in deviations)

    def _list_deviations(self) -> Sequence[_Deviations]:
        """Return the deviations by size; of outputs of one shape, those of all."""
        if len({shape for _, shape in self._by_size}) != 1:
            return [*self._by_size.values()]
        first, *others = self._by_size.values()
        merged = copy.deepcopy(first) if others else first
        for other in others:
            merged.merge(other)
        return [merged]

    def measure(self, axis: int, means: Floats) -> Floats:
        """Return the RMS deviation of the elements of each index along an axis: 0 if none has two samples, NaN if none of the index has.

        Arrays that alone have their shape count with their deviation from the `means` of all values of an index,
        where the others show no grid: the means of elements do not differ by more than the elements move.
        """
        deviations = self._list_deviations()
        if all(item.most <= 1 for item in deviations):
            return np.zeros(len(means))
        place = axis - 1 if self._rows and axis != WHOLE else axis
        total, count, lone_total, lone_count, moving, grid, places = np.zeros((7, len(means)))
        for item in deviations:
            located = item.locate(place)

            def add_up(values: Array, located: NDArray[np.int64] = located) -> Floats:
                return np.bincount(located, values, len(means)).astype(np.float64)

            sampled = item.counts >= min(2, item.most)
            number = add_up(sampled)
            centres = add_up(np.where(sampled, item.means, 0.0)) / np.maximum(number, 1.0)
            spread = add_up(np.where(sampled, np.square(item.means - centres[located]), 0.0))
            if item.most <= 1:
                lone_total += spread + number * np.square(centres - means)
                lone_count += number
                continue
            squares, counts = (np.where(sampled, array, 0) for array in (item.squares, item.counts))
            variances = squares / np.maximum(counts - 1, 1)
            total += add_up(squares)
            count += add_up(counts)
            moving += add_up(variances)
            grid += spread - add_up(variances / np.maximum(counts, 1))
            places += number
        lone_variance = lone_total / np.maximum(lone_count, 1.0)
        counted = grid <= np.maximum(moving, _SMALL * places * lone_variance)
        total += np.where(counted, lone_total, 0.0)
        count += np.where(counted, lone_count, 0.0)
        with np.errstate(invalid="ignore"):
            deviation: Floats = np.sqrt(total / count)
        return deviation
