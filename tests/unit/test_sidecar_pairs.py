"""In service every golden sample runs beside other inputs, in both places, while its own outputs are looked at."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from enginewright_runtime.session.samples import GoldenSample
from enginewright_serving.sidecar.pairs import Pairs
from numpy.typing import NDArray


def sample(name: str, ids: Sequence[Sequence[int]], **outputs: NDArray[Any]) -> GoldenSample:
    array = np.array(ids)
    return GoldenSample(name, {"ids": array}, outputs or {"y": array * 10})


class Samples:
    """The samples of an artefact, in memory."""

    def __init__(self, *samples: GoldenSample) -> None:
        self.names = [item.name for item in samples]
        self.read = {item.name: item for item in samples}.__getitem__


A: Final = sample("a", [[1, 2, 3]])
B: Final = sample("b", [[8, 9], [6, 7]])


def pairs(*samples: GoldenSample) -> Pairs:
    given: Any = Samples(*samples)
    return Pairs(given)


def test_a_sample_meets_every_neighbour_in_both_places() -> None:
    made = pairs(A, B)
    rows: list[Any] = []
    for _ in range(6):
        pair = made.make(A, 32)
        assert pair is not None
        ids = pair.sample.feeds["ids"]
        assert ids[pair.rows].tolist() == [[1, 2, 3]]
        outputs = pair.take({"y": ids * 10, "count": np.array(2)})
        assert outputs["y"].tolist() == A.expected["y"].tolist()
        rows.append(ids.tolist())
        made.advance("a")
    others = [[8, 9, 6], [9, 9, 9], [1, 1, 1]]
    assert rows[:3] == [[[1, 2, 3], other] for other in others]
    assert rows[3:] == [[other, [1, 2, 3]] for other in others]


def test_a_pair_is_repeated_until_the_next_is_due() -> None:
    made = pairs(A, B)
    first, again = made.make(B, 3), made.make(B, 3)
    assert first is not None
    assert again is not None
    assert first.sample.feeds["ids"].tolist() == again.sample.feeds["ids"].tolist()
    assert first.sample.feeds["ids"][first.rows].tolist() == [[8, 9], [6, 7]]


@pytest.mark.parametrize(
    ("given", "most"),
    [
        (A, 1),
        (B, 2),
        (sample("one value", [[4, 4]]), 32),
        (sample("other rows", [[1, 2]], y=np.ones((2, 2))), 32),
        (sample("a sum", [[1, 2]], y=np.array(3)), 32),
        (sample("large", np.arange(1 << 20).reshape(1, -1).tolist()), 32),
    ],
)
def test_what_is_not_one_of_several_rows_has_no_pair(given: GoldenSample, most: int) -> None:
    assert pairs(given).make(given, most) is None
