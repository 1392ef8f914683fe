"""How far each element of an output moves from sample to sample. Pure.

A detector's boxes lie on a grid of anchors, the same in every sample: what differs between positions says
nothing of what the model has seen, and would hide that it sees nothing.
"""

import math
from typing import Final

import numpy as np

from enginewright_runtime.proof.parity.fills import Fill, find_fill
from enginewright_runtime.proof.parity.part_sums import WHOLE, Floats, split_parts
from enginewright_runtime.proof.parity.values import Array, wide

_MOST: Final = 1 << 24  # elements, as 8 bytes are kept of each
_PIECE: Final = 1 << 18  # elements that are converted at a time


class _Deviations:
    """Sums of arrays of one shape, by Chan's method."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.means, self.squares = np.zeros((2, *shape), np.float32)

    def add(self, arrays: Array, dtype: str, fill: Fill) -> None:
        """Add arrays, [number of them, elements]."""
        more = len(arrays)
        before, self.count = self.count, self.count + more
        means, squares = self.means.reshape(-1), self.squares.reshape(-1)
        width = max(1, _PIECE // more)
        for start in range(0, arrays.shape[1], width):
            piece = slice(start, start + width)
            numbers = fill.hide(wide(arrays[:, piece], dtype))
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite stays so
                mean = numbers.mean(0)
                gaps = mean - means[piece]
                means[piece] += gaps * (more / self.count)
                squares[piece] += np.square(numbers - mean).sum(0)
                squares[piece] += np.square(gaps) * (before * more / self.count)


class Movement:
    """Sums the deviations of each element over the samples of its shape."""

    def __init__(self, *, rows: bool) -> None:
        """Begin without samples. `rows`: the first axis names nothing, so that each row of a batch is a sample."""
        self._rows = rows
        self._by_shape: dict[tuple[int, ...], _Deviations] = {}
        self._elements = 0

    def add(self, values: Array, dtype: str) -> None:
        """Add a sample's array; `dtype` is as `values.dtype_of` returns it."""
        arrays = values if self._rows and values.ndim else values[None]
        if not arrays.size:
            return
        shape = arrays.shape[1:]
        if shape not in self._by_shape:
            self._elements += math.prod(shape)
            if self._elements > _MOST:
                self._by_shape.clear()
                return
            self._by_shape[shape] = _Deviations(shape)
        rows = arrays.reshape(len(arrays), -1)
        self._by_shape[shape].add(rows, dtype, find_fill(values, dtype))

    def measure(self, axis: int, means: Floats) -> Floats:
        """Return the RMS deviation of the elements of each index along an axis; 0 if it is not known.

        Of arrays that alone have their shape, it is that from the `means` of all values of an index.
        """
        total, count = np.zeros((2, len(means)))
        place = axis - 1 if self._rows and axis != WHOLE else axis
        if all(item.count == 1 for item in self._by_shape.values()):
            return total
        for item in self._by_shape.values():
            values = item.squares if item.count > 1 else item.means
            for (piece,) in split_parts((values,), place, "float32"):
                squares = piece if item.count > 1 else np.square(piece - means[:, None])
                finite = np.isfinite(squares)
                total += np.where(finite, squares, 0.0).sum((0, 2))
                count += item.count * finite.sum((0, 2))
        deviation: Floats = np.sqrt(total / np.maximum(count, 1.0))
        return deviation
