"""Which requests run in one batch by their sizes; those of different lengths are padded to the longest. Pure.

A text encoder's requests rarely have the same number of tokens, and so would never run together. On one CPU a batch of
short ones takes half the time of its requests one by one, one of long ones as much.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from enginewright_runtime.session.padding import PaddedShapes
from numpy.typing import NDArray

from enginewright_serving.server.protocol.decode import Feeds

MOST_WASTE: Final = 0.5  # largest share of padded elements in a batch


@dataclass(frozen=True, slots=True)
class Padding(PaddedShapes):
    """Which of one model's requests run together; startup has proved that padding changes no output, and what pays."""

    # elements of a row up to which requests of one length run together; 0: they do whatever their size
    largest: int = 0

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
            self.may_pad(first)
            and self.may_pad(other)
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

    def _list_other_sizes(self, name: str, array: NDArray[Any]) -> tuple[int, ...]:
        axis = self.inputs[name][0] if name in self.inputs else 0
        return array.shape[1:axis] + array.shape[axis + 1 :]


def share_of_padding(elements: Sequence[int], rows: Sequence[int]) -> float:
    """Return the share of padded elements in a batch of requests with so many elements and rows."""
    largest = max(count / number for count, number in zip(elements, rows, strict=True))
    return 1.0 - sum(elements) / (largest * sum(rows)) if largest else 0.0
