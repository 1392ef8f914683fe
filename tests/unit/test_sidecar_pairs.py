"""In service every golden sample runs beside other inputs, in both places, while its own outputs are looked at."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from enginewright_runtime.session.padding import PaddedShapes
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


def text(name: str, length: int, mask: int = 1) -> GoldenSample:
    ids = np.arange(1, length + 1)[None]
    feeds = {"ids": ids, "mask": np.full((1, length), mask), "kind": np.array([[7]])}
    hidden, pooled = np.ones((1, length, 2)), np.ones((1, 4))
    return GoldenSample(name, feeds, {"hidden": hidden, "pooled": pooled})


PADDED: Final = PaddedShapes({"ids": (1, 9), "mask": (1, 0)}, {"hidden": (1,)}, 5, ("mask",))


def list_padded(given: GoldenSample, *others: GoldenSample) -> list[dict[str, Any]]:
    """Return the inputs of all pairs of a sample that are longer than itself."""
    made = pairs(given, *others)
    inputs = []
    for _ in range(20):
        pair = made.make(given, 8, PADDED)
        assert pair is not None
        made.advance(given.name)
        own = given.feeds["ids"].shape[1]
        if pair.sample.feeds["ids"].shape[1] > own:
            length = pair.sample.feeds["ids"].shape[1]
            outputs = {"hidden": np.zeros((2, length, 2)), "pooled": np.zeros((2, 4))}
            outputs["hidden"][pair.rows, :own] = outputs["pooled"][pair.rows] = 1.0
            taken = pair.take(outputs)
            for name, expected in given.expected.items():
                np.testing.assert_array_equal(taken[name], expected)
            assert pair.where == ", padded in a batch with other inputs,"
            inputs.append(pair.sample.feeds)
    return inputs


def test_a_sample_is_padded_beside_a_longer_one_in_both_places() -> None:
    padded = list_padded(text("short", 2), text("long", 5), text("middle", 3))
    ids = [feeds["ids"].tolist() for feeds in padded]
    assert ids[:2] == [[[1, 2, 9, 9, 9], [1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5], [1, 2, 9, 9, 9]]]
    assert padded[0]["mask"].tolist() == [[1, 1, 0, 0, 0], [1] * 5]
    assert padded[0]["kind"].tolist() == [[7], [7]]


def test_a_sample_is_padded_no_further_than_requests_are() -> None:
    padded = list_padded(text("short", 2), text("long", 12))
    assert [feeds["ids"].shape for feeds in padded] == [(2, 5)] * len(padded)


@pytest.mark.parametrize(
    "given",
    [text("as long", 5), text("longer", 7), text("blank", 2, mask=0)],
    ids=lambda given: given.name,
)
def test_a_sample_that_the_server_does_not_pad_is_not_padded(given: GoldenSample) -> None:
    assert list_padded(given, text("long", 9)) == []


def test_a_wider_output_of_a_sample_that_is_not_padded_is_not_cut() -> None:
    made = pairs(text("short", 2), text("other", 2, mask=3))
    pair = made.make(text("short", 2), 8, PADDED)
    assert pair is not None
    assert pair.take({"hidden": np.ones((2, 5, 2))})["hidden"].shape == (1, 5, 2)
