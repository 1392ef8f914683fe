"""Parts that hold names: masks, labels, and the classes of detections, each of which is right or wrong."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.manifest import TensorSpec
from enginewright_runtime.proof.parity import kinds
from enginewright_runtime.proof.parity.axes import select_axes
from enginewright_runtime.proof.parity.comparison import Comparison, ParityVerdict, scales_of
from enginewright_runtime.proof.parity.kinds import KindCounts
from enginewright_runtime.proof.parity.part_sums import WHOLE
from enginewright_runtime.proof.parity.parts import read_parts, write_parts
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.tolerances import DEFAULTS, Tolerances
from enginewright_runtime.proof.parity.values import dtype_of
from numpy.typing import NDArray

Array = NDArray[Any]
Change = Callable[[Array], Array]
NAME = "y"
SIDE = 64
LABEL = 5  # the column of detections with the class


def compare(
    arrays: Mapping[str, Array],
    change: Change,
    emulate: Change | None,
    axes: tuple[int, ...] = (WHOLE,),
    precision: str = "INT8",
) -> ParityVerdict:
    tolerances = Tolerances(precision)
    samples = {name: {NAME: array} for name, array in arrays.items()}
    types = {NAME: dtype_of(next(iter(arrays.values())), None)}
    scales = scales_of(samples, types)
    builder = PartsBuilder({NAME: axes}, types, tolerances, scales)
    for array in arrays.values():
        builder.add({NAME: array}, None if emulate is None else {NAME: emulate(array)})
    comparison = Comparison("source", tolerances, types, scales, (), builder.build())
    for name, array in arrays.items():
        comparison.add(name, {NAME: array}, {NAME: change(array.copy())})
    return comparison.verdict()


def keep(array: Array) -> Array:
    return array


def make_masks(dtype: Any = np.int64) -> dict[str, Array]:
    """Return masks [1, 64, 64] with an object of 3% of their pixels."""
    masks = {}
    for index in range(3):
        mask = np.zeros((1, SIDE, SIDE), dtype)
        mask[:, 9 * index : 9 * index + 12, 20:30] = 1
        masks[f"s{index}"] = mask
    return masks


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_mask_whose_object_vanishes_fails(dtype: Any) -> None:
    # fault: the objects of all masks are lost, and the background, nearly all of the pixels, is right
    verdict = compare(make_masks(dtype), np.zeros_like, keep)
    assert "differs as a whole, over all samples: 360 of 12288 values" in str(verdict.description)
    assert "of which the samples move 360; allowed: 25% of those by INT8" in str(
        verdict.description
    )


def test_labels_as_strings_that_are_all_the_most_frequent_one_fail() -> None:
    # fault: 3% of the labels are others, and 5% of the elements may differ
    labels = {
        name: np.where(mask[0].ravel(), "cat", "background").astype(object)
        for name, mask in make_masks().items()
    }
    verdict = compare(labels, lambda array: np.full_like(array, "background"), keep)
    assert "differs as a whole, over all samples: 360 of 12288 values" in str(verdict.description)
    assert compare(labels, lambda array: array.astype(str), keep).outputs[0].unjudged == ()


def test_mask_whose_edges_differ_agrees_and_is_judged() -> None:
    def shift(array: Array) -> Array:
        array[array[:, :, ::-1].cumsum(2)[:, :, ::-1] == 1] = 0  # the last pixel of each row
        return array

    verdict = compare(make_masks(), shift, keep)
    assert verdict.agrees
    assert verdict.outputs[0].unjudged == ()


def test_edges_that_rounding_changes_as_well_are_unjudged() -> None:
    def erode(array: Array) -> Array:
        array = array.copy()
        array[:, :, 20:23] = 0
        return array

    verdict = compare(make_masks(), erode, erode)
    assert verdict.agrees
    (unjudged,) = verdict.outputs[0].unjudged
    assert unjudged.describe(NAME) == "all elements of output 'y'"
    assert not compare(make_masks(), erode, keep).agrees


TOKENS = np.arange(64).reshape(1, 64) % 7


@pytest.mark.parametrize(
    "still",
    [np.zeros((1, SIDE, SIDE), np.int64), TOKENS, TOKENS.astype(str), np.array(["cat"], object)],
    ids=["background", "tokens", "words", "label"],
)
def test_names_that_never_move_are_unjudged_as_a_whole(still: Array) -> None:
    # fault: a mask that is background in all samples, tokens of several kinds that are the same in all, or a label
    # as a string is taken for right
    axes = (WHOLE, 1, 2)[: still.ndim]
    verdict = compare({f"s{index}": still for index in range(3)}, keep, keep, axes)
    assert verdict.agrees
    (unjudged,) = verdict.outputs[0].unjudged
    assert unjudged.axis == WHOLE


def test_class_of_masks_that_is_lost_fails_by_its_index() -> None:
    masks = {name: np.repeat(mask, 40, 0)[None] for name, mask in make_masks().items()}

    def drop(array: Array) -> Array:
        array[:, 7] = 0
        return array

    verdict = compare(masks, drop, keep, (WHOLE, 1))
    assert "differs in index 7 of axis 1, over all samples: 360 of" in str(verdict.description)


def test_axes_of_integers_are_those_with_enough_values() -> None:
    def select(shape: tuple[int, ...], dtype: Any = np.int64) -> Any:
        outputs = (TensorSpec(name=NAME, dtype="", shape=shape),)
        expected = {"a": {NAME: np.zeros(shape, dtype)}, "b": {NAME: np.zeros(shape, dtype)}}
        return select_axes((), outputs, {}, expected).get(NAME)

    assert select((1, 80, 16)) == (WHOLE, 1, 2)
    assert select((1, 500)) == (WHOLE,), "a name or two of a position say nothing"
    assert select((1, 2000, 40)) == (WHOLE, 2)
    assert select((1, 80, 16), np.bool_) == (WHOLE, 1, 2)
    assert select((1, 80, 16), np.object_) == (WHOLE, 1, 2)


def make_detections() -> dict[str, Array]:
    """Return rows [k, 6] of boxes, a score and a class, after suppression: k differs."""
    detections = {}
    for seed in range(6):
        random = np.random.default_rng(seed)
        rows = random.uniform(0, 640, (20 + seed, 6))
        rows[:, 4] /= 640
        rows[:, LABEL] = random.choice([0, 78, 79], 20 + seed, p=[0.5, 0.25, 0.25])
        detections[f"s{seed}"] = rows.astype(np.float32)
    return detections


def confuse(array: Array) -> Array:
    array[array[:, LABEL] == 79, LABEL] = 78
    return array


@pytest.mark.parametrize("precision", list(DEFAULTS))
def test_class_beside_the_right_one_fails(precision: str) -> None:
    # fault: a class in a column of floats is the one beside, which by value is a small error
    verdict = compare(make_detections(), confuse, keep, (WHOLE, 1), precision)
    assert "differs in index 5 of axis 1, over all samples" in str(verdict.description)
    assert "values are others" in str(verdict.description)


def test_one_other_class_is_unjudged_where_few_move() -> None:
    detections = {name: array for name, array in make_detections().items() if name < "s2"}
    for array in detections.values():
        array[:, LABEL] = 0
    detections["s0"][0, LABEL] = 3

    def change(array: Array) -> Array:
        array[array[:, LABEL] == 3, LABEL] = 4
        return array

    verdict = compare(detections, change, keep, (WHOLE, 1))
    assert verdict.agrees
    assert [part.indices for part in verdict.outputs[0].unjudged] == [(LABEL,)]


def test_classes_are_unjudged_where_the_error_of_rounding_is_not_known() -> None:
    verdict = compare(make_detections(), confuse, None, (WHOLE, 1))
    assert [part.indices for part in verdict.outputs[0].unjudged] == [(LABEL,)]


def test_whole_pixels_are_quantities() -> None:
    # fault: coordinates in whole pixels are judged as if each were another class
    detections = {name: np.rint(array) for name, array in make_detections().items()}

    def jitter(array: Array) -> Array:
        noise = np.random.default_rng(len(array)).integers(-1, 2, array.shape)
        noise[:, 4:] = 0
        return (array + noise).astype(np.float32)

    verdict = compare(detections, jitter, jitter, (WHOLE, 1))
    assert verdict.agrees
    assert all(LABEL not in part.indices for part in verdict.outputs[0].unjudged)


def test_whole_number_that_is_less_than_one_off_counts_as_far_as_it_is() -> None:
    # fault: a score of 0.55 is taken for the 1 that is expected
    random = np.random.default_rng(0)
    scores = {name: random.integers(0, 2, (16, 8)).astype(np.float32) for name in "abcdefgh"}

    def lower(array: Array) -> Array:
        array[:, 3] *= np.float32(0.55)
        return array

    near = compare(scores, lambda array: array + np.float32(0.003), keep, (WHOLE, 1), "FP16")
    assert near.agrees
    far = compare(scores, lower, keep, (WHOLE, 1), "FP16")
    assert any("in index 3 of axis 1" in str(failure) for failure in far.failures)


def test_kinds_are_counted_over_samples_and_pieces() -> None:
    random = np.random.default_rng(0)
    arrays = [random.integers(0, 5, (2, 3, 150_000)) for _ in range(2)]
    counts = KindCounts(3)
    for array in arrays:
        counts.add(array, 1, "int64")
    both = np.concatenate(arrays)
    shares = [1 - np.bincount(both[:, index].ravel()).max() / 600_000 for index in range(3)]
    np.testing.assert_allclose(counts.moving, shares)
    assert counts.several.all()
    counts = KindCounts(3, below=5.0)
    counts.add(np.array([[1.0, 2.5, 9.0], [1.0, 1.0, 1.0], [np.nan, 1.0, 1.0]]), 1, "float64")
    assert counts.whole.tolist() == [True, False, False]
    assert counts.several.tolist() == [False, False, False]


def test_ids_that_all_differ_are_sorted_a_few_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # fault: an output of millions of different integers takes minutes
    sorted_values = 0
    sort = np.unique

    def count(values: Array, **options: Any) -> Any:
        nonlocal sorted_values
        sorted_values += values.size
        return sort(values, **options)

    monkeypatch.setattr(np, "unique", count)
    ids = np.random.default_rng(0).permutation(200_000).reshape(400, 500)
    counts = KindCounts(1)
    for array in ids:
        counts.add(array, WHOLE, "int64")
    assert counts.moving == pytest.approx(1, abs=1e-5)
    assert sorted_values < 6 * ids.size


def test_most_frequent_of_more_names_than_are_kept_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_MOST_KINDS", 0)  # so that a thousand are kept
    random = np.random.default_rng(1)
    often, rare = KindCounts(1), KindCounts(1)
    for number in range(20):
        ids = random.permutation(3000) + 3000 * number
        often.add(np.concatenate((ids, np.full(2000, 7))), WHOLE, "int64")
        rare.add(ids, WHOLE, "int64")
    np.testing.assert_allclose(often.moving, 0.6, atol=0.002)
    np.testing.assert_allclose(rare.moving, 1.0, atol=0.002)
    assert rare.several.all()


def test_file_says_which_parts_are_names(tmp_path: Path) -> None:
    builder = PartsBuilder({NAME: (WHOLE, 1)}, {NAME: "float32"}, Tolerances("INT8"), {})
    for array in make_detections().values():
        builder.add({NAME: array}, {NAME: array})
    parts = builder.build()
    write_parts(tmp_path / "parts.npz", parts)
    whole, columns = read_parts(tmp_path / "parts.npz")[NAME]
    assert whole.own_share == parts[NAME][0].own_share == 0.0
    assert not whole.names.any()
    assert np.flatnonzero(columns.names).tolist() == [LABEL]
