"""How answers of two revisions are compared. No IO."""

import sys
from typing import Any

import numpy as np
import pytest
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.measurements import OUTPUTS, OutputChange
from enginewright_serving.sidecar.answer_change import (
    change,
    free_axes,
    incompatibility,
    most_changed,
    worst,
)
from numpy.typing import NDArray

from tests.support import manifests

SCORES = np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]], np.float32)


def floats(have: NDArray[Any], want: NDArray[Any] = SCORES) -> OutputChange:
    return change("y", want, have.astype(want.dtype), want.dtype.name)


def test_equal_answers_have_no_difference() -> None:
    assert floats(SCORES) == OutputChange(
        name="y", unequal=0.0, max_abs=0.0, relative=0.0, top1=1.0
    )


def test_largest_relative_and_top1_difference() -> None:
    have = SCORES.copy()
    have[1] = [0.9, 0.0, 0.1]
    difference = floats(have)
    assert difference.max_abs == pytest.approx(0.8, rel=1e-6)
    expected = np.linalg.norm(have - SCORES) / np.linalg.norm(SCORES)
    assert difference.relative == pytest.approx(expected, rel=1e-6)
    assert difference.top1 == 0.5
    assert difference.unequal == pytest.approx(2 / 6)


@pytest.mark.parametrize("shape", [(6,), (6, 1), (1, 2, 3)])
def test_only_rows_of_classes_have_a_top_class(shape: tuple[int, ...]) -> None:
    assert floats(SCORES.reshape(shape), SCORES.reshape(shape)).top1 is None


def test_large_arrays_are_compared_whole() -> None:
    want = np.ones(600_000, np.float32)
    have = want.copy()
    have[-1] = 3.0
    difference = floats(have, want)
    assert difference.max_abs == 2.0
    assert difference.relative == pytest.approx(2.0 / np.sqrt(want.size))


def test_huge_numbers_do_not_overflow() -> None:
    want = np.array([1e308, -1e308])
    difference = change("y", want, -want, "float64")
    assert difference.relative == pytest.approx(2.0)
    assert difference.max_abs == sys.float_info.max


def test_non_finite_values_are_counted_and_left_out() -> None:
    want = np.array([1.0, np.nan, np.inf, 4.0], np.float32)
    have = np.array([1.5, np.nan, np.inf, np.nan], np.float32)
    difference = floats(have, want)
    assert (difference.nonfinite, difference.max_abs, difference.relative) == (1, 0.5, None)
    assert difference.unequal == 0.5


ZEROS = np.zeros((100, 100), np.float32)


@pytest.mark.parametrize(
    ("pixels", "value", "largest", "low", "high"),
    [
        (0, 0.0, 0.0, 0.0, 0.0),
        (10_000, 1e-5, 0.0, 0.001, 0.02),  # what FP16 costs
        (1, 2.0, 0.0, 10, 1e9),
        (1, 0.01, 1.0, 0.0, 0.02),  # one pixel of an empty mask is hardly another answer
        (49, 0.7, 1.0, 1.0, 1e9),  # an object is
        (10_000, 1e-5, 1.0, 0.0, 0.01),
        (10_000, 0.5, 1e-7, 100, 1e9),  # that is zero in parity, too
    ],
)
def test_differences_from_zero_are_relative_to_the_outputs_values_in_all_samples(
    pixels: int, value: float, largest: float, low: float, high: float
) -> None:
    have = ZEROS.copy()
    have.flat[:pixels] = value
    difference = change("y", ZEROS, have, "float32", largest=largest)
    assert difference.relative is not None
    assert low <= difference.relative <= high


def test_samples_with_smaller_values_than_others_are_compared_by_their_own() -> None:
    small = SCORES * np.float32(0.05)
    difference = change("y", small, 2 * small, "float32", largest=float(SCORES.max()))
    assert difference.relative == pytest.approx(1.0)


def test_a_huge_difference_from_zero_is_a_number() -> None:
    difference = change("y", np.zeros(2), np.full(2, 2e153), "float64")
    assert difference.relative == sys.float_info.max


def test_no_elements_are_no_difference() -> None:
    difference = floats(np.zeros((0, 4)), np.zeros((0, 4), np.float32))
    assert (difference.relative, difference.form, difference.resized) == (0.0, "", 0)


BOXES = np.ones((3, 4), np.float32)


def test_a_size_that_depends_on_data_is_no_difference_of_values() -> None:
    difference = change("y", BOXES, BOXES[:2], "float32", free=(True, False))
    assert difference == OutputChange(name="y", resized=1)
    assert change("y", BOXES, BOXES, "float32", free=(True, False)).resized == 0


@pytest.mark.parametrize(
    ("have", "free"),
    [
        (BOXES[:2], (False, False)),
        (BOXES[:2], ()),
        (BOXES[:, :3], (True, False)),
        (BOXES[0], (True, False)),
        (BOXES.astype(np.float64), (True, False)),
    ],
)
def test_other_type_or_size_is_another_form(have: NDArray[Any], free: tuple[bool, ...]) -> None:
    difference = change("y", BOXES, have, "float32", free=free)
    assert difference.form
    assert difference.resized == 0


def test_sizes_that_are_an_inputs_do_not_depend_on_data() -> None:
    model = manifests.manifest(
        inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", 3, "side")),),
        outputs=(
            TensorSpec(name="scores", dtype="float32", shape=("batch", 1000)),
            TensorSpec(name="boxes", dtype="float32", shape=("found", 4)),
            TensorSpec(name="unnamed", dtype="float32", shape=(None, "side")),
        ),
    )
    assert free_axes(model) == {
        "scores": (False, False),
        "boxes": (True, False),
        "unnamed": (True, False),
    }


def test_samples_of_another_size_are_counted() -> None:
    resized = OutputChange(name="y", resized=1)
    value = OutputChange(name="y", unequal=0.5, max_abs=1.0, relative=0.1)
    for difference in (worst(resized, value), worst(value, resized)):
        assert difference == value.model_copy(update={"resized": 1})
        assert worst(difference, resized).resized == 2
    assert worst(resized, resized) == OutputChange(name="y", resized=2)
    assert worst(resized, OutputChange(name="y", form="has type int64")).form
    unknown = OutputChange(name="y", unequal=0.1, nonfinite=2)
    assert worst(worst(resized, value), unknown).relative is None


def test_half_precision_that_numpy_lacks() -> None:
    want, have = (np.array([bits, 0x3F80], np.uint16) for bits in (0x3F80, 0x4000))  # 1 and 2
    difference = change("y", want, have, "bfloat16")
    assert difference.max_abs == 1.0
    assert difference.relative == pytest.approx(1 / np.sqrt(2))


def test_integers_are_numbers_strings_and_booleans_are_equal_or_not() -> None:
    labels = np.array([3, 5, 7, 9])
    numbers = change("y", labels, np.array([3, 5, 7, 1]), "int64")
    assert (numbers.unequal, numbers.max_abs, numbers.top1) == (0.25, 8.0, None)
    assert numbers.relative == pytest.approx(8 / float(np.linalg.norm(labels)))
    names = np.array(["cat", "dog"], object)
    difference = change("y", names, np.array(["cat", "cow"], object), "string")
    assert difference == OutputChange(name="y", unequal=0.5)
    assert change("y", names, names, "string") == OutputChange(name="y", unequal=0.0, relative=0.0)
    flags = change("y", np.array([True, False]), np.array([True, True]), "bool")
    assert flags == OutputChange(name="y", unequal=0.5)


def test_another_shape_is_all_that_is_said() -> None:
    difference = floats(SCORES[:1])
    assert "shape" in difference.form
    assert (difference.max_abs, difference.relative, difference.top1, difference.unequal) == (
        None,
    ) * 4


def test_the_worst_of_each_figure_over_the_samples() -> None:
    first = OutputChange(name="y", unequal=0.5, max_abs=1.0, relative=0.1, top1=1.0)
    second = OutputChange(name="y", unequal=0.1, max_abs=3.0, relative=0.05, top1=0.7)
    expected = OutputChange(name="y", unequal=0.5, max_abs=3.0, relative=0.1, top1=0.7)
    assert worst(first, second) == worst(second, first) == expected
    unknown = OutputChange(name="y", unequal=0.1, max_abs=3.0, nonfinite=2)
    for difference in (worst(first, unknown), worst(unknown, first)):
        assert (difference.relative, difference.nonfinite) == (None, 2)
    formed = OutputChange(name="y", form="has shape [1]")
    assert worst(first, formed) == worst(formed, first) == formed


X = TensorSpec(name="x", dtype="float32", shape=("n", 8))
Y = TensorSpec(name="y", dtype="float32", shape=("n", 4))
Z = TensorSpec(name="z", dtype="int64", shape=(1,))


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        ((X,), (Y,), ""),
        ((X.model_copy(update={"shape": (1, 9)}),), (Y,), ""),  # that the server decides
        ((X,), (Y, Z), ""),  # more outputs do not matter to clients
        ((), (Y,), "no input 'x'"),
        ((X, Z), (Y,), "an input 'z'"),
        ((X.model_copy(update={"dtype": "float16"}),), (Y,), "input 'x' is float16"),
        ((X,), (Z,), "no output 'y'"),
        ((X,), (Y.model_copy(update={"dtype": "int64"}),), "output 'y' is int64"),
    ],
)
def test_comparable_revisions(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], why: str
) -> None:
    stable = manifests.manifest(inputs=(X,), outputs=(Y,))
    reason = incompatibility(manifests.manifest(inputs=inputs, outputs=outputs), stable)
    assert why in reason
    assert bool(reason) is bool(why)


def test_most_changed_outputs_are_reported() -> None:
    few = [OutputChange(name=f"y{index}", relative=index / 9) for index in range(OUTPUTS)]
    assert most_changed(few) == tuple(few)
    worse = [
        OutputChange(name="form", form="has shape [1]"),
        OutputChange(name="nan", nonfinite=1),
        OutputChange(name="equal", relative=0.0),
    ]
    difference = most_changed([*worse, *few])
    assert len(difference) == OUTPUTS
    # without the three that changed least
    assert [output_change.name for output_change in difference[:2]] == ["form", "nan"]
    assert {"equal", "y0", "y1"}.isdisjoint(output_change.name for output_change in difference)
