"""Requests of different lengths are padded into one batch, and each gets back what is its own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from enginewright_serving.server.inference.batching import join, split
from enginewright_serving.server.inference.padding import Padding, share_of_padding
from hypothesis import given
from hypothesis import strategies as st

PADDING = Padding(
    {"ids": (1, 7), "mask": (1, 0), "scores": (2, -1)},
    {"hidden": (1,), "pooled": (), "attention": (2, 3)},
    9,
)


def request(rows: int, length: int, seed: int) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    return {
        "ids": chance.integers(0, 100, (rows, length)),
        "mask": np.ones((rows, length), np.int64),
        "scores": chance.random((rows, 3, length), np.float32),
        "temperature": chance.random((rows, 1), np.float32),
    }


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=5))
def test_what_is_padded_is_cut_back_to_what_it_was(sizes: list[tuple[int, int]]) -> None:
    requests = [request(rows, length, seed) for seed, (rows, length) in enumerate(sizes)]
    joined = join(requests, PADDING)
    longest = max(length for _, length in sizes)
    assert joined["ids"].shape == (sum(rows for rows, _ in sizes), longest)
    assert joined["scores"].shape[1:] == (3, longest)
    # a model that gives back its inputs, and the products of all pairs of positions
    outputs = {
        "hidden": joined["ids"][:, :, None] * np.ones(4, np.int64),
        "pooled": joined["temperature"],
        "attention": joined["scores"][:, :, :, None] * joined["scores"][:, :, None, :],
    }
    parts = split(list(outputs.values()), [rows for rows, _ in sizes])
    assert parts is not None
    for feeds, part in zip(requests, parts, strict=True):
        cut = [
            PADDING.cut(name, array, PADDING.length_of(feeds))
            for name, array in zip(outputs, part, strict=True)
        ]
        np.testing.assert_array_equal(cut[0][:, :, 0], feeds["ids"])
        np.testing.assert_array_equal(cut[1], feeds["temperature"])
        own = feeds["scores"]
        np.testing.assert_array_equal(cut[2], own[:, :, :, None] * own[:, :, None, :])
        assert all(array.flags.c_contiguous for array in cut)


def test_added_elements_have_the_declared_values() -> None:
    joined = join([request(1, 2, 1), request(1, 4, 2)], PADDING)
    assert joined["ids"][0, 2:].tolist() == [7, 7]
    assert joined["mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert (joined["scores"][0, :, 2:] == -1).all()


@pytest.mark.parametrize(
    ("change", "joinable"),
    [
        ({}, True),
        ({"ids": np.zeros((1, 5), np.int64)}, False),
        ({"temperature": np.zeros((1, 2), np.float32)}, False),
        ({"scores": np.zeros((1, 2, 3), np.float32)}, False),
    ],
    ids=["another length", "inputs of different lengths", "another size", "another inner size"],
)
def test_only_the_length_may_differ(change: dict[str, Any], joinable: bool) -> None:
    assert PADDING.is_joinable(request(2, 8, 1), request(1, 3, 2) | change) is joinable


@pytest.mark.parametrize(
    ("length", "other", "joinable"), [(9, 2, True), (10, 2, False), (2, 10, False), (10, 10, True)]
)
def test_requests_beyond_the_longest_proven_length_join_their_equals_only(
    length: int, other: int, joinable: bool
) -> None:
    assert PADDING.is_joinable(request(1, length, 1), request(2, other, 2)) is joinable


@pytest.mark.parametrize(
    ("mask", "joinable"),
    [([[1, 0, 0]], True), ([[0, 0, 0]], False), ([[1, 1, 1], [0, 0, 0]], False)],
    ids=["partly", "all", "all of one row"],
)
def test_a_request_whose_mask_excludes_all_is_not_padded(
    mask: list[list[int]], joinable: bool
) -> None:
    padding = replace(PADDING, needed=("mask",))
    masked = request(len(mask), 3, 1) | {"mask": np.array(mask)}
    assert padding.is_joinable(masked, request(1, 5, 2)) is joinable
    assert padding.is_joinable(request(1, 5, 2), masked) is joinable
    assert PADDING.is_joinable(masked, request(1, 5, 2)), "where outputs do not depend on it"


def test_only_requests_up_to_the_largest_size_that_pays_join_their_equals() -> None:
    sized = Padding(largest=5 * 8)  # of five elements for each position, and one
    assert sized.is_joinable(request(1, 7, 1), request(3, 7, 2))
    assert sized.is_joinable(request(3, 7, 1), request(1, 7, 2))
    assert not sized.is_joinable(request(1, 8, 1), request(1, 8, 2))
    assert not sized.is_joinable(request(1, 7, 1), request(1, 6, 2)), "none is padded"


def test_a_longer_request_joins_its_equals_where_that_pays_and_others_where_padding_pays() -> None:
    padding = replace(PADDING, largest=5 * 12)
    assert padding.is_joinable(request(1, 11, 1), request(1, 11, 2))
    assert not padding.is_joinable(request(1, 11, 1), request(1, 9, 2))
    assert not padding.is_joinable(request(1, 12, 1), request(1, 12, 2))
    assert padding.is_joinable(request(1, 9, 1), request(1, 2, 2))


def test_the_share_of_padding_counts_rows() -> None:
    assert share_of_padding([10, 10], [1, 1]) == 0.0
    assert share_of_padding([10, 5], [1, 1]) == 0.25
    assert share_of_padding([10, 15], [1, 3]) == pytest.approx(1 - 25 / 40)
    assert share_of_padding([0, 0], [1, 1]) == 0.0
