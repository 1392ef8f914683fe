"""The vectors of tokens become one as the sums that are written here say, also where a mask excludes some."""

import math
from typing import Any

import numpy as np
import pytest
from enginewright_runtime.core.request_errors import RequestError
from enginewright_serving.server.inference.pooling import describe_misfit, pool
from numpy.typing import NDArray

RANDOM = np.random.default_rng(5)
POOLINGS = ("Mean", "CLS", "Last")


def compute(values: NDArray[Any], mask: NDArray[Any], pooling: str) -> list[list[float]]:
    """Return the vectors, one number after another in double precision."""
    vectors = []
    for tokens, marks in zip(values.tolist(), mask.tolist(), strict=True):
        kept = [token for token, mark in zip(tokens, marks, strict=True) if mark]
        parts = {"Mean": kept, "CLS": kept[:1], "Last": kept[-1:]}[pooling]
        vectors.append([math.fsum(column) / len(parts) for column in zip(*parts, strict=True)])
    return vectors


def scale(vectors: list[list[float]]) -> list[list[float]]:
    return [
        [value / math.sqrt(math.fsum(one * one for one in vector)) for value in vector]
        for vector in vectors
    ]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_vectors_are_those_of_the_definition(pooling: str, kind: type) -> None:
    values: NDArray[Any] = RANDOM.normal(size=(3, 300, 8)).astype(kind)
    mask = np.zeros((3, 300), np.int64)
    mask[0, :] = 1
    mask[1, :7] = 1  # padded on the right
    mask[2, 250:] = 1  # on the left
    expected = compute(values, mask, pooling)
    for normalize, vectors in ((False, expected), (True, scale(expected))):
        pooled = pool(values, mask, pooling, normalize=normalize)
        assert pooled.dtype == np.float32
        np.testing.assert_allclose(pooled, vectors, rtol=2e-5, atol=2e-6)


def test_a_mean_of_half_floats_is_summed_in_single_precision() -> None:
    values = np.full((1, 4096, 2), 33.0, np.float16)  # whose sum float16 cannot hold
    vectors = pool(values, np.ones((1, 4096), np.int64), "Mean", normalize=False)
    assert vectors.tolist() == [[33.0, 33.0]]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_values_of_excluded_tokens_count_nothing_even_if_they_are_nan(pooling: str) -> None:
    values = RANDOM.normal(size=(1, 4, 3)).astype(np.float32)
    alone = pool(values, np.ones((1, 4), bool), pooling, normalize=True)
    padded = np.concatenate([values, np.full((1, 2, 3), np.nan, np.float32)], axis=1)
    together = pool(padded, np.array([[1, 1, 1, 1, 0, 0]]), pooling, normalize=True)
    np.testing.assert_array_equal(alone, together)


def test_a_pooled_output_is_only_normalized() -> None:
    values = np.array([[3, 4], [0, 0]], np.float16)
    vectors = pool(values, np.ones((2, 9), np.int32), "None", normalize=True)
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    assert vectors.dtype == np.float32


def test_vectors_whose_squares_exceed_single_floats_get_the_length_one() -> None:
    values = np.array([[3e30, 4e30]], np.float32)
    vectors = pool(values, np.ones((1, 1), np.int64), "None", normalize=True)
    np.testing.assert_allclose(vectors, [[0.6, 0.8]], rtol=1e-6)
    assert vectors.dtype == np.float32


def test_a_text_without_tokens_is_the_fault_of_its_client() -> None:
    with pytest.raises(RequestError, match="makes no tokens of this text") as refusal:
        pool(np.ones((1, 2, 3), np.float32), np.zeros((1, 2), np.int64), "Mean", normalize=True)
    assert refusal.value.status == 400


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e300])
def test_values_that_are_no_numbers_are_an_error_of_the_model(wrong: float) -> None:
    values = np.array([[[1.0, wrong]]])
    with pytest.raises(RequestError, match="infinities or NaN") as refusal:
        pool(values, np.ones((1, 1), np.int64), "CLS", normalize=True)
    assert refusal.value.status == 500


@pytest.mark.parametrize(
    ("shape", "pooling"),
    [((1, 5, 8), "Mean"), ((2, 4, 8), "CLS"), ((1, 4), "Last"), ((4,), "None"), ((2, 8), "None")],
)
def test_outputs_of_another_shape_than_the_mask_are_refused(
    shape: tuple[int, ...], pooling: str
) -> None:
    values, mask = np.zeros(shape, np.float32), np.ones((1, 4), np.int64)
    assert f"an output of the shape {list(shape)} has no vector" in describe_misfit(
        values, mask, pooling
    )
    with pytest.raises(RequestError, match=r"see spec\.serving\.embeddings"):
        pool(values, mask, pooling, normalize=True)
