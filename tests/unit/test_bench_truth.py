"""The benchmark of truth: lies are as large as they say and always the same, and results agree where people would say so."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from enginewright_runtime.proof.parity import parts_judge
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.tolerances import Tolerances
from numpy.typing import NDArray

from bench.truth import cases, judging, lies, results, tasks
from bench.truth.comparators import (
    ALLCLOSE,
    OLIVE,
    OURS,
    PRECISIONS,
    WHOLES,
    Ours,
    judge_by_rules,
)  # fmt: skip
from bench.truth.ladder import FACTORS, RUNGS, find_rung, search_rung
from bench.truth.lies import ALL, KINDS, WHOLE, Lie, measure, plan, tell
from bench.truth.plot import svg
from bench.truth.report import constants, text
from bench.truth.results import (
    CaseResult,
    JudgedLie,
    JudgedVariant,
    Results,
    read,
    read_case,
    sum_up,
)  # fmt: skip
from bench.truth.targets import judge, list_misses
from bench.truth.tasks import Box
from bench.truth.weights import round_array

Array = NDArray[Any]


def outputs(samples: int = 3) -> list[Array]:
    """Return columns of very different sizes, as a detector has them: [batch, rows, columns]."""
    rng = np.random.default_rng(5)
    scales = np.array([300.0, 1.0, 0.01, 1e-4], np.float32)
    return [
        (rng.standard_normal((1, 40, 4)) * scales + scales).astype(np.float32)
        for _ in range(samples)
    ]


def lie(kind: str, axis: int = 2, index: int = 2, other: int = 1) -> Lie:
    return Lie(kind, "y", axis, index, other)


def size(kind: str, **place: int) -> float:
    one = lie(kind, **place)
    wrong = tell(one, outputs())
    assert wrong is not None
    return measure(outputs(), wrong, one.axis, one.index)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("zero", 2**0.5), ("constant", 1), ("x0.1", 0.9 * 2**0.5), ("x0.5", 0.5 * 2**0.5),
        ("x0.9", 0.1 * 2**0.5), ("x1.1", 0.1 * 2**0.5), ("x10", 9 * 2**0.5), ("sign", 2 * 2**0.5),
        ("permuted", 2**0.5), ("another sample's", 2**0.5), ("noise 1%", 0.01), ("noise 5%", 0.05),
        ("noise 20%", 0.2), ("NaN", np.inf), ("rows missing", np.inf),
    ],
)  # fmt: skip
def test_the_size_of_a_lie_is_relative_to_the_spread_of_its_slice(
    kind: str, expected: float
) -> None:
    exact = kind == "constant" or kind.startswith("noise") or np.isinf(expected)
    assert size(kind) == pytest.approx(expected, rel=1e-3 if exact else 0.2)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_lie_changes_nothing_outside_of_its_slice(kind: str) -> None:
    wrong = tell(lie(kind), outputs())
    assert wrong is not None
    for one, other in zip(outputs(), wrong, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.delete(one, 2, 2), np.delete(other, 2, 2))
    assert any(not np.array_equal(one, other) for one, other in zip(outputs(), wrong, strict=True))


@pytest.mark.parametrize("kind", ALL)
def test_a_lie_is_the_same_each_time_and_leaves_the_right_outputs_alone(kind: str) -> None:
    right = outputs()
    first, second = tell(lie(kind), right), tell(lie(kind), right)
    assert first is not None
    assert second is not None
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(outputs(), right, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_lie_that_outputs_cannot_have_is_not_told() -> None:
    assert tell(lie("another sample's"), outputs(1)) is None
    varying = [array[:, : 30 + index] for index, array in enumerate(outputs())]
    assert tell(lie("another sample's"), varying) is None
    assert tell(lie("swapped", other=2), outputs()) is None
    assert tell(lie("class shifted", axis=WHOLE, index=0), outputs()) is None
    assert tell(lie("rows missing", axis=0, index=0), [np.ones((2, 1), np.float32)]) is None


def test_a_plan_has_every_kind_for_some_slices_of_each_axis() -> None:
    told = plan("y", outputs(), [(1, range(40)), (2, [0, 2, 3])], 4)
    assert {item.kind for item in told} == set(ALL)
    assert sorted({item.index for item in told if item.axis == 1}) == [0, 13, 26, 39]
    assert sorted({item.index for item in told if item.axis == 2}) == [0, 2, 3]
    assert sum(item.kind == "rows missing" for item in told) == 2
    assert all(item.size > 0 for item in told)
    assert told == plan("y", outputs(), [(1, range(40)), (2, [0, 2, 3])], 4)


def box(x: float, label: int = 0) -> Box:
    return Box(label, x, 0, x + 10, 10)


@pytest.mark.parametrize(
    ("source", "other", "share"),
    [
        ([box(0), box(50)], [box(50), box(0)], 1.0),  # in any order
        ([box(0)], [box(3)], 1.0),  # IoU 0.54
        ([box(0)], [box(4)], 0.0),  # IoU 0.43
        ([box(0)], [box(0, label=1)], 0.0),
        ([box(0), box(50)], [box(0)], 2 / 3),
        ([box(0)], [box(0), box(1)], 2 / 3),  # one box matches one
        ([], [], 1.0),
        ([box(0)], [], 0.0),
    ],
)
def test_boxes_match_one_to_one_by_label_and_overlap(
    source: Sequence[Box], other: Sequence[Box], share: float
) -> None:
    assert tasks.compare_boxes([source], [other]) == pytest.approx(share)
    assert tasks.compare_boxes([other], [source]) == pytest.approx(share)


def test_the_weaker_of_two_boxes_of_one_label_is_suppressed() -> None:
    centres = np.array([[5.0, 5], [6, 5], [6, 5], [40, 5]])
    sizes = np.full((4, 2), 10.0)
    scores = np.array([[0.9, 0], [0.8, 0], [0, 0.7], [0.1, 0.2]])
    decoded = tasks.decode_boxes(centres, sizes, scores, 0.3)
    assert [(item.label, item.left) for item in decoded] == [(0, 0), (1, 1)]


def test_regions_of_a_map_are_connected() -> None:
    scores = np.zeros((20, 30))
    scores[2:5, 3:9] = scores[10:14, 20:25] = 0.9
    scores[18, 0] = 0.9  # too small
    assert set(tasks.find_regions(scores, 0.3)) == {Box(0, 3, 2, 9, 5), Box(0, 20, 10, 25, 14)}


def test_text_is_the_best_path_without_blanks_and_repetitions() -> None:
    assert tasks.decode_text(np.eye(4)[[0, 2, 2, 0, 2, 3, 3, 0]]) == (2, 2, 3)
    assert tasks.compare_text([(1, 2, 3), (4,)], [(1, 3), (4,)]) == pytest.approx(0.75)
    assert tasks.count_edits((1, 2, 3), (2, 3, 4)) == 2


def test_vectors_agree_by_direction_and_by_neighbour() -> None:
    source = [np.array([1.0, 0.1]), np.array([1.0, 0.0]), np.array([0.0, 1.0])]
    assert tasks.compare_vectors(source, [2 * item for item in source]) == pytest.approx(1)
    assert tasks.compare_vectors(source, source[::-1]) < 0.7


def test_pitches_agree_within_half_a_semitone_where_both_are_voiced_at_every_threshold() -> None:
    source = np.array([100.0, 200, 300, 400]), np.array([0.95, 0.95, 0.05, 0.05])
    other = np.array([102.0, 250, 900, 400])
    agreeing, quiet = (np.array([sure, 0.95, 0.05, 0.95]) for sure in (0.95, 0.8))
    assert tasks.compare_pitches([source], [(other, agreeing)]) == 0.5
    assert tasks.compare_pitches([source], [(other, quiet)]) == 0.25  # beyond 0.9


def test_a_probability_of_voice_is_judged_at_every_threshold() -> None:
    source = [np.array([0.99, 0.8]), np.array([0.4, 0.02])]
    assert tasks.compare_scores(source, [np.array([0.95, 0.75]), np.array([0.35, 0.0])]) == 1.0
    assert tasks.compare_scores(source, [np.array([0.95, 0.75]), np.array([0.2, 0.0])]) == 0.75


def test_the_states_of_a_sequence_are_those_that_the_artefact_returned() -> None:
    class Counter:
        """A recurrent model that adds what it reads."""

        def get_outputs(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(name="sum")]

        def run(self, _: Sequence[str], feeds: dict[str, Array]) -> list[Array]:
            return [feeds["x"] + feeds["before"]]

    one, none = np.ones(1), np.zeros(1)
    samples = [{"x": one, "before": 10 * one}, {"x": one, "before": 20 * one}]
    sequence = [{"x": one, "before": none}, {"x": one}, {"x": one}]
    case = cases.Case(
        "", "", "", Path(), samples, list, tasks.compare_labels, sequence, {"before": "sum"}
    )
    done = cases.run_all(cast("Any", Counter()), case)
    assert [float(outputs["sum"][0]) for outputs in done] == [11, 21, 1, 2, 3]


def test_a_peer_agrees_from_its_rung_on() -> None:
    assert find_rung(0.0) == find_rung(1.0) == 0
    assert find_rung(9.0) == 2
    assert find_rung(np.inf) == RUNGS
    for factor in (0.5, 2.0, 5e5, 1e9):
        assert search_rung(factor.__le__) == find_rung(factor)
    assert FACTORS[-1] == 1e6


def test_the_rules_of_peers_look_at_the_worst_element() -> None:
    right = [np.array([1.0, 100.0], np.float32)]
    assert judge_by_rules(right, right) == {ALLCLOSE: 0, OLIVE: 0}
    off = [np.array([1.0, 100.09], np.float32)]
    assert judge_by_rules(right, off) == {ALLCLOSE: 0, OLIVE: 2}
    for wrong in (np.array([1.0, np.nan], np.float32), np.array([1.0], np.float32)):
        assert judge_by_rules(right, [wrong]) == {ALLCLOSE: RUNGS, OLIVE: RUNGS}


@pytest.mark.parametrize(
    ("precision", "error"), [("FP16", 2**-11), ("BF16", 2**-8), ("INT8", 1 / 254), ("FP8", 2**-4)]
)
def test_weights_are_rounded_by_channel(precision: str, error: float) -> None:
    weight = (
        np.random.default_rng(1).uniform(0.5, 1, (6, 4)) * [[1e3], [1], [1e-3], [1], [1], [0]]
    ).astype(np.float32)
    rounded = round_array(weight, precision, (1,))
    relative = np.abs(rounded - weight)[:5] / weight[:5].max(1, keepdims=True)
    assert 0 < relative.max() <= error * 1.01
    assert not rounded[5].any()


def ours(error: float) -> Ours:
    builder = PartsBuilder({"y": (2,)}, {"y": "float32"}, Tolerances(), {})
    for array in outputs():
        spread = array.std(axis=(0, 1))
        builder.add({"y": array}, {"y": array + (error * spread).astype(np.float32)})
    return Ours(dict.fromkeys(PRECISIONS, builder.build()))


def test_ours_finds_what_the_whole_hides() -> None:
    wrong = tell(lie("zero", index=3), outputs())
    assert wrong is not None
    assert ours(0.001).judge("y", outputs(), wrong, "FP32", (2, 3)) == ("agrees", "fails", "")
    assert ours(0.001).judge("y", outputs(), outputs(), "FP32", (2, 3)) == ("agrees", "agrees", "")


def test_ours_does_not_know_where_rounding_is_as_large_as_a_lie() -> None:
    wrong = tell(lie("noise 20%", index=3), outputs())
    assert wrong is not None
    assert ours(0.2).judge("y", outputs(), wrong, "FP32", (2, 3)) == ("agrees", "unknown", "")
    assert ours(0.2).judge("y", outputs(), wrong, "FP32", (2, 2)) == ("agrees", "agrees", "")
    assert ours(0.2).judge("y", outputs(), wrong, "FP32") == ("agrees", "unknown", "")


def test_constants_that_are_tried_include_those_of_the_product() -> None:
    assert judging._RATIO == parts_judge._RATIO
    assert judging._RATIO in judging.RATIOS


def make_case() -> CaseResult:
    """Return two lies and four artefacts, of which one is dishonest."""
    told = [
        JudgedLie(
            dataclasses.replace(lie(kind), size=share),
            dict.fromkeys(PRECISIONS, said),
            {ALLCLOSE: rung, OLIVE: rung},
        )
        for kind, share, said, rung in (
            ("zero", 1.4, ("agrees", "fails", ""), 3),
            ("x0.9", 0.14, ("agrees", "agrees", ""), 1),
        )
    ]
    variants = [
        JudgedVariant(
            name, "FP32", share=share, honest=share == 1,
            verdicts={"y": said} if share == 1 else {}, rungs={ALLCLOSE: rung, OLIVE: rung},
            parts=10, unknown=1,
        )
        for name, share, said, rung in (
            ("one", 1.0, ("agrees", "agrees", ""), 0), ("two", 1.0, ("fails", "fails", "top1"), 2),
            ("three", 1.0, ("agrees", "unknown", ""), 4), ("four", 0.5, ("agrees", "agrees", ""), 9),
        )
    ]  # fmt: skip
    counts = {precision: {"all": 10, "moving": 9, "coarse": 1} for precision in PRECISIONS}
    return CaseResult("m", "detector", "m.onnx", 3, told, variants, counts, {})


def make_results() -> Results:
    about = {"date": "2026-01-01", "versions": {"onnxruntime": "1"}}
    return sum_up(about, [make_case()], {})


def test_dishonest_artefacts_raise_no_false_alarm() -> None:
    summed = make_results()
    alarms = summed.alarms_of(OURS, "FP32")
    assert alarms is not None
    assert (alarms.honest, alarms.alarms, alarms.unknown) == (3, 1, 1)
    assert summed.models[0].dishonest == {"four, FP32": 0.5}
    assert summed.false_alarms == {"m, two, FP32": "y"}
    assert summed.unknown["FP32"] == {"parts": 30, "unknown": 3}


def test_a_tuned_peer_has_as_many_false_alarms_as_ours() -> None:
    summed = make_results()
    alarms = {row.comparator: row for row in summed.alarms if row.precision == "FP32"}
    assert alarms[ALLCLOSE].alarms == 2
    tuned = alarms[f"{ALLCLOSE}{results.TUNED}"]
    assert (tuned.alarms, tuned.tolerance) == (1, FACTORS[2])
    assert summed.count(f"{ALLCLOSE}{results.TUNED}", "FP32", *results.SIZES).detected == 1
    assert summed.count(ALLCLOSE, "FP32", *results.SIZES).detected == 2
    assert summed.count(OURS, "FP32", "50% and more").detected == 1
    assert summed.count(WHOLES, "FP32", *results.SIZES).detected == 0


def test_targets_name_what_is_missed() -> None:
    misses = list_misses(make_results())
    assert any("honest artefacts that fail: 1 of 3" in miss for miss in misses)
    assert not any("that are accepted" in miss for miss in misses)
    assert {outcome.kept for outcome in judge(make_results())} == {True, False}


def test_a_document_is_read_as_it_was_written() -> None:
    summed = make_results()
    assert read(dataclasses.asdict(summed)) == summed
    case = make_case()
    assert read_case(dataclasses.asdict(case)) == case
    assert "FALSE ALARM m, two, FP32: y" in text(summed)
    assert constants([case])
    assert svg(summed).startswith("<svg")


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_lie_leaves_what_a_mask_covers(kind: str) -> None:
    right = outputs()
    for array in right:
        array[:, 20:] = np.finfo(np.float32).min
    told = lie(kind)
    wrong = tell(told, right)
    if kind == "another sample's":  # of which others may be masked
        assert wrong is None
        return
    assert wrong is not None
    for one, other in zip(right, wrong, strict=True):
        np.testing.assert_array_equal(one[:, 20:], other[:, 20:])
    size = measure(right, wrong, told.axis, told.index)
    of_right, of_wrong = ([array[:, :20] for array in arrays] for arrays in (right, wrong))
    assert size == measure(of_right, of_wrong, told.axis, told.index)
    assert size > 0.005


def test_slices_without_movement_are_not_lied_about() -> None:
    still = [np.concatenate([array, np.ones((1, 40, 1), np.float32)], 2) for array in outputs()]
    builder = PartsBuilder({"y": (2,)}, {"y": "float32"}, Tolerances(), {})
    for array in still:
        builder.add({"y": array}, {"y": array})
    assert judging._find_moving(builder.build(), "y") == [(2, [0, 1, 2, 3])]
    assert lies.pool(still, 2, 4).std() == 0
