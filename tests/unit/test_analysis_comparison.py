"""Answers, and all comparisons together."""

from dataclasses import replace
from typing import Any

import pytest
from enginewright.analysis.answers import compare_answers
from enginewright.analysis.comparison import compare
from enginewright.analysis.result import AnalysisResult, join_results
from enginewright_contract.measurements import AnswerChange, Measurements, OutputChange
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

from tests.support.rollout_load import START
from tests.support.rollout_simulation import limits

LIMITED = replace(limits(), max_output_difference=0.05)


def pod(*relative: float | None, failure: str = "") -> Measurements:
    outputs = tuple(
        OutputChange(name=f"output{number}", relative=value)
        for number, value in enumerate(relative)
    )
    answers = AnswerChange(prepared_key="k", samples=4, outputs=outputs, failure=failure)
    return Measurements(model="m", revision="r", since=START, answers=answers)


def test_the_largest_difference_of_any_pod_is_reported() -> None:
    result = compare_answers([pod(0.5, 0.1), pod(0.2, 0.3)], limits())
    assert result.state == "passed"
    assert [(figure.name, figure.canary, figure.canary_samples) for figure in result.figures] == [
        ("output 'output0'", 0.5, 8),
        ("output 'output1'", 0.3, 8),
    ]


@pytest.mark.parametrize(
    ("relative", "causes"),
    [
        ((0.01, 0.05), 0),
        ((0.01, 0.06), 1),
        ((0.5, 0.5), 2),
        ((None,), 1),
    ],
)
def test_answers_fail_above_a_limit(relative: tuple[float | None, ...], causes: int) -> None:
    assert compare_answers([pod(*relative)], limits()).findings == ()
    result = compare_answers([pod(*relative)], LIMITED)
    assert [finding.reason for finding in result.findings] == [Reason.ANSWERS_CHANGED] * causes


def test_an_output_that_one_pod_cannot_compare_stays_so() -> None:
    for pods in ([pod(0.01), pod(None)], [pod(None), pod(0.01)]):
        (figure,) = compare_answers(pods, LIMITED).figures
        assert (figure.canary, figure.state) == (None, "failed")


def of(**output: Any) -> Measurements:
    answers = AnswerChange(prepared_key="k", samples=4, outputs=(OutputChange(name="y", **output),))
    return Measurements(model="m", revision="r", since=START, answers=answers)


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ({"form": "has shape [2], expected [1]"}, "has shape [2], expected [1]"),
        ({"unequal": 0.5, "nonfinite": 3}, "NaN or infinite"),
        ({"unequal": 0.5}, "not numeric"),
        ({"unequal": 0.5, "resized": 3}, "not numeric"),
    ],
)
def test_incomparable_answers_say_why(output: dict[str, Any], why: str) -> None:
    result = compare_answers([of(**output)], LIMITED)
    assert [(finding.reason, why in finding.cause) for finding in result.findings] == [
        (Reason.ANSWERS_CHANGED, True)
    ]
    assert compare_answers([of(**output)], limits()).state == "passed"


@pytest.mark.parametrize(
    ("output", "state", "difference", "compared"),
    [
        ({"resized": 4}, "passed", None, 0),
        ({"resized": 3, "unequal": 1.0, "relative": 0.01}, "passed", 0.01, 1),
        ({"resized": 3, "unequal": 1.0, "relative": 0.5}, "failed", 0.5, 1),
    ],
)
def test_a_size_that_depends_on_data_fails_nothing_and_is_said(
    output: dict[str, Any], state: str, difference: float | None, compared: int
) -> None:
    result = compare_answers([of(**output)], LIMITED)
    (figure,) = result.figures
    assert (result.state, figure.state) == (state, state)
    assert (figure.canary, figure.canary_samples) == (difference, compared)
    (note,) = result.notes
    assert f"in {output['resized']} of 4 answers" in note


def test_answers_that_cannot_be_compared_fail_a_limit_only() -> None:
    other = pod(failure="the input 'x' is not known")
    result = compare_answers([other, pod(None)], limits())
    assert result.state == "passed"
    failure, fault = result.notes
    assert failure.endswith("the input 'x' is not known")
    assert fault.startswith("output 'output0' cannot be compared")
    assert compare_answers([pod(None)], LIMITED).notes == ()
    (finding,) = compare_answers([other, other], LIMITED).findings
    assert finding.cause.endswith("the input 'x' is not known")


def test_a_limit_waits_for_answers() -> None:
    nothing = Measurements(model="m", revision="r", since=START)
    assert compare_answers([nothing], limits()).state == "passed"
    assert compare_answers([nothing], LIMITED).state == "inconclusive"
    assert compare_answers([nothing, pod(0.01)], LIMITED).state == "passed"


def test_any_failure_fails_and_anything_undecided_waits() -> None:
    failed = AnalysisResult(
        "failed", findings=(Finding(reason=Reason.MEMORY_GROWTH, cause="it grows"),)
    )
    waits = AnalysisResult("inconclusive", waits_for="latency")
    passed = AnalysisResult("passed")
    assert join_results([passed, waits, failed]) == failed
    assert join_results([passed, waits, waits]) == AnalysisResult(
        "inconclusive", waits_for="latency; latency"
    )
    assert join_results([passed, passed]) == passed


def test_errors_fail_without_any_latency() -> None:
    stable = Measurements(model="m", revision="r", since=START, responses={"200": 1000})
    canary = stable.model_copy(update={"responses": {"500": 10}})
    result = compare([stable], [canary], limits())
    assert (result.state, result.waits_for) == ("failed", "")
    assert [finding.reason for finding in result.findings] == [Reason.TOO_MANY_ERRORS]
