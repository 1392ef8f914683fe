"""Requests of different lengths in one batch: padded to the longest, their outputs cut back. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.session.arrays import Arrays

_Array = NDArray[Any]
_Feeds = Mapping[str, _Array]


@dataclass(frozen=True, slots=True)
class PaddedShapes:
    """How one model's requests are padded."""

    inputs: Mapping[str, tuple[int, float]] = field(default_factory=dict)  # axis and value by input
    # axes that have a request's length, by output; () if none
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    longest: int = 0  # length up to which requests are padded, that of what has run so
    # inputs of which no row may be padding only: where a mask excludes all, outputs depend on the length
    needed: tuple[str, ...] = ()

    def length_of(self, feeds: _Feeds) -> int:
        """Return the length of a request, 0 if its padded inputs have different ones."""
        lengths = {feeds[name].shape[axis] for name, (axis, _) in self.inputs.items()}
        return lengths.pop() if len(lengths) == 1 else 0

    def may_pad(self, feeds: _Feeds) -> bool:
        """Whether a request has a length, and outputs that do not depend on it."""
        return bool(self.length_of(feeds)) and not any(
            self._has_blank_row(feeds[name], *self.inputs[name]) for name in self.needed
        )

    @staticmethod
    def _has_blank_row(array: _Array, axis: int, value: float) -> bool:
        return not (array != value).any(axis).all()

    def take(self, row: _Feeds, start: int, length: int) -> Arrays:
        """Return so many positions of a request."""
        positions = range(start, start + length)
        parts = {
            name: np.ascontiguousarray(row[name].take(positions, axis))
            for name, (axis, _) in self.inputs.items()
        }
        return {**row, **parts}

    def join(self, requests: Sequence[_Feeds]) -> Arrays:
        """Return the inputs of `requests` one after another, those that are padded as long as the longest."""
        length = max(map(self.length_of, requests))
        return {
            name: self._join_padded(name, [request[name] for request in requests], length)
            if name in self.inputs
            else np.concatenate([request[name] for request in requests])
            for name in requests[0]
        }

    def _join_padded(self, name: str, arrays: Sequence[_Array], length: int) -> _Array:
        axis, value = self.inputs[name]
        shape = list(arrays[0].shape)
        shape[0], shape[axis] = sum(array.shape[0] for array in arrays), length
        joined = np.full(shape, value, arrays[0].dtype)
        at = 0
        for array in arrays:
            rows = slice(at, at + array.shape[0])
            joined[(rows, *_until(axis, array.shape[axis]))] = array
            at = rows.stop
        return joined

    def cut_all(
        self, names: Sequence[str], arrays: Sequence[_Array], feeds: _Feeds
    ) -> list[_Array]:
        """Return the parts of a batch's outputs that belong to the request with the inputs `feeds`."""
        length = self.length_of(feeds)
        return [self.cut(name, array, length) for name, array in zip(names, arrays, strict=True)]

    def cut(self, name: str, array: _Array, length: int) -> _Array:
        """Return the part of an output that belongs to a request of `length`."""
        cut = array
        for axis in self.outputs.get(name, ()):
            cut = cut[(slice(None), *_until(axis, length))]
        return cut if cut.shape == array.shape else np.ascontiguousarray(cut)


def _until(axis: int, length: int) -> tuple[slice, ...]:
    """Return the index of the first `length` along `axis`, after that of the first dimension."""
    return (*[slice(None)] * (axis - 1), slice(length))
