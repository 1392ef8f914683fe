"""How outputs are compared: every type, every figure, every tolerance."""

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from enginewright_contract.manifest import OutputParity
from enginewright_contract.task import OutputTolerance, Recipe
from enginewright_runtime.proof.parity.comparison import (
    ComparedWith,
    Comparison,
    Outputs,
    ParityVerdict,
    scales_of,
    varying,
)
from enginewright_runtime.proof.parity.tolerances import DEFAULTS, Tolerances

LIMITS: dict[str, Any] = {
    "backend": "cpu",
    "ort_version": "1",
    "max_opset": 26,
    "max_ir_version": 13,
}


def compare(
    expected: Mapping[str, Outputs],
    actual: Mapping[str, Outputs],
    *,
    compared_with: ComparedWith,
    tolerances: Tolerances,
    dtypes: Mapping[str, str] | None = None,
) -> ParityVerdict:
    """Compare all outputs of all samples."""
    kinds = dtypes or {}
    comparison = Comparison(compared_with, tolerances, kinds, scales_of(expected, kinds))
    for sample, outputs in expected.items():
        comparison.add(sample, outputs, actual.get(sample, {}))
    return comparison.verdict()


def judge(
    want: Any,
    have: Any,
    precision: str = "FP32",
    dtype: str | None = None,
    **recipe: Any,
) -> ParityVerdict:
    tolerances = Tolerances.of(Recipe(**LIMITS, **recipe), precision)
    return compare(
        {"a": {"y": np.asarray(want)}},
        {"a": {"y": np.asarray(have)}},
        compared_with="source",
        tolerances=tolerances,
        dtypes={"y": dtype} if dtype else None,
    )


def figures(verdict: ParityVerdict) -> OutputParity:
    assert len(verdict.outputs) == 1
    return verdict.outputs[0]


def test_figures_over_all_samples() -> None:
    expected = {"a": {"y": np.array([1.0, 2.0])}, "b": {"y": np.array([4.0, 0.0])}}
    actual = {"a": {"y": np.array([1.0, 2.002])}, "b": {"y": np.array([4.004, 0.01])}}
    verdict = compare(expected, actual, compared_with="expected", tolerances=Tolerances())
    assert verdict.agrees
    assert verdict.description is None
    assert verdict.worst is None
    reported = figures(verdict)
    assert (reported.name, reported.compared_with, reported.nan, reported.inf) == (
        "y",
        "expected",
        0,
        0,
    )
    assert reported.max_abs_error == pytest.approx(0.01)
    assert reported.max_rel_error == pytest.approx(0.001)  # of 0 nothing can be a relative error
    assert reported.cosine is not None
    assert reported.cosine == pytest.approx(1, abs=1e-5)
    assert reported.top1_agreement == 1
    assert verdict.max_abs_error == reported.max_abs_error


@pytest.mark.parametrize(
    ("want", "have", "reported"),
    [
        (
            np.ones((2, 3), np.float32),
            np.ones((2, 4), np.float32),
            "has shape [2, 4], expected [2, 3]",
        ),
        (
            np.ones((2, 3), np.float32),
            np.ones(6, np.float32),
            "has 1 dimensions, shape [6], expected 2, shape [2, 3]",
        ),
        (np.ones(2, np.float32), np.ones(2), "has type float64, expected float32"),
        (np.ones(2, np.int64), np.ones(2, np.int32), "has type int32, expected int64"),
        (np.array(["a"]), np.ones(1), "has type float64, expected string"),
    ],
)
def test_form(want: Any, have: Any, reported: str) -> None:
    verdict = judge(want, have)
    assert verdict.description == f"output 'y' of golden sample 'a' {reported}"
    assert figures(verdict).max_abs_error is None


@pytest.mark.parametrize(
    ("want", "have", "close"),
    [
        ([1.0, 2.0], [1.005, 2.0], True),
        ([1.0, 2.0], [1.1, 2.0], False),
        ([1e-6, 1.0], [2e-6, 1.0], True),  # noise beside the largest value
        ([1e-4, 2e-4], [2e-4, 2e-4], False),  # but not where everything is small
        ([100.0] * 200, [100.0] * 199 + [105.0], True),  # one element in 200, by a little
        ([100.0] * 200, [100.0] * 199 + [150.0], False),  # by a lot
        ([np.nan, np.inf, 1.0], [np.nan, np.inf, 1.0], True),
        ([np.nan, 1.0], [1.0, np.nan], False),
        ([np.inf, 1.0], [-np.inf, 1.0], False),
        ([], [], True),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([0.0, 0.0], [0.0, 1.0], False),
    ],
)
def test_tolerances(want: list[float], have: list[float], close: bool) -> None:
    assert judge(np.array(want, np.float32), np.array(have, np.float32)).agrees is close


def test_labels_must_be_the_same_but_for_one_in_a_hundred() -> None:
    labels = np.arange(200)
    other = labels.copy()
    other[:2] = -1
    assert judge(labels, other).agrees
    other[:3] = -1
    assert str(judge(labels, other).description).endswith("differs in 1.5% of its elements")


def test_output_that_is_not_there() -> None:
    expected = {"a": {"y": np.ones(2), "z": np.ones(2)}}
    verdict = compare(
        expected, {"a": {"y": np.ones(2)}}, compared_with="source", tolerances=Tolerances()
    )
    assert verdict.description == "output 'z' of golden sample 'a' is missing"
    assert verdict.failures[0].figure == "missing"
    assert not compare(expected, {}, compared_with="source", tolerances=Tolerances()).agrees


@pytest.mark.parametrize(
    "array",
    [
        np.float32(3.5),
        np.zeros((2, 3), np.float32),
        np.array([np.nan, np.inf, -np.inf, 1], np.float16),
        np.array(True),
        np.array(["cat", "dog"], object),
        np.arange(5),
        np.array([1e308, -1e308]),
        np.ones((3, 4), np.float32).T,
        np.array([1, 2], ml_dtypes.float8_e4m3fn),
        np.array([1, 2], ml_dtypes.int4),
        np.array([1 + 2j]),
    ],
)
@pytest.mark.parametrize("precision", list(DEFAULTS))
def test_agreement_with_itself(array: Any, precision: str) -> None:
    verdict = judge(array, array, precision)
    assert verdict.agrees, verdict.description
    reported = figures(verdict)
    assert reported.max_abs_error in {0, None}
    assert OutputParity.model_validate_json(reported.to_json()) == reported


def test_an_output_is_compared_once_a_sample_has_elements_of_it() -> None:
    empty, full = np.zeros((0, 4), np.float32), np.ones((1, 4), np.float32)
    verdict = judge(empty, empty)
    assert (verdict.agrees, verdict.compared, verdict.outputs) == (True, False, ())
    assert not judge(empty, full).agrees, "its shape is compared"
    samples = {"none": {"y": empty}, "one": {"y": full}}
    assert compare(samples, samples, compared_with="source", tolerances=Tolerances()).compared


def test_an_output_without_a_finite_element_is_not_compared() -> None:
    blank = np.array([np.nan, np.inf], np.float32)
    verdict = judge(blank, blank)
    assert (verdict.agrees, verdict.compared, verdict.outputs) == (True, False, ())
    bits = np.full(2, 0x7FC0, np.uint16)  # NaN of BF16
    assert not judge(bits, bits, dtype="bfloat16").compared
    assert judge(bits, bits).compared, "integers are"
    assert judge(np.array(["a"], object), np.array(["a"], object)).compared
    assert not judge(blank, np.ones(2, np.float32)).agrees, "numbers in their places are not right"
    samples = {"blank": {"y": blank}, "one": {"y": np.array([np.nan, 1], np.float32)}}
    assert compare(samples, samples, compared_with="source", tolerances=Tolerances()).compared


def test_strings_of_either_form() -> None:
    assert judge(np.array(["a", "bc"]), np.array(["a", "bc"], object)).agrees
    verdict = judge(np.array(["a", "bc"]), np.array(["a", "b"], object))
    assert verdict.description == "output 'y' of golden sample 'a' differs in 50.0% of its elements"
    assert verdict.failures[0].figure == "equal"
    assert judge(np.array([b"a", b"b"]), np.array(["a\0", "b"], object)).agrees


def test_one_long_string_is_not_as_much_memory_as_all_of_its_length() -> None:
    """A server that answers so would end the sidecar."""
    want = np.array(["a"] * 3000, object)
    have = want.copy()
    have[0] = "x" * 30_000
    tracemalloc.start()
    try:
        verdict = judge(want, have)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert verdict.agrees, "one in 3000 may differ"


def test_not_a_number_and_infinity() -> None:
    want = [np.nan, np.inf, 1.0, 2.0]
    assert judge(want, want).agrees
    verdict = judge(want, [np.nan, -np.inf, np.nan, np.inf])
    reported = figures(verdict)
    assert (reported.nan, reported.inf) == (1, 2)
    assert verdict.description is not None
    assert "in other places than expected: 1 NaN and 2 infinite of 4 values" in verdict.description
    assert "1 finite of 4 values" in str(judge(want, [0.0, np.inf, 1, 2]).description)


@pytest.mark.parametrize(("error", "agrees"), [(1e-7, True), (1e-2, False)])
def test_an_output_that_is_zero_has_no_cosine(error: float, agrees: bool) -> None:
    want = np.full(100, 1e-8, np.float32)
    verdict = judge(want, want + np.float32(error))
    assert figures(verdict).cosine is None
    assert verdict.agrees is agrees


@pytest.mark.parametrize("precision", ["FP16", "BF16", "INT8", "FP8"])
def test_zeros_in_place_of_a_direction(precision: str) -> None:
    verdict = judge(np.linspace(0.001, 0.01, 10), np.zeros(10), precision)
    assert figures(verdict).cosine == 0
    assert not verdict.agrees


def test_of_one_number_only_its_size_counts() -> None:
    assert figures(judge(np.float32(0.9), np.float32(0.2), "INT8")).cosine is None
    assert not judge(np.float32(0.9), np.float32(0.2), "INT8").agrees
    assert judge(np.float32(0.9), np.float32(0.85), "INT8").agrees


def test_bits_of_types_that_numpy_has_not() -> None:
    halves = np.array([1, 2, 3], ml_dtypes.bfloat16)
    bits = halves.view(np.uint16)
    near = np.array([1.01, 2, 3], ml_dtypes.bfloat16)
    assert judge(bits, near, dtype="bfloat16").agrees
    assert figures(judge(bits, near, dtype="bfloat16")).max_abs_error == pytest.approx(0.0078, 0.01)
    assert judge(bits.view("V2"), bits, dtype="bfloat16").agrees
    assert not judge(bits, np.array([1, 4, 3], ml_dtypes.bfloat16), dtype="bfloat16").agrees
    eighths = np.array([1, 2, 300], ml_dtypes.float8_e4m3fn)
    other = np.array([1.1, 2, 320], ml_dtypes.float8_e4m3fn)
    assert judge(eighths.view(np.uint8), other, dtype="float8_e4m3fn").agrees
    assert not judge(eighths.view(np.uint8), -other, dtype="float8_e4m3fn").agrees


@pytest.mark.parametrize("count", [10, (1 << 20) + 3])
def test_pieces_of_large_arrays(count: int) -> None:
    want = np.linspace(-1, 1, count, dtype=np.float32)
    have = want.copy()
    have[-1] += 0.05
    verdict = judge(want, have)
    reported = figures(verdict)
    assert reported.max_abs_error == pytest.approx(0.05, rel=1e-3)
    assert reported.max_rel_error == pytest.approx(0.05, rel=1e-3)
    assert verdict.agrees is (count > 100)  # one outlier among many


def test_best_classes() -> None:
    want = np.array([[0.1, 0.9], [0.9, 0.1], [0.501, 0.499], [0.3, 0.7]])
    have = np.array([[0.2, 0.8], [0.8, 0.2], [0.499, 0.501], [0.7, 0.3]])
    reported = figures(judge(want, have, "INT8"))
    assert reported.top1_agreement == 0.75  # a tie counts as right, the last row is wrong
    assert figures(judge(want.reshape(1, 1, 4, 2), have.reshape(1, 1, 4, 2))).top1_agreement is None
    assert figures(judge(want[:, :1], want[:, :1])).top1_agreement is None
    assert figures(judge(np.arange(4), np.arange(4))).top1_agreement is None


def test_a_wrong_class_is_refused_though_the_direction_agrees() -> None:
    generator = np.random.default_rng(1)
    want = np.full((40, 1000), 10.0) + generator.normal(0, 0.01, (40, 1000))
    want[:, 0] = 13
    have = want.copy()
    have[:4, [0, 1]] = have[:4, [1, 0]]
    verdict = judge(want, have, "INT8")
    assert verdict.failures[0].figure == "top1"
    assert "has the same top class in 90.0% of 40 rows, below the minimum of 95% for INT8" in str(
        verdict.description
    )


@pytest.mark.parametrize(
    ("precision", "flipped", "agrees"),
    [("INT8", 1, True), ("INT8", 2, False), ("BF16", 1, False), ("FP32", 1, False)],
)
def test_share_of_top_classes_is_one_of_all_samples(
    precision: str, flipped: int, agrees: bool
) -> None:
    # fault: one of many pictures is another class, and its only row is all rows of its sample
    expected, actual = {}, {}
    for number in range(20):
        want = np.full((1, 1000), 10.0) + np.random.default_rng(number).normal(0, 0.01, (1, 1000))
        want[0, 7] = 13
        have = want.copy()
        if number < flipped:
            have[:, [3, 7]] = have[:, [7, 3]]
        expected[str(number)], actual[str(number)] = {"y": want}, {"y": have}
    verdict = compare(
        expected, actual, compared_with="source", tolerances=Tolerances(precision=precision)
    )
    assert verdict.agrees is agrees, verdict.description
    if precision == "INT8" and not agrees:
        assert str(verdict.description) == (
            "output 'y' of golden sample '0' has the same top class in 90.0% of 20 rows of 20 samples,"
            " below the minimum of 95% for INT8"
        )


@pytest.mark.parametrize(
    ("want", "have", "agrees"),
    [
        ([[0.505, 0.495]], [[0.495, 0.505]], False),
        ([[0.5020, 0.4980]], [[0.4990, 0.5010]], True),  # a tie, within 1% of the best
        ([[0.0, 9.0, 8.8]], [[0.0, 8.9, 8.95]], False),
        ([[-1e9, 3.0, 2.9]], [[-1e9, 2.93, 2.97]], False),  # a mask is no measure of a tie
        ([[-np.inf, 3.0, 2.9]], [[-np.inf, 2.93, 2.97]], False),
        ([[3e-8, 1e-8]], [[1e-8, 3e-8]], True),  # an answer to noise
        ([0.505, 0.495], [0.495, 0.505], False),  # one row
        (0.505, 0.5, True),  # no row
        ([[0.505], [0.495]], [[0.5], [0.5]], True),  # one class
    ],
)
def test_a_flipped_class_is_refused_in_single_precision(want: Any, have: Any, agrees: bool) -> None:
    for dtype in (np.float32, np.float64):
        verdict = judge(np.array(want, dtype), np.array(have, dtype))
        assert verdict.agrees is agrees


def test_one_flipped_class_of_many_is_refused_in_single_precision() -> None:
    """Of a thousand classes 1% may be off by a tenth of the largest: the best one may not."""
    want = np.random.default_rng(5).uniform(0, 0.5, (1, 1000)).astype(np.float32)
    want[0, 3], want[0, 7] = 1.0, 0.92
    have = want.copy()
    have[0, 3], have[0, 7] = 0.92, 1.0
    assert judge(want, have).failures[0].figure == "top1"
    assert judge((want * 1e3).astype(np.int64), (have * 1e3).astype(np.int64)).agrees


# fault: Outputs | another direction in FP32, every element within tolerance | every comparison,
#   by cosine | first golden inference
def test_another_direction_is_refused_in_single_precision() -> None:
    """Beside one large value the others may be anything, element by element."""
    generator = np.random.default_rng(6)
    want = generator.normal(0, 0.2, (1, 4, 50, 50)).astype(np.float32)
    want[0, 0, 0, 0] = 100
    have = generator.normal(0, 0.2, want.shape).astype(np.float32)
    have[0, 0, 0, 0] = 100
    assert judge(want, have).failures[0].figure == "cosine"


def test_rounding_beside_small_values_changes_no_direction() -> None:
    want = np.linspace(1e-6, 1e-5, 10).astype(np.float32)
    verdict = judge(want, want + np.float32(9e-7))
    assert verdict.agrees, verdict.description
    assert figures(verdict).cosine is None


@pytest.mark.parametrize(
    ("noise", "agreeing"),
    [
        (0.0005, ["FP32", "FP16", "BF16", "INT8", "FP8"]),
        (0.03, ["FP16", "BF16", "INT8", "FP8"]),
        (0.08, ["BF16", "INT8", "FP8"]),
        (0.15, ["INT8", "FP8"]),
        (0.22, ["FP8"]),
        (0.5, []),
    ],
)
def test_low_precisions_are_allowed_more_noise(noise: float, agreeing: list[str]) -> None:
    """An output of normal values: of that noise relative to it, the cosine is 1/sqrt(1+noise^2)."""
    generator = np.random.default_rng(7)
    want = generator.normal(0, 1, (2, 8, 64, 64))
    have = want + generator.normal(0, noise, want.shape)
    assert [name for name in DEFAULTS if judge(want, have, name).agrees] == agreeing


def test_a_sample_without_content_is_judged_by_the_range_of_the_others() -> None:
    """Steps of INT8 are of a tensor's range: a page without text shows them too."""
    full, empty = np.linspace(0, 1, 100), np.full(100, 1e-5)
    expected = {"text": {"y": full}, "blank": {"y": empty}}
    actual = {"text": {"y": full + 0.004}, "blank": {"y": empty + 0.004}}
    for precision, agrees in (("INT8", True), ("FP16", False)):
        verdict = compare(
            expected, actual, compared_with="source", tolerances=Tolerances(precision=precision)
        )
        assert verdict.agrees is agrees, verdict.description


def test_tolerances_of_the_user() -> None:
    want, have = np.array([1.0, 2.0]), np.array([1.001, 2.0])
    assert not judge(want, have, "INT8", rtol=0.0, atol=0.0005).agrees
    assert judge(want, have, rtol=0.002).agrees
    assert "allowed: 0 of the value plus 0.0005, by spec.parity" in str(
        judge(want, have, atol=0.0005).description
    )
    own = (OutputTolerance(name="y", atol=0.01), OutputTolerance(name="other", atol=1.0))
    assert judge(want, have, rtol=0.0, atol=0.0, outputs=own).agrees
    assert not judge(want, have, rtol=0.0, atol=0.0, outputs=own[1:]).agrees
    assert judge(want, have, outputs=(OutputTolerance(name="y"),)).agrees  # no numbers: the default
    assert "by spec.parity.outputs, y" in str(judge(want, have + 1, outputs=own).description)


def test_integers_are_equal_unless_their_own_output_has_a_tolerance() -> None:
    want = np.arange(100, dtype=np.uint8)
    have = want + np.uint8(1)
    assert not judge(want, have).agrees
    assert not judge(want, have, atol=1.0).agrees
    assert judge(want, have, outputs=(OutputTolerance(name="y", atol=1.0),)).agrees
    one = want.copy()
    one[0] = 9
    assert judge(want, one).agrees


def test_types_have_tolerances_of_their_own() -> None:
    want = np.linspace(1, 2, 100)
    for dtype, agrees in ((np.float32, False), (np.float16, True)):
        assert judge(want.astype(dtype), (want * 1.035).astype(dtype)).agrees is agrees


def test_the_worst_failure() -> None:
    expected = {name: {"y": np.array([1.0, 2.0])} for name in "abc"}
    actual = {
        name: {"y": np.array([1.0, 2.0 + add])} for name, add in zip("abc", [1, 5, 2], strict=True)
    }
    verdict = compare(expected, actual, compared_with="source", tolerances=Tolerances())
    assert verdict.worst is not None
    assert verdict.worst.sample == "b"
    assert str(verdict.description).startswith("output 'y' of golden sample 'b'")
    assert str(verdict.description).endswith("(and 2 more)")


def test_outputs_that_vary() -> None:
    once = {"noise": np.array([1.0, 2.0]), "y": np.array([1.0, 2.0])}
    again = {"noise": np.array([2.0, 1.0]), "y": np.array([1.0, 2.0])}
    assert varying(once, again, {}) == ("noise",)


@pytest.mark.parametrize(
    ("dtype", "precision", "agrees"),
    [(np.float32, None, False), (np.float16, None, True), (np.float32, "INT8", True)],
)
def test_where_only_rounding_may_differ(dtype: Any, precision: str | None, agrees: bool) -> None:
    tolerances = replace(Tolerances.of(Recipe(**LIMITS), precision), rounding=True)
    want = np.linspace(1, 2, 100)
    expected, actual = ({"a": {"y": array.astype(dtype)}} for array in (want, want * 1.004))
    verdict = compare(expected, actual, compared_with="source", tolerances=tolerances)
    assert verdict.agrees is agrees
    assert agrees or "by FP32 rounding" in str(verdict.description)
    declared = replace(Tolerances.of(Recipe(**LIMITS, rtol=0.01)), rounding=True)
    assert declared.of_output("y", "float32").rtol == 0.01
