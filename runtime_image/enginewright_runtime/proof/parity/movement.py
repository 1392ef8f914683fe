"""How far each element of an output moves from sample to sample. Pure.

A detector's boxes lie on a grid of anchors, the same in every sample: what differs between positions says
nothing of what the model has seen, and would hide that it sees nothing.
"""

import math
from typing import Final

import numpy as np

from enginewright_runtime.proof.parity.part_sums import Floats, split_parts
from enginewright_runtime.proof.parity.values import Array, wide

_MOST: Final = 1 << 24  # elements, as 8 bytes are kept of each
_PIECE: Final = 1 << 18  # elements that are converted at a time


class Movement:
    """Sums the deviations of each element over samples of one shape, by Welford's method."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Begin without samples; `shape` is that of the first."""
        size = math.prod(shape)
        self._shape: tuple[int, ...] | None = shape if size <= _MOST else None
        self._count = 0
        kept = size if size <= _MOST else 0
        self._means, self._squares = np.zeros((2, kept), np.float32)

    def add(self, values: Array, dtype: str) -> None:
        """Add a sample's array; `dtype` is as `values.dtype_of` returns it. After another shape nothing is known."""
        if values.shape != self._shape:
            self._shape = None
            return
        self._count += 1
        flat = values.reshape(-1)
        for start in range(0, flat.size, _PIECE):
            piece = slice(start, start + _PIECE)
            numbers = wide(flat[piece], dtype)
            with np.errstate(
                invalid="ignore", over="ignore"
            ):  # what is not finite stays so, and is left out
                gaps = numbers - self._means[piece]
                self._means[piece] += gaps / self._count
                self._squares[piece] += gaps * (numbers - self._means[piece])

    def measure(self, axis: int, size: int) -> Floats:
        """Return the RMS of the standard deviations of the elements of each of `size` indices along an axis, 0 if it is not known."""
        total, count = np.zeros((2, size))
        if self._shape is None or self._count < 2:
            return total
        for (piece,) in split_parts((self._squares.reshape(self._shape),), axis, "float32"):
            finite = np.isfinite(piece)
            total += np.where(finite, piece, 0.0).sum((0, 2))
            count += finite.sum((0, 2))
        deviation: Floats = np.sqrt(total / np.maximum(count, 1.0) / self._count)
        return deviation
