"""What a mask leaves in outputs: which numbers are no values, and that the others are judged by their own scale."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from enginewright_contract.manifest import VaryingOutput
from enginewright_runtime.proof.parity import fills
from enginewright_runtime.proof.parity.comparison import Comparison, ParityVerdict, scales_of
from enginewright_runtime.proof.parity.fills import Fill, find_fill
from enginewright_runtime.proof.parity.measuring import has_numbers
from enginewright_runtime.proof.parity.part_sums import WHOLE
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.spread import SpreadBuilder, statistics
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.proof.parity.values import pieces
from enginewright_runtime.proof.parity.variation import VaryingOutputs
from enginewright_serving.sidecar.answer_change import change
from numpy.typing import NDArray

Array = NDArray[Any]
Fills = Callable[[Array, Array], Array]  # of scores and where they are masked
NAME = "y"
TYPES = {NAME: "float32"}
SINGLE = float(np.finfo(np.float32).min)
PRECISIONS = ("FP32", "FP16", "INT8")


def put(number: float) -> Fills:
    return lambda scores, masked: np.where(masked, number, scores).astype(np.float32)


def add(number: float) -> Fills:
    return lambda scores, masked: (scores + masked * np.float32(number)).astype(np.float32)


def add_twice(scores: Array, masked: Array) -> Array:
    """Two masks of which one covers half of the other."""
    inner = masked & (np.arange(scores.shape[1]) % 2 == 0).reshape(1, -1, *[1] * (scores.ndim - 2))
    return add(-1e4)(add(-1e4)(scores, masked), inner)


def put_two(scores: Array, masked: Array) -> Array:
    return put(-1e9)(put(-1e4)(scores, masked), masked & (scores > 0))


MASKS: Mapping[str, Fills] = {
    "-9999": put(-9999.0),
    "-8000 added": add(-8000.0),
    "-1e4": put(-1e4),
    "-65504": put(-65504.0),
    "-1e9": put(-1e9),
    "-2^32": put(-(2.0**32) + 1),
    "least": put(SINGLE),
    "half of least": put(SINGLE / 2),
    "+1e9": put(1e9),
    "-1e4 added": add(-1e4),
    "-65504 added": add(-65504.0),
    "-1e9 added": add(-1e9),
    "added twice": add_twice,
    "two kinds": put_two,
}
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def draw(seed: int, shape: tuple[int, ...], size: float = 5.0) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(0, size, shape), np.float32)


def cover(shape: tuple[int, ...], share: float) -> Array:
    """Return a mask of the last positions of axis 1, as of padding."""
    masked = np.zeros(shape, np.bool_)
    masked[:, round(shape[1] * (1 - share)) :] = True
    return masked


def compare(
    expected: list[Array],
    outputs: list[Array],
    emulated: list[Array] | None,
    precision: str,
    axes: tuple[int, ...] = (WHOLE,),
) -> ParityVerdict:
    tolerances = Tolerances(precision)
    samples = {str(index): {NAME: array} for index, array in enumerate(expected)}
    scales = scales_of(samples, TYPES)
    builder = PartsBuilder({NAME: axes}, TYPES, tolerances, scales)
    for index, array in enumerate(expected):
        builder.add({NAME: array}, {NAME: emulated[index]} if emulated else None)
    comparison = Comparison("source", tolerances, TYPES, scales, (), builder.build())
    for index, array in enumerate(expected):
        comparison.add(str(index), {NAME: array}, {NAME: outputs[index]})
    return comparison.verdict()


def count_unjudged(verdict: ParityVerdict) -> int:
    return sum(part.count for output in verdict.outputs for part in output.unjudged)


@each_mask
@pytest.mark.parametrize("share", [0.3, 0.97])
def test_what_a_mask_leaves_is_no_value(mask: Fills, share: float) -> None:
    scores, masked = draw(1, (3, 60)), cover((3, 60), share)
    array = mask(scores, masked)
    fill = find_fill(array, "float32")
    np.testing.assert_array_equal(fill.covers(array.astype(np.float64)), masked)
    assert fill.largest == np.abs(scores[~masked]).max()


def test_one_round_number_is_a_mask() -> None:
    assert find_fill(np.array([[3.5, -1e4, 2.0]], np.float32), None).largest == 3.5


def test_masks_in_other_types_are_found() -> None:
    half = put(-65504.0)(draw(1, (2, 20)), cover((2, 20), 0.5)).astype(np.float16)
    assert find_fill(half, "float16").largest < 30
    bits = (add(-1e4)(draw(1, (2, 20)), cover((2, 20), 0.5)).view(np.uint32) >> 16).astype(
        np.uint16
    )
    assert find_fill(bits, "bfloat16").largest < 30
    infinite = put(-1e9)(draw(1, (2, 20)), cover((2, 20), 0.5))
    infinite[0, :2] = np.nan, -np.inf
    assert find_fill(infinite, None).largest < 30


def make_quantities(seed: int, mean: float, size: float) -> Array:
    """Return rows of a large quantity and a probability."""
    random = np.random.default_rng(seed)
    rows = np.stack((random.normal(mean, size, 50), random.random(50)), 1)
    return rows.astype(np.float32)


@pytest.mark.parametrize(
    "array",
    [
        make_quantities(1, -12_345.0, 3.0),
        make_quantities(1, 101_325.0, 400.0),
        make_quantities(1, -40_000.0, 9_000.0),
        make_quantities(1, 1_700_000_000.0, 1e6),
        np.array([[-12_345.0, -12_345.0]]),  # all there is
        np.array([[-1001.3], [-1000.4], [-999.8]]),
        np.array([[-1001.3], [-1001.3]]),
        np.array([[-20_030.5]]),
        np.array([[0.0, -1e4, 0.0, -1e4]]),  # a mask itself
        np.array([[101.0, 50_256.0, 50_256.0, 7.0]]),  # tokens
        np.array([[300.0, -1e4, -1e4]]),  # too near
        np.array([[5.0, -800.0, -800.0]]),  # too small
        np.array([[5, -10_000, -10_000]]),
        np.array([[0.5, -1.0, -1.0]]),
        np.zeros((0, 4)),
    ],
    ids=str,
)
def test_quantities_are_values(array: Array) -> None:
    fill = find_fill(array, None)
    assert fill == Fill(float(np.abs(array).max(initial=0)))
    numbers = array.astype(np.float64)
    assert fill.hide(numbers) is numbers


def test_quantities_cost_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def take_pieces(array: Array, dtype: str) -> Iterator[Array]:
        for piece in pieces(array, dtype):
            taken.append(piece)
            yield piece

    array = draw(1, (1, 3, 640, 640), 1000.0)
    monkeypatch.setattr(fills, "pieces", take_pieces)
    assert find_fill(array, "float32").limit == np.inf
    assert len(taken) == 1


def test_an_output_that_is_masked_throughout_shows_no_number() -> None:
    for number in (SINGLE, -1e30, -1e9, -65504, -1e4, 1e9):
        assert not has_numbers(np.full((2, 3), number, np.float32), None)
        assert number > 0 or not has_numbers(np.full((1, 1), number, np.float32), None)
    assert has_numbers(np.full((2, 3), -12_345.0, np.float32), None)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("quantity", [-1001.0, -2030.0, 1000.0])
def test_quantities_beside_small_values_are_judged(quantity: float, precision: str) -> None:
    # fault: energies of a molecule, or edges of pictures, count as masked beside values a hundredth as large
    def make(seed: int, size: float) -> Array:
        energies = quantity * size + draw(seed, (8, 1), 0.3)
        return np.concatenate([energies, draw(seed + 50, (8, 3), 2.0)], 1).astype(np.float32)

    expected = [make(seed, 1.0) for seed in range(4)]
    right = compare(expected, expected, expected, precision, (WHOLE, 1))
    assert right.agrees
    assert not count_unjudged(right)
    wrong = compare(
        expected, [make(seed, 1.3) for seed in range(4)], expected, precision, (WHOLE, 1)
    )
    assert not wrong.agrees


@pytest.mark.parametrize("times", [0.7, 1.3, 5.0])
def test_a_mask_of_another_size_is_none(times: float) -> None:
    expected = put(-9999.0)(draw(1, (4, 40)), cover((4, 40), 0.3))
    wrong = np.where(expected < -100, times * expected, expected).astype(np.float32)
    verdict = compare([expected] * 3, [wrong] * 3, [expected] * 3, "FP32")
    assert not verdict.agrees


def test_a_mask_in_one_of_both_is_an_error_of_the_largest_value() -> None:
    want = np.array([4.0, -1e4, -1e4, 2.0, -1e4, np.nan])
    have = np.array([-1e4, -65504.0, -np.inf, 2.0, 1.0, -1e4])
    first, second = find_fill(want, None).hide_both(want, have)
    np.testing.assert_array_equal(first[1:3], second[1:3])
    places = [0, 3, 4]
    assert (second[places] - first[places]).tolist() == [-4.0, 0.0, 4.0]
    assert second[5] == -1e4  # a number where none is expected


@pytest.mark.parametrize("mask", [*MASKS.values(), put(-np.inf)], ids=[*MASKS, "-inf"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("shapes", "axes", "share"),
    [
        ([(1, 20), (1, 30), (1, 30)], (WHOLE,), 0.5),
        ([(2, 20), (2, 30), (2, 40)], (WHOLE,), 0.5),
        ([(4, 64)] * 3, (WHOLE,), 0.95),
        ([(2, 20, 5), (2, 30, 5), (2, 40, 5)], (WHOLE, 2), 0.5),
        ([(1, 100, 5)] * 3, (WHOLE, 2), 0.95),
    ],
)
def test_values_of_another_model_where_nothing_is_masked_fail(
    mask: Fills,
    precision: str,
    shapes: list[tuple[int, ...]],
    axes: tuple[int, ...],
    share: float,
) -> None:
    # fault: an output's values are another model's where no mask covers them, and the mask's numbers hide it
    def make(seed: int) -> list[Array]:
        return [
            mask(draw(seed + index, shape), cover(shape, share))
            for index, shape in enumerate(shapes)
        ]

    expected = make(0)
    right = compare(expected, expected, expected, precision, axes)
    assert right.agrees, right.description
    assert not count_unjudged(right)
    wrong = compare(expected, make(100), expected, precision, axes)
    assert not wrong.agrees


def to_half(array: Array) -> Array:
    """Round to FP16, whose least number becomes -infinity where one more is added to it."""
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def saturate(array: Array) -> Array:
    return to_half(np.clip(array, -65504.0, 65504.0))


def to_bfloat(array: Array) -> Array:
    return ((array.view(np.uint32) + np.uint32(1 << 15)) & np.uint32(0xFFFF0000)).view(np.float32)


def clip_to_ten_thousand(array: Array) -> Array:
    """Round as converters do that clip constants."""
    return to_half(np.clip(array, -1e4, 1e4))


ROUNDINGS: Mapping[str, tuple[str, Callable[[Array], Array]]] = {
    "FP16": ("FP16", to_half),
    "FP16, saturated": ("FP16", saturate),
    "FP16, clipped": ("FP16", clip_to_ten_thousand),
    "BF16": ("BF16", to_bfloat),
    "INT8": ("INT8", lambda array: np.where(np.abs(array) < 100, array + draw(9, array.shape, 0.3), array)),
}  # fmt: skip


@each_mask
@pytest.mark.parametrize(("precision", "rounded"), ROUNDINGS.values(), ids=ROUNDINGS)
@pytest.mark.parametrize("is_emulated", [True, False])
def test_rounded_masks_and_scores_agree(
    mask: Fills, precision: str, rounded: Callable[[Array], Array], *, is_emulated: bool
) -> None:
    shapes = [(2, 40, 5), (2, 60, 5), (2, 50, 5)]
    scores = [draw(index, shape) for index, shape in enumerate(shapes)]
    covers = [cover(shape, 0.5) for shape in shapes]
    expected = [mask(one, masked) for one, masked in zip(scores, covers, strict=True)]
    outputs = [rounded(array).astype(np.float32) for array in expected]
    verdict = compare(expected, outputs, outputs if is_emulated else None, precision, (WHOLE, 2))
    assert verdict.agrees, verdict.description
    assert not count_unjudged(verdict)
    assert all(
        output.max_abs_error is None or output.max_abs_error < 5 for output in verdict.outputs
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("number", [-1e4, SINGLE])
def test_a_mask_that_is_lost_or_elsewhere_fails(precision: str, number: float) -> None:
    scores, masked = draw(1, (2, 40)), cover((2, 40), 0.3)
    expected = put(number)(scores, masked)
    for wrong in (scores, put(number)(scores, ~masked), put(number)(scores, cover((2, 40), 0.6))):
        verdict = compare([expected], [wrong], [expected], precision)
        assert "masked in one output alone" in str(verdict.failures[0])


def test_a_mask_that_depends_on_rounded_scores_agrees_where_rounding_moves_it() -> None:
    scores = [draw(seed, (1, 2000), 1.0) for seed in range(3)]

    def suppress(values: Array) -> Array:
        return np.where(values < 0.5, np.float32(-1e4), values)

    expected = [suppress(array) for array in scores]
    outputs, emulated = (
        [suppress(array + draw(seed, array.shape, 0.01)) for array in scores] for seed in (7, 8)
    )
    verdict = compare(expected, outputs, emulated, "INT8")
    assert verdict.agrees, verdict.description
    assert compare(expected, outputs, emulated, "FP16").agrees
    assert not compare(expected, [suppress(draw(9, (1, 2000), 1.0))] * 3, emulated, "INT8").agrees


def test_the_tolerance_of_users_holds_for_every_number() -> None:
    expected = put(-1e4)(draw(1, (2, 40)), cover((2, 40), 0.5))
    outputs = np.where(expected < -100, np.float32(-9e3), expected)
    assert compare([expected], [outputs], None, "FP32").agrees
    tolerances = Tolerances(rtol=0.01)
    comparison = Comparison("source", tolerances, TYPES, {}, ())
    comparison.add("a", {NAME: expected}, {NAME: outputs})
    assert not comparison.verdict().agrees


def test_rows_that_are_masked_have_no_top_class() -> None:
    expected = add(-1e4)(draw(1, (20, 4)), np.repeat(np.arange(20)[:, None] > 0, 4, 1))
    outputs = expected.copy()
    outputs[0] = outputs[0, ::-1]
    (output,) = compare([expected], [outputs], None, "INT8").outputs
    assert output.top1_agreement == 0


def test_another_revision_whose_values_differ_beside_a_mask_has_changed() -> None:
    shape = (2, 40)
    want, have = (put(SINGLE)(draw(seed, shape), cover(shape, 0.5)) for seed in (1, 2))
    assert (change(NAME, want, have, "float32").relative or 0.0) > 1
    rounded = change(NAME, want, to_half(want), "float32")
    assert (rounded.relative or 0.0) < 0.01
    assert not rounded.nonfinite


def make_runs(size: float, count: int) -> list[Array]:
    return [put(-1e9)(draw(seed, (4, 200), size), cover((4, 200), 0.5)) for seed in range(count)]


def make_varying() -> tuple[VaryingOutput, Array]:
    golden, *runs = make_runs(1.0, 33)
    builder = SpreadBuilder("a", golden, "float32")
    for array in runs:
        builder.add(array)
    spread = builder.spread()
    assert spread is not None
    return VaryingOutput(name=NAME, spreads=(spread,)), golden


def judge_runs(varying: VaryingOutput, golden: Array, runs: list[Array]) -> bool:
    allowed = Tolerances().of_output(NAME, "float32")
    outputs = VaryingOutputs((varying,), TYPES, lambda *_: allowed)
    trial = outputs.trial("a", {NAME: golden})
    for array in runs:
        if not trial.take({NAME: array}):
            break
    return not trial.faults


def test_outputs_that_vary_beside_a_mask_are_judged_by_their_values() -> None:
    varying, golden = make_varying()
    assert judge_runs(varying, golden, make_runs(1.0, 12)[1:])
    assert not judge_runs(varying, golden, make_runs(3.0, 12))


def test_ranges_that_earlier_versions_recorded_beside_a_mask_still_hold() -> None:
    varying, golden = make_varying()
    (spread,) = varying.spreads
    raw = [statistics(array, golden, "float32", Fill()) for array in make_runs(1.0, 33)]
    ranges = {
        name: (min(run[name] for run in raw), max(run[name] for run in raw)) for name in raw[0]
    }
    earlier = VaryingOutput(name=NAME, spreads=(spread.model_copy(update={"ranges": ranges}),))
    assert judge_runs(earlier, golden, make_runs(1.0, 12)[1:])
