"""The requests beside which another one is proven have other values, of which the model is known to accept each."""

from typing import Any, Final

import numpy as np
import pytest
from enginewright_runtime.session.neighbours import first_row, make_neighbours
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

IDS: Final = np.array([[5, 7, 9]])


def neighbours(row: Any, *others: Any) -> list[NDArray[Any]]:
    made = make_neighbours({"x": np.array(row)}, [{"x": np.array(other)} for other in others])
    return [feeds["x"] for feeds in made]


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=6),
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), max_size=3),
)
def test_integers_are_those_of_samples_in_the_sizes_of_the_row(
    row: list[int], others: list[list[int]]
) -> None:
    made = neighbours([row], *([other] for other in others))
    values = {*row, *(value for other in others for value in other)}
    assert bool(made) is (len(values) > 1)
    for array in made:
        assert array.shape == (1, len(row))
        assert values.issuperset(array.flat)
        assert array.tolist() != [row]
    assert len({tuple(array.flat) for array in made}) == len(made)


def test_integers_have_the_values_of_another_sample_and_reach_both_ends() -> None:
    made = [array.tolist() for array in neighbours(IDS, IDS, [[2, 50]])]
    assert made == [[[2, 50, 2]], [[50, 50, 50]], [[2, 2, 2]]]
    assert [array.tolist() for array in neighbours(IDS)] == [[[9, 7, 5]], [[9] * 3], [[5] * 3]]


def test_floats_are_larger_and_zeros_are_none() -> None:
    (made,) = neighbours([[0.5, -1.0]], [[0.5, -1.0]], [[3.0]])
    assert made.tolist() == [[12.0, 12.0]]
    (made,) = neighbours(np.zeros((1, 2), np.float32))
    assert made.tolist() == [[1.0, 1.0]]
    (made,) = neighbours(np.full((1, 2), 6e4, np.float16))
    assert np.isinf(made).all()


def test_floats_of_one_sample_are_reversed_too() -> None:
    """A model that normalizes its inputs has the same outputs for larger ones."""
    made = [array.tolist() for array in neighbours([[0.5, -1.0]], [[0.5, -1.0]])]
    assert made == [[[2.0, -4.0]], [[-4.0, 2.0]]]


def test_booleans_and_texts_are_inverted() -> None:
    assert [[False, False]] in [array.tolist() for array in neighbours([[True, True]])]
    texts = np.array([["ab", "c"]], object)
    assert [["ba", "c"]] in [array.tolist() for array in neighbours(texts)]


def test_inputs_with_one_known_value_stay_beside_others_that_change() -> None:
    row: dict[str, NDArray[Any]] = {"ids": IDS, "mask": np.ones_like(IDS), "on": np.array([True])}
    made = make_neighbours(row, [row])
    assert made
    for feeds in made:
        assert feeds["mask"].tolist() == row["mask"].tolist()
    assert any(not feeds["on"].any() for feeds in made)


@pytest.mark.parametrize(
    "row", [np.array([[3, 3]]), np.array([["aba"]], object), np.empty((1, 0), np.float32)]
)
def test_a_value_without_others_has_no_neighbours(row: NDArray[Any]) -> None:
    assert not neighbours(row, row)


def test_the_first_row_leaves_scalars() -> None:
    row = first_row({"x": np.ones((3, 2)), "n": np.array(4)})
    assert {name: array.shape for name, array in row.items()} == {"x": (1, 2), "n": ()}
