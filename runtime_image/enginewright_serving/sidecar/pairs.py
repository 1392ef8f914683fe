"""Golden samples in one request with a row of other inputs: to the model, a batch of two clients' requests.

The server has proven one sample at its start, beside a few inputs; in service all samples take turns, each beside
several others, in both places, and, where the server pads requests, beside a longer one too.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from enginewright_runtime.session.arrays import Arrays
from enginewright_runtime.session.neighbours import first_row, make_neighbours
from enginewright_runtime.session.padding import PaddedShapes
from enginewright_runtime.session.samples import GoldenSample
from numpy.typing import NDArray

from enginewright_serving.sidecar.samples import GoldenSamples

_MOST_BYTES: Final = 8 << 20  # of a sample, which is in memory several times


@dataclass(frozen=True, slots=True)
class Pair:
    """A sample and another row."""

    sample: GoldenSample  # with the inputs of both
    rows: slice  # the sample's
    padding: PaddedShapes | None = None  # of a sample that is padded
    length: int = 0  # its own

    @property
    def where(self) -> str:
        """How the sample has run, for messages."""
        return f", {'padded ' if self.padding else ''}in a batch with other inputs,"

    def take(self, outputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the outputs of the sample."""
        own = {name: array[self.rows] if array.ndim else array for name, array in outputs.items()}
        if self.padding is None:
            return own
        return {name: self.padding.cut(name, array, self.length) for name, array in own.items()}


class Pairs:
    """Which row runs beside which sample."""

    def __init__(self, samples: GoldenSamples) -> None:
        self._samples = samples
        self._turns: Counter[str] = Counter()  # by sample

    def make(
        self, sample: GoldenSample, most: int, padding: PaddedShapes | None = None
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
        longer = _list_longer(sample.feeds, others, padding) if padding else []
        neighbours = longer + make_neighbours(first_row(sample.feeds), others)
        if not neighbours:
            return None
        turn, index = divmod(self._turns[sample.name], len(neighbours))
        is_first = turn % 2 == 0
        parts = [sample.feeds, neighbours[index]][:: 1 if is_first else -1]
        place = slice(0, rows) if is_first else slice(1, rows + 1)
        if padding is not None and index < len(longer):
            feeds, length = padding.join(parts), padding.length_of(sample.feeds)
            padded = GoldenSample(sample.name, feeds, sample.expected)
            return Pair(padded, place, padding, length)
        feeds = {name: np.concatenate([part[name] for part in parts]) for name in sample.feeds}
        return Pair(GoldenSample(sample.name, feeds, sample.expected), place)

    def advance(self, name: str) -> None:
        """Take another pair of a sample next time, as this one was right or cannot run; a wrong one is repeated."""
        self._turns[name] += 1


def _rows_of(sample: GoldenSample) -> int:
    """Return the first dimension of all inputs and outputs, 0 if they have different ones."""
    arrays = (*sample.feeds.values(), *sample.expected.values())
    rows = {array.shape[0] if array.ndim else 0 for array in arrays}
    return rows.pop() if len(rows) == 1 else 0


def _list_longer(
    feeds: Mapping[str, NDArray[Any]],
    others: Sequence[Mapping[str, NDArray[Any]]],
    padding: PaddedShapes,
) -> list[Arrays]:
    """Return the longest of `others`, up to the length that the server pads to, if it pads `feeds` beside that."""
    row = first_row(max(others, key=padding.length_of))
    length = min(padding.length_of(row), padding.longest)
    is_longer = padding.may_pad(feeds) and padding.length_of(feeds) < length
    return [padding.take(row, 0, length)] if is_longer else []


def _is_small(sample: GoldenSample) -> bool:
    arrays = (*sample.feeds.values(), *sample.expected.values())
    return sum(array.nbytes for array in arrays) <= _MOST_BYTES
