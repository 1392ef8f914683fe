"""How answers of two revisions are compared. No IO."""

import sys
from typing import Any

import numpy as np
import pytest
from enginewright.contract.manifest import TensorSpec
from enginewright.contract.measurements import OUTPUTS, OutputChange
from enginewright_runtime.serve.sidecar.answer_change import (
    change,
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
    found = floats(have)
    assert found.max_abs == pytest.approx(0.8, rel=1e-6)
    expected = np.linalg.norm(have - SCORES) / np.linalg.norm(SCORES)
    assert found.relative == pytest.approx(expected, rel=1e-6)
    assert found.top1 == 0.5
    assert found.unequal == pytest.approx(2 / 6)


@pytest.mark.parametrize("shape", [(6,), (6, 1), (1, 2, 3)])
def test_only_rows_of_classes_have_a_top_class(shape: tuple[int, ...]) -> None:
    assert floats(SCORES.reshape(shape), SCORES.reshape(shape)).top1 is None


def test_large_arrays_are_compared_whole() -> None:
    want = np.ones(600_000, np.float32)
    have = want.copy()
    have[-1] = 3.0
    found = floats(have, want)
    assert found.max_abs == 2.0
    assert found.relative == pytest.approx(2.0 / np.sqrt(want.size))


def test_huge_numbers_do_not_overflow() -> None:
    want = np.array([1e308, -1e308])
    found = change("y", want, -want, "float64")
    assert found.relative == pytest.approx(2.0)
    assert found.max_abs == sys.float_info.max


def test_what_is_not_finite_in_one_only_is_counted_and_left_out() -> None:
    want = np.array([1.0, np.nan, np.inf, 4.0], np.float32)
    have = np.array([1.5, np.nan, np.inf, np.nan], np.float32)
    found = floats(have, want)
    assert (found.nonfinite, found.max_abs, found.relative) == (1, 0.5, None)
    assert found.unequal == 0.5


def test_an_output_that_is_expected_to_be_zero_has_no_relative_difference() -> None:
    found = floats(np.array([0.0, 2.0]), np.zeros(2, np.float32))
    assert (found.max_abs, found.relative) == (2.0, None)
    equal = floats(np.zeros(2), np.zeros(2, np.float32))
    assert (equal.max_abs, equal.relative) == (0.0, 0.0)


def test_half_precision_that_numpy_lacks() -> None:
    want, have = (np.array([bits, 0x3F80], np.uint16) for bits in (0x3F80, 0x4000))  # 1 and 2
    found = change("y", want, have, "bfloat16")
    assert found.max_abs == 1.0
    assert found.relative == pytest.approx(1 / np.sqrt(2))


def test_integers_are_numbers_strings_and_booleans_are_equal_or_not() -> None:
    labels = np.array([3, 5, 7, 9])
    numbers = change("y", labels, np.array([3, 5, 7, 1]), "int64")
    assert (numbers.unequal, numbers.max_abs, numbers.top1) == (0.25, 8.0, None)
    assert numbers.relative == pytest.approx(8 / float(np.linalg.norm(labels)))
    names = np.array(["cat", "dog"], object)
    found = change("y", names, np.array(["cat", "cow"], object), "string")
    assert found == OutputChange(name="y", unequal=0.5)
    assert change("y", names, names, "string") == OutputChange(name="y", unequal=0.0, relative=0.0)
    flags = change("y", np.array([True, False]), np.array([True, True]), "bool")
    assert flags == OutputChange(name="y", unequal=0.5)


def test_another_shape_is_all_that_is_said() -> None:
    found = floats(SCORES[:1])
    assert "shape" in found.form
    assert (found.max_abs, found.relative, found.top1, found.unequal) == (None,) * 4


def test_the_worst_of_each_figure_over_the_samples() -> None:
    first = OutputChange(name="y", unequal=0.5, max_abs=1.0, relative=0.1, top1=1.0)
    second = OutputChange(name="y", unequal=0.1, max_abs=3.0, relative=0.05, top1=0.7)
    expected = OutputChange(name="y", unequal=0.5, max_abs=3.0, relative=0.1, top1=0.7)
    assert worst(first, second) == worst(second, first) == expected
    unknown = OutputChange(name="y", unequal=0.1, max_abs=3.0, nonfinite=2)
    for found in (worst(first, unknown), worst(unknown, first)):
        assert (found.relative, found.nonfinite) == (None, 2)
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
def test_which_revisions_can_be_compared(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], why: str
) -> None:
    stable = manifests.manifest(inputs=(X,), outputs=(Y,))
    found = incompatibility(manifests.manifest(inputs=inputs, outputs=outputs), stable)
    assert why in found
    assert bool(found) is bool(why)


def test_of_many_outputs_those_that_changed_most_are_reported() -> None:
    few = [OutputChange(name=f"y{index}", relative=index / 9) for index in range(OUTPUTS)]
    assert most_changed(few) == tuple(few)
    worse = [
        OutputChange(name="form", form="has shape [1]"),
        OutputChange(name="nan", nonfinite=1),
        OutputChange(name="equal", relative=0.0),
    ]
    found = most_changed([*worse, *few])
    assert len(found) == OUTPUTS
    # without the three that changed least
    assert [each.name for each in found[:2]] == ["form", "nan"]
    assert {"equal", "y0", "y1"}.isdisjoint(each.name for each in found)
