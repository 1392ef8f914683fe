"""Golden samples in one request with a row of other inputs: to the model, a batch of two clients' requests.

The server has proven one sample at its start, beside a few inputs; in service all samples take turns, each beside
several others, in both places, and, where the server pads requests, beside a longer one too.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from enginewright_contract.execution import PaddedRequests
from enginewright_runtime.session.neighbours import first_row, make_neighbours
from enginewright_runtime.session.samples import GoldenSample
from numpy.typing import NDArray

from enginewright_serving.sidecar.samples import GoldenSamples

_MOST_BYTES: Final = 8 << 20  # of a sample, which is in memory several times


@dataclass(frozen=True, slots=True)
class Pair:
    """A sample and another row."""

    sample: GoldenSample  # with the inputs of both
    rows: slice  # the sample's
    own_length: int = 0  # of a sample that is padded
    length: int = 0  # to which it is padded

    @property
    def where(self) -> str:
        """How the sample has run, for messages."""
        return f", {'padded ' if self.length else ''}in a batch with other inputs,"

    def take(self, outputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the outputs of the sample."""
        return {
            name: self._cut(array[self.rows], self.sample.expected[name].shape)
            if array.ndim
            else array
            for name, array in outputs.items()
        }

    def _cut(self, array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        if not self.length or array.ndim != len(shape):
            return array
        is_padded = [
            axis > 0 and sizes == (self.length, self.own_length)
            for axis, sizes in enumerate(zip(array.shape, shape, strict=True))
        ]
        return array[tuple(slice(self.own_length if cut else None) for cut in is_padded)]


class Pairs:
    """Which row runs beside which sample."""

    def __init__(self, samples: GoldenSamples) -> None:
        self._samples = samples
        self._turns: Counter[str] = Counter()  # by sample

    def make(
        self, sample: GoldenSample, most: int, padding: PaddedRequests | None = None
    ) -> Pair | None:
        """Return the next pair of a sample in a batch of at most `most` rows, or None if it has none."""
        rows = _rows_of(sample)
        if not 0 < rows < most or not _is_small(sample):
            return None
        others = [
            other.feeds
            for other in map(self._samples.read, self._samples.names)
            if _is_small(other)
        ]
        neighbours = make_neighbours(first_row(sample.feeds), others)
        if padding is not None and _may_pad(sample.feeds, padding):
            neighbours = _list_longer(sample.feeds, others, padding) + neighbours
        if not neighbours:
            return None
        turn, index = divmod(self._turns[sample.name], len(neighbours))
        is_first = turn % 2 == 0
        parts = [sample.feeds, neighbours[index]][:: 1 if is_first else -1]
        own, length = (_length_of(part, padding) for part in (sample.feeds, neighbours[index]))
        feeds = {name: _join(name, [part[name] for part in parts], padding) for name in parts[0]}
        place = slice(0, rows) if is_first else slice(1, rows + 1)
        pair = Pair(GoldenSample(sample.name, feeds, sample.expected), place)
        return replace(pair, own_length=own, length=length) if own < length else pair

    def advance(self, name: str) -> None:
        """Take another pair of a sample next time, as this one was right or cannot run; a wrong one is repeated."""
        self._turns[name] += 1


def _rows_of(sample: GoldenSample) -> int:
    """Return the first dimension of all inputs and outputs, 0 if they have different ones."""
    arrays = (*sample.feeds.values(), *sample.expected.values())
    rows = {array.shape[0] if array.ndim else 0 for array in arrays}
    return rows.pop() if len(rows) == 1 else 0


def _is_small(sample: GoldenSample) -> bool:
    arrays = (*sample.feeds.values(), *sample.expected.values())
    return sum(array.nbytes for array in arrays) <= _MOST_BYTES


def _length_of(feeds: Mapping[str, NDArray[Any]], padding: PaddedRequests | None) -> int:
    """Return the length of what is padded, 0 if nothing is, or inputs have different ones."""
    inputs = padding.inputs if padding else {}
    lengths = {feeds[name].shape[axis] for name, (axis, _) in inputs.items()}
    return lengths.pop() if len(lengths) == 1 else 0


def _may_pad(feeds: Mapping[str, NDArray[Any]], padding: PaddedRequests) -> bool:
    """Whether the server pads such a request."""
    return 0 < _length_of(feeds, padding) < padding.longest and all(
        (feeds[name] != padding.inputs[name][1]).any(padding.inputs[name][0]).all()
        for name in padding.needed
    )


def _list_longer(
    feeds: Mapping[str, NDArray[Any]],
    others: Sequence[Mapping[str, NDArray[Any]]],
    padding: PaddedRequests,
) -> list[dict[str, NDArray[Any]]]:
    """Return the longest of `others`, as far as the server pads, if it is longer than `feeds`."""
    longest = max(others, key=lambda other: _length_of(other, padding))
    if _length_of(longest, padding) <= _length_of(feeds, padding):
        return []
    row = first_row(longest)
    return [
        row
        | {
            name: row[name].take(range(min(padding.longest, row[name].shape[axis])), axis)
            for name, (axis, _) in padding.inputs.items()
        }
    ]


def _join(
    name: str, arrays: Sequence[NDArray[Any]], padding: PaddedRequests | None
) -> NDArray[Any]:
    """Return the rows of `arrays`, padded to the longest."""
    if padding is None or name not in padding.inputs:
        return np.concatenate(arrays)
    axis, value = padding.inputs[name]
    length = max(array.shape[axis] for array in arrays)
    missing = [[(0, 0)] * array.ndim for array in arrays]
    for widths, array in zip(missing, arrays, strict=True):
        widths[axis] = (0, length - array.shape[axis])
    return np.concatenate(
        [
            np.pad(array, widths, constant_values=value)
            for array, widths in zip(arrays, missing, strict=True)
        ]
    )
