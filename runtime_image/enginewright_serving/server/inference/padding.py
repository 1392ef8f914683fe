"""Which requests run in one batch by their sizes; those of different lengths are padded to the longest. Pure.

A text encoder's requests rarely have the same number of tokens, and so would never run together. On one CPU a batch of
short ones takes half the time of its requests one by one, one of long ones as much.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_serving.server.protocol.decode import Feeds

MOST_WASTE: Final = 0.5  # largest share of padded elements in a batch

_Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Padding:
    """Which of one model's requests run together; startup has proved that padding changes no output, and what pays."""

    inputs: Mapping[str, tuple[int, float]] = field(default_factory=dict)  # axis and value by input
    # axes that have a request's length, by output; () if none
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    longest: int = 0  # length up to which requests are padded, that of what has run so
    # inputs of which no row may be padding only: where a mask excludes all, outputs depend on the length
    needed: tuple[str, ...] = ()
    # elements of a row up to which requests of one length run together; 0: they do whatever their size
    largest: int = 0

    def length_of(self, feeds: Feeds) -> int:
        """Return the length of a request, 0 if its padded inputs have different ones."""
        lengths = {feeds[name].shape[axis] for name, (axis, _) in self.inputs.items()}
        return lengths.pop() if len(lengths) == 1 else 0

    def is_joinable(self, first: Feeds, other: Feeds) -> bool:
        """Whether two requests may run together: their sizes differ in the first dimension and in padded ones only."""
        if any(
            self._list_other_sizes(name, array) != self._list_other_sizes(name, other[name])
            for name, array in first.items()
        ):
            return False
        if not self.inputs:
            return self.admits(first)
        length, other_length = self.length_of(first), self.length_of(other)
        return (
            self._may_pad(first)
            and self._may_pad(other)
            and (
                max(length, other_length) <= self.longest
                or (length == other_length and self.admits(first))
            )
        )

    def admits(self, feeds: Feeds) -> bool:
        """Whether requests of the sizes of `feeds` run together."""
        rows = len(next(iter(feeds.values())))
        elements = sum([array.size for array in feeds.values()])
        return not self.largest or elements <= self.largest * rows

    def _may_pad(self, feeds: Feeds) -> bool:
        return bool(self.length_of(feeds)) and not any(
            self._has_blank_row(feeds[name], *self.inputs[name]) for name in self.needed
        )

    @staticmethod
    def _has_blank_row(array: _Array, axis: int, value: float) -> bool:
        return not (array != value).any(axis).all()

    def _list_other_sizes(self, name: str, array: _Array) -> tuple[int, ...]:
        axis = self.inputs[name][0] if name in self.inputs else 0
        return array.shape[1:axis] + array.shape[axis + 1 :]

    def join(self, requests: Sequence[Feeds]) -> Feeds:
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

    def cut_all(self, names: Sequence[str], arrays: Sequence[_Array], feeds: Feeds) -> list[_Array]:
        """Return the parts of a batch's outputs that belong to the request with the inputs `feeds`."""
        length = self.length_of(feeds)
        return [self.cut(name, array, length) for name, array in zip(names, arrays, strict=True)]

    def cut(self, name: str, array: _Array, length: int) -> _Array:
        """Return the part of an output that belongs to a request of `length`."""
        cut = array
        for axis in self.outputs.get(name, ()):
            cut = cut[(slice(None), *_until(axis, length))]
        return cut if cut.shape == array.shape else np.ascontiguousarray(cut)


def share_of_padding(elements: Sequence[int], rows: Sequence[int]) -> float:
    """Return the share of padded elements in a batch of requests with so many elements and rows."""
    largest = max(count / number for count, number in zip(elements, rows, strict=True))
    return 1.0 - sum(elements) / (largest * sum(rows)) if largest else 0.0


def _until(axis: int, length: int) -> tuple[slice, ...]:
    """Return the index of the first `length` along `axis`, after that of the first dimension."""
    return (*[slice(None)] * (axis - 1), slice(length))
