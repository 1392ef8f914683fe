"""Judgement of the parts of outputs: each by its own scale, and by what rounding costs there."""

from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.manifest import TensorSpec
from enginewright_runtime.proof.parity.axes import find_axes, select_axes
from enginewright_runtime.proof.parity.comparison import Comparison, scales_of
from enginewright_runtime.proof.parity.part_sums import WHOLE
from enginewright_runtime.proof.parity.parts import Parts, read_parts, write_parts
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.parts_judge import PartsJudge
from enginewright_runtime.proof.parity.rounding_figures import RoundingFigures
from enginewright_runtime.proof.parity.tolerances import DEFAULTS, ROUNDING, Tolerances
from numpy.typing import NDArray

Array = NDArray[Any]
NAME = "dets"
TYPES = {NAME: "float32"}
BOXES, COLUMNS = 300, 8  # x, y, width, height, four scores of at most 1
FP16, INT8 = DEFAULTS["FP16"], DEFAULTS["INT8"]


def make_head(seed: int) -> Array:
    """Return [1, columns, boxes] of a detector: boxes in pixels, and scores a thousand times smaller."""
    random = np.random.default_rng(seed)
    boxes = random.uniform(0, 640, (4, BOXES))
    scores = random.beta(0.3, 4.0, (COLUMNS - 4, BOXES))
    return np.concatenate((boxes, scores))[None].astype(np.float32)


def make_samples(count: int = 4) -> dict[str, dict[str, Array]]:
    return {f"s{seed}": {NAME: make_head(seed)} for seed in range(count)}


def round_to_half(array: Array) -> Array:
    return array.astype(np.float16).astype(np.float32)


def build(samples: dict[str, dict[str, Array]], emulate: Any = round_to_half) -> Parts:
    builder = PartsBuilder({NAME: (1,)}, TYPES, Tolerances(), {})
    for outputs in samples.values():
        builder.add(outputs, {NAME: emulate(outputs[NAME])} if emulate else None)
    return builder.build()


def judge(samples: dict[str, dict[str, Array]], parts: Parts, change: Any) -> PartsJudge:
    judged = PartsJudge(parts)
    for name, outputs in samples.items():
        judged.add(name, NAME, outputs[NAME], change(outputs[NAME].copy()), "float32")
    return judged


def scale_scores(factor: float) -> Any:
    def change(array: Array) -> Array:
        array[:, 5] *= factor
        return array

    return change


def make_classes(seed: int) -> Array:
    """Return [1, steps, classes] of scores, the best of which leads by little."""
    return np.random.default_rng(seed).normal(0, 1, (1, 5, 12)).astype(np.float32)


def add_noise(size: float, seed: int) -> Any:
    def change(array: Array) -> Array:
        error = np.random.default_rng(1000 + seed).normal(0, size, array.shape)
        return (array + error).astype(np.float32)

    return change


def compare_as_a_whole(
    precision: str,
    samples: Mapping[str, Mapping[str, Array]],
    rounded: Mapping[str, Mapping[str, Array]],
    outputs: Mapping[str, Mapping[str, Array]],
    axes: tuple[int, ...],
) -> list[str]:
    """Return the figures by which outputs fail, given those of the emulated rounding."""
    tolerances, scales = Tolerances(precision), scales_of(samples, TYPES)
    builder = PartsBuilder({NAME: axes}, TYPES, tolerances, scales)
    for name, expected in samples.items():
        builder.add(expected, rounded[name])
    comparison = Comparison("source", tolerances, TYPES, scales, (), builder.build())
    for name, expected in samples.items():
        comparison.add(name, expected, outputs[name])
    return [failure.figure for failure in comparison.verdict().failures]


def reverse_classes(array: Array) -> Array:
    array[:, 4:] = array[:, :3:-1]
    return array


def set_constant(array: Array) -> Array:
    array[:, 6] = 0.5
    return array


@pytest.mark.parametrize(
    "change",
    [scale_scores(0.1), scale_scores(0.5), scale_scores(-1), reverse_classes, set_constant],
)
@pytest.mark.parametrize("precision", ["FP32", "FP16", "BF16", "INT8", "FP8"])
def test_wrong_score_column_beside_large_boxes_is_refused(change: Any, precision: str) -> None:
    # fault: a detector's scores are wrong, and its boxes are right
    samples = make_samples()
    tolerances = Tolerances(precision)
    comparison = Comparison(
        "source", tolerances, TYPES, scales_of(samples, TYPES), (), build(samples)
    )
    for name, outputs in samples.items():
        comparison.add(name, outputs, {NAME: change(outputs[NAME].copy())})
    verdict = comparison.verdict()
    assert not verdict.agrees
    assert verdict.worst is not None
    assert verdict.worst.figure == "part"
    assert "axis 1" in str(verdict.description)


def test_rounded_outputs_agree_and_every_part_is_judged() -> None:
    samples = make_samples()
    judged = judge(samples, build(samples), round_to_half)
    assert judged.find_fault(NAME, FP16) is None
    assert judged.find_unjudged(NAME, FP16) == ()


def test_fault_names_index_axis_sample_and_what_is_allowed() -> None:
    samples = make_samples()

    def change(array: Array) -> Array:
        array[:, 5] *= 0.1
        return array

    fault = judge(samples, build(samples), change).find_fault(NAME, FP16)
    assert fault is not None
    assert (fault.axis, fault.index, fault.failing) == (1, 5, 1)
    assert fault.sample in samples
    assert 0.5 < fault.severity < 2
    assert fault.describe(FP16).startswith(
        "differs in index 5 of axis 1, over all samples: RMS error"
    )
    assert "allowed: 15% by FP16" in fault.describe(FP16)


def test_part_whose_rounding_costs_as_much_as_it_moves_is_unjudged() -> None:
    samples = make_samples()

    def emulate(array: Array) -> Array:
        noisy = array.copy()
        noisy[:, 7] += np.random.default_rng(9).normal(0, 0.1, noisy[:, 7].shape)
        return noisy

    def change(array: Array) -> Array:
        array[:, 7] += np.random.default_rng(8).normal(0, 0.1, array[:, 7].shape)
        return array

    judged = judge(samples, build(samples, emulate), change)
    assert judged.find_fault(NAME, FP16) is None
    (unjudged,) = judged.find_unjudged(NAME, FP16)
    assert (unjudged.axis, unjudged.indices, unjudged.count, unjudged.of) == (1, (7,), 1, COLUMNS)
    assert unjudged.describe(NAME) == "1 of 8 indices of axis 1 (7) of output 'dets'"


def test_part_that_the_samples_never_move_is_unjudged_even_if_it_is_equal() -> None:
    samples = {
        name: {NAME: set_constant(outputs[NAME])} for name, outputs in make_samples().items()
    }
    judged = judge(samples, build(samples), lambda array: array)
    assert judged.find_fault(NAME, FP16) is None
    assert [item.indices for item in judged.find_unjudged(NAME, FP16)] == [(6,)]


def test_still_part_with_another_value_fails() -> None:
    samples = {
        name: {NAME: set_constant(outputs[NAME])} for name, outputs in make_samples().items()
    }

    def change(array: Array) -> Array:
        array[:, 6] = 7.0
        return array

    fault = judge(samples, build(samples), change).find_fault(NAME, FP16)
    assert fault is not None
    assert fault.index == 6
    assert "although the samples do not move it" in fault.describe(FP16)


def test_still_zero_part_may_have_the_rounding_that_a_zero_output_may_have() -> None:
    samples = make_samples()
    for outputs in samples.values():
        outputs[NAME][:, 6] = 0.0

    def change(array: Array) -> Array:
        array[:, 6] = 1e-4
        return array

    assert judge(samples, build(samples), change).find_fault(NAME, FP16) is None


def test_without_emulation_nothing_fails_and_what_exceeds_is_unjudged() -> None:
    samples = make_samples()
    judged = judge(samples, build(samples, None), scale_scores(0.1))
    assert judged.find_fault(NAME, FP16) is None
    assert [item.indices for item in judged.find_unjudged(NAME, FP16)] == [(5,)]


def test_part_that_is_zero_but_for_rounding_does_not_move() -> None:
    samples = make_samples()
    for outputs in samples.values():
        outputs[NAME][:, 6] *= np.float32(1e-25)
    judged = judge(samples, build(samples), scale_scores(1.0))
    assert judged.find_fault(NAME, FP16) is None
    assert [item.indices for item in judged.find_unjudged(NAME, FP16)] == [(6,)]


def test_errors_of_few_values_are_compared_with_more_of_what_rounding_costs() -> None:
    expected = {
        "a": {NAME: np.array([[1.5, 5.5]], np.float32)},
        "b": {NAME: np.array([[2.5, 9.5]], np.float32)},
    }
    parts = build(expected, lambda array: array + np.float32(0.1))
    off = judge(expected, parts, lambda array: array + np.float32(0.5))
    # 0.5 is 5 times what rounding costs, which two values of one distribution may differ by
    assert off.find_fault(NAME, FP16) is None
    far = judge(expected, parts, lambda array: array + np.float32(0.7))
    assert far.find_fault(NAME, FP16) is not None


def test_part_in_which_few_values_have_an_error_counts_as_few_values() -> None:
    samples = make_samples()

    def emulate(array: Array) -> Array:
        array = array.copy()
        array[0, 7, 0] += np.float32(0.05)  # one of 300 in each sample
        return array

    (parts,) = build(samples, emulate)[NAME]
    assert parts.count[7] == pytest.approx(len(samples), rel=1e-3)
    assert parts.count[6] == len(samples) * BOXES  # without any error


def test_part_that_costs_more_as_all_parts_of_the_artefact_do_is_unjudged_and_alone_it_fails() -> (
    None
):
    # fault: a class that the samples hardly move is a fault of an artefact with coarser ranges than the emulation
    samples = {}
    for seed in range(4):
        array = np.random.default_rng(seed).normal(0, 1, (1, 20, BOXES)).astype(np.float32)
        array[:, 7] *= np.float32(0.15)
        samples[f"s{seed}"] = {NAME: array}
    parts = build(samples, add_noise(0.02, 1))

    def add_to_one(array: Array) -> Array:
        noisy = array.copy()
        noisy[:, 7] = add_noise(0.1, 2)(array[:, 7])
        return noisy

    def lose_one(array: Array) -> Array:
        noisy: Array = add_noise(0.1, 2)(array)
        noisy[:, 8] = 0.0
        return noisy

    coarser = judge(samples, parts, add_noise(0.1, 2))
    assert coarser.find_fault(NAME, INT8) is None
    assert [item.indices for item in coarser.find_unjudged(NAME, INT8)] == [(7,)]
    for change, index in ((add_to_one, 7), (lose_one, 8)):
        fault = judge(samples, parts, change).find_fault(NAME, INT8)
        assert fault is not None
        assert (fault.index, fault.failing) == (index, 1)


@pytest.mark.parametrize(
    ("precision", "noise", "fails"),
    [("FP16", 2e-7, False), ("INT8", 2e-7, False), ("FP16", 1e-5, True), ("FP32", 2e-7, True)],
)
def test_error_of_less_than_a_millionth_beside_probabilities_is_no_fault_below_fp32(
    precision: str, noise: float, fails: bool
) -> None:
    # fault: one of thousands of classes that no sample shows decides about an artefact by its ninth decimal
    samples = {}
    for seed in range(4):
        array = np.random.default_rng(seed).uniform(0, 0.1, (1, COLUMNS, BOXES)).astype(np.float32)
        array[:, 6] *= np.float32(1e-7)
        samples[f"s{seed}"] = {NAME: array}
    builder = PartsBuilder({NAME: (WHOLE, 1)}, TYPES, Tolerances(), {})
    for outputs in samples.values():
        builder.add(outputs, {NAME: outputs[NAME] * np.float32(1.001)})

    def change(array: Array) -> Array:
        array[:, 6] += np.float32(noise)
        return array

    judged = judge(samples, builder.build(), change)
    fault = judged.find_fault(NAME, DEFAULTS[precision])
    assert (fault is not None) is fails
    if not fails:
        (unjudged,) = judged.find_unjudged(NAME, DEFAULTS[precision])
        assert unjudged.indices == (6,)


def test_later_run_of_a_sample_replaces_the_earlier_one() -> None:
    samples = make_samples()
    judged = judge(samples, build(samples), scale_scores(0.1))
    assert judged.find_fault(NAME, FP16) is not None
    for name, outputs in samples.items():
        judged.add_equal(name, NAME, outputs[NAME], "float32")
    assert judged.find_fault(NAME, FP16) is None


def test_values_that_are_not_finite_are_not_counted() -> None:
    samples = make_samples()
    for outputs in samples.values():
        outputs[NAME][0, 5, 0] = np.nan
    parts = build(samples)
    assert 1 < parts[NAME][0].count[5] < len(samples) * (BOXES - 1)
    assert np.isfinite(parts[NAME][0].error[5])
    assert judge(samples, parts, lambda array: array).find_unjudged(NAME, FP16) == ()


def test_values_that_rounding_loses_make_its_error_infinite_and_those_of_an_artefact_fail() -> None:
    samples = make_samples()

    def lose(array: Array) -> Array:
        array = array.copy()
        array[0, 5, 0] = np.inf
        return array

    (parts,) = build(samples, lose)[NAME]
    assert np.flatnonzero(np.isinf(parts.error)).tolist() == [5]
    fault = judge(samples, build(samples), lose).find_fault(NAME, FP16)
    assert fault is not None
    assert fault.index == 5


def test_declared_tolerance_of_the_user_replaces_the_judgement_by_part() -> None:
    samples = make_samples()
    judged = judge(samples, build(samples), scale_scores(0.1))
    declared = Tolerances(rtol=1.0).of_output(NAME, "float32")
    assert judged.find_fault(NAME, declared) is None
    assert judged.find_unjudged(NAME, declared) == ()


def test_int8_allows_more_than_fp16() -> None:
    samples = make_samples()
    judged = judge(samples, build(samples), scale_scores(0.7))
    assert judged.find_fault(NAME, FP16) is not None
    assert judged.find_fault(NAME, INT8) is None


def test_large_output_is_measured_in_pieces_as_if_whole() -> None:
    random = np.random.default_rng(0)
    array = random.normal(0, 1, (3, 5, 400, 130)).astype(np.float32)
    builder = PartsBuilder({NAME: (0, 1, 2, 3)}, TYPES, Tolerances(), {})
    builder.add({NAME: array}, {NAME: array + np.float32(0.25)})
    for part in builder.build()[NAME]:
        others = tuple(axis for axis in range(4) if axis != part.axis)
        np.testing.assert_allclose(part.spread, array.std(others, dtype=np.float64), rtol=1e-6)
        np.testing.assert_allclose(part.error, 0.25, rtol=1e-5)
        np.testing.assert_allclose(part.count, array.size / array.shape[part.axis], rtol=1e-4)


@pytest.mark.parametrize(
    ("declared", "shapes", "axes"),
    [
        ((1, 84, 8400), [(1, 84, 8400)], (1, 2)),
        (("batch", 1000), [(1, 1000), (4, 1000)], (1,)),
        (("batch", "sequence", 384), [(1, 8, 384), (1, 16, 384)], (2,)),
        (("batch", "sequence", 384), [(1, 8, 384), (1, 8, 384)], (2,)),  # named as an input's
        ((None, None, 30), [(1, 8, 30), (2, 16, 30)], (2,)),
        ((), [(2, 7), (3, 7)], (1,)),  # of no declared rank
        (("n", 6), [(0, 6), (5, 6)], (1,)),
        ((), [(2,), (2, 3)], ()),
        ((1, 1), [(1, 1)], ()),
    ],
)
def test_naming_axes_are_those_of_one_size_that_no_input_decides(
    declared: tuple[int | str | None, ...], shapes: list[tuple[int, ...]], axes: tuple[int, ...]
) -> None:
    spec = TensorSpec(name=NAME, dtype="float32", shape=declared)
    assert find_axes(spec, shapes, frozenset({"batch", "sequence"})) == axes


@pytest.mark.parametrize(
    ("image", "output", "axes"),
    [
        ((1, 3, 640, 480), (1, 2, 640, 480), (1,)),  # a map of two classes
        ((1, 3, 640, 480), (1, 255, 80, 60), (1,)),  # a head before its reshaping
        ((1, 640, 480, 3), (1, 160, 120, 17), (3,)),  # channels last
        ((1, 3, 640, 480), (1, 640, 480), ()),
        ((1, 3, 640, 640), (1, 84, 8400), (1, 2)),
        ((1, 3, 640, 640), (1, 300, 6), (1, 2)),
        ((1, 3, 640, 480), (1, 2, 32, 48), (1, 2, 3)),
        ((1, 3, 64, 64), (1, 1, 4, 4), (2, 3)),  # a matrix
        ((1, 3, 640, 640), (1, 1, 10, 10), (2, 3)),  # of no usual stride
        ((1, 3, 640, 640), (1, 20, 20), (1, 2)),  # queries by classes
    ],
)
def test_axes_of_a_map_of_the_image_hold_positions(
    image: tuple[int, ...], output: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    outputs = (TensorSpec(name=NAME, dtype="float32", shape=output),)
    expected = {"a": {NAME: np.zeros(output, np.float32)}}
    feeds = {"x": np.zeros(image, np.float32)}
    assert select_axes((), outputs, feeds, expected) == {NAME: (WHOLE, *axes)}


def test_axis_of_an_inputs_name_and_another_size_is_judged() -> None:
    # fault: a name that means two sizes hides the columns of an output
    inputs = (TensorSpec(name="x", dtype="float32", shape=("n", "k")),)
    outputs = (TensorSpec(name=NAME, dtype="float32", shape=("n", "k")),)
    feeds = {"x": np.zeros((3, 100), np.float32)}
    expected = {"a": {NAME: np.zeros((3, 6), np.float32)}}
    assert select_axes(inputs, outputs, feeds, expected) == {NAME: (WHOLE, 1)}
    expected = {"a": {NAME: np.zeros((3, 100), np.float32)}}
    assert select_axes(inputs, outputs, feeds, expected) == {NAME: (WHOLE,)}


def test_axes_without_names_are_judged() -> None:
    # fault: axes that an exporter calls "?" hide the columns of an output
    specs = [TensorSpec(name=name, dtype="float32", shape=("?", "?")) for name in ("x", NAME)]
    feeds = {"x": np.zeros((2, 64), np.float32)}
    expected = {"a": {NAME: np.zeros((2, 64), np.float32)}}
    assert select_axes(specs[:1], specs[1:], feeds, expected) == {NAME: (WHOLE, 0, 1)}


def test_axis_that_is_too_long_for_names_holds_positions() -> None:
    spec = TensorSpec(name=NAME, dtype="float32", shape=(1, 400_000))
    assert find_axes(spec, [(1, 400_000)], frozenset()) == ()


def test_damaged_file_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "parts.npz"
    write_parts(path, build(make_samples()))
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-40], b"x" * 50):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|pickled|allow_pickle"):
            read_parts(path)


def test_conversion_within_a_precision_is_not_excused_by_rounding() -> None:
    samples = make_samples()

    def emulate(array: Array) -> Array:
        return array + np.float32(0.2)

    judged = judge(samples, build(samples, emulate), set_constant)
    assert judged.find_fault(NAME, DEFAULTS["FP32"]) is None
    fault = judged.find_fault(NAME, ROUNDING)
    assert fault is not None
    assert fault.index == 6


def test_figures_of_a_whole_output_may_be_off_by_three_times_the_error_of_rounding() -> None:
    widened = RoundingFigures(outside=0.02, largest_error=0.5, cosine=0.95, top1=0.96).widen(INT8)
    assert widened.outliers == pytest.approx(0.18)
    assert widened.outlier_size == pytest.approx(1.5)
    assert widened.cosine == pytest.approx(0.55)
    assert widened.top1 == pytest.approx(0.88)
    assert RoundingFigures(outside=0.5).widen(INT8).outliers == 1.0
    assert RoundingFigures().widen(INT8) == INT8


@pytest.mark.parametrize("noise", [0.001, 0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("precision", ["FP16", "BF16", "INT8", "FP8"])
def test_rounding_itself_is_never_refused(precision: str, noise: float) -> None:
    # fault: a model that its precision costs much is refused for what every right artefact of it has
    samples = {f"s{seed}": {NAME: make_classes(seed)} for seed in range(6)}
    rounded = {
        name: {NAME: add_noise(noise, number)(outputs[NAME])}
        for number, (name, outputs) in enumerate(samples.items())
    }
    assert compare_as_a_whole(precision, samples, rounded, rounded, axes=(WHOLE, 2)) == []


def test_axis_of_positions_has_no_top_class() -> None:
    # fault: the frame with the highest pitch counts as the class of a recording
    samples, other = {}, {}
    for seed in range(6):
        frames = np.random.default_rng(seed).uniform(0.0, 0.5, (1, 40)).astype(np.float32)
        swapped = frames.copy()
        frames[0, [3, 9]] = 1.0, 0.85
        swapped[0, [3, 9]] = 0.85, 1.0
        samples[f"s{seed}"], other[f"s{seed}"] = {NAME: frames}, {NAME: swapped}
    assert "top1" in compare_as_a_whole("INT8", samples, samples, other, axes=(WHOLE, 1))
    assert compare_as_a_whole("INT8", samples, samples, other, axes=(WHOLE,)) == []


@pytest.mark.parametrize(
    ("precision", "rounding", "logit", "figures"),
    [
        ("FP32", 0.0015, 0.001, []),
        ("FP32", 0.0015, -0.001, []),
        ("FP32", 0.0015, 0.02, ["top1"]),
        ("INT8", 0.1, 0.2, []),
        ("INT8", 0.1, 0.4, ["top1"]),
    ],
)
def test_two_scores_that_differ_by_less_than_rounding_are_a_tie(
    precision: str, rounding: float, logit: float, figures: list[str]
) -> None:
    # faults: a correct FP32 engine is refused, because TF32 swaps two classes that are equally likely in some rows,
    # and a correct INT8 encoder, because its features are no classes and the largest is one of many
    samples: dict[str, dict[str, Array]] = {}
    rounded: dict[str, dict[str, Array]] = {}
    other: dict[str, dict[str, Array]] = {}
    for seed in range(3):
        random = np.random.default_rng(seed)
        logits, errors = random.normal(0, 3, (1, 128)), random.normal(0, rounding, (1, 128))
        logits[0, :10], errors[0, :10] = logit, 0.0
        swapped = np.where(logits == logit, -logit, logits)
        for scores, ones in ((samples, logits), (rounded, logits + errors), (other, swapped)):
            scores[f"s{seed}"] = {NAME: np.stack((ones, -ones), -1).astype(np.float32)}
    assert {*compare_as_a_whole(precision, samples, rounded, other, axes=(WHOLE, 2))} == {*figures}


def test_whole_output_is_one_part_and_is_named_so() -> None:
    samples = make_samples()
    builder = PartsBuilder({NAME: (WHOLE,)}, TYPES, Tolerances("FP16"), {})
    for outputs in samples.values():
        builder.add(outputs, {NAME: round_to_half(outputs[NAME])})
    parts = builder.build()
    (whole,) = parts[NAME]
    everything = np.stack([outputs[NAME].astype(np.float64) for outputs in samples.values()])
    assert whole.spread == pytest.approx([1.5 * np.sqrt(everything.var(0).mean())], rel=1e-5)
    fault = judge(samples, parts, lambda array: array * np.float32(0.7)).find_fault(NAME, FP16)
    assert fault is not None
    assert fault.describe(FP16).startswith("differs as a whole, over all samples")
    still = {name: {NAME: np.ones_like(outputs[NAME])} for name, outputs in samples.items()}
    builder = PartsBuilder({NAME: (WHOLE,)}, TYPES, Tolerances("FP16"), {})
    for outputs in still.values():
        builder.add(outputs, outputs)
    (unjudged,) = judge(still, builder.build(), lambda array: array).find_unjudged(NAME, FP16)
    assert unjudged.describe(NAME) == "all elements of output 'dets'"


def test_whole_output_may_be_as_wrong_as_rounding_makes_it() -> None:
    # fault: a correct artefact is refused, because its precision costs this model more than most
    samples = make_samples()

    builder = PartsBuilder({NAME: (WHOLE,)}, TYPES, Tolerances("INT8"), scales_of(samples, TYPES))
    for outputs in samples.values():
        builder.add(outputs, {NAME: add_noise(60.0, 1)(outputs[NAME])})
    parts = builder.build()

    def compare(size: float, expected: Parts | None) -> bool:
        comparison = Comparison(
            "source", Tolerances("INT8"), TYPES, scales_of(samples, TYPES), (), expected
        )
        for number, (name, outputs) in enumerate(samples.items()):
            comparison.add(name, outputs, {NAME: add_noise(size, number + 9)(outputs[NAME])})
        return comparison.verdict().agrees

    assert not compare(60.0, None)
    assert compare(60.0, parts)
    assert not compare(300.0, parts)


def test_file_holds_what_was_written(tmp_path: Path) -> None:
    whole = PartsBuilder({NAME: (WHOLE,)}, TYPES, Tolerances(), {})
    for outputs in make_samples().values():
        whole.add(outputs, {NAME: outputs[NAME] + np.float32(0.5)})
    parts = {"a/b": build(make_samples())[NAME], "c": whole.build()[NAME]}
    assert parts["c"][0].figures is not None
    write_parts(tmp_path / "parts.npz", parts)
    again = read_parts(tmp_path / "parts.npz")
    assert again.keys() == parts.keys()
    for name, (part,) in parts.items():
        (read,) = again[name]
        assert read.axis == part.axis
        assert (read.figures is None) is (part.figures is None)
        if read.figures is not None and part.figures is not None:
            assert astuple(read.figures) == pytest.approx(astuple(part.figures), abs=1e-6)
        for field in ("magnitude", "spread", "error", "count", "names", "bound"):
            np.testing.assert_allclose(getattr(read, field), getattr(part, field), rtol=1e-6)


def test_bfloat16_outputs_are_judged_by_their_values() -> None:
    wide = make_head(1)
    bits = (wide.view(np.uint32) >> 16).astype(np.uint16)
    parts = PartsBuilder({NAME: (1,)}, {NAME: "bfloat16"}, Tolerances(), {})
    parts.add({NAME: bits}, {NAME: bits})
    judged = PartsJudge(parts.build())
    swapped = bits.copy()
    swapped[:, 4:] = bits[:, :3:-1]
    judged.add("a", NAME, bits, swapped, "bfloat16")
    fault = judged.find_fault(NAME, DEFAULTS["BF16"])
    assert fault is not None
    assert fault.index >= 4
