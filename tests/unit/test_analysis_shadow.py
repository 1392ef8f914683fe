"""A canary's answers to clients' requests: what is reported, and what fails a rollout."""

from dataclasses import replace
from typing import Any

import pytest
from enginewright.analysis.comparison import compare
from enginewright.analysis.shadow import compare_shadow
from enginewright_contract.measurements import Measurements, ShadowComparison, ShadowOutput
from enginewright_contract.reasons import Reason

from tests.support.rollout_load import START
from tests.support.rollout_simulation import limits

LIMITED = replace(limits(), max_output_difference=0.05)
CANARY = Measurements(model="m", revision="new", since=START)


def output(worst: float | None, *, answers: int = 10, incomparable: int = 0) -> ShadowOutput:
    mean = None if worst is None else worst / 2
    return ShadowOutput(
        name="y", answers=answers, worst=worst, mean=mean, top1=0.5, incomparable=incomparable
    )


def pod(*outputs: ShadowOutput, **fields: Any) -> Measurements:
    shadow = ShadowComparison(**{"revision": "new", "compared": 10, **fields, "outputs": outputs})
    return Measurements(model="m", revision="old", since=START, shadow=shadow)


def reasons(*pods: Measurements, limited: bool = False) -> list[str]:
    result = compare_shadow(pods, [CANARY], LIMITED if limited else limits())
    assert (result.state == "failed") is bool(result.findings)
    return [str(finding.reason) for finding in result.findings]


def test_the_largest_difference_and_means_over_all_pods_are_reported() -> None:
    result = compare_shadow([pod(output(0.5)), pod(output(0.2, answers=30))], [CANARY], limits())
    assert result.state == "passed"
    figures = {figure.name: figure for figure in result.figures}
    assert figures["output 'y' for requests"].canary == 0.5
    assert figures["output 'y' for requests"].canary_samples == 40
    assert figures["mean of output 'y' for requests"].canary == pytest.approx(
        0.25 / 4 + 0.1 * 3 / 4
    )
    agreement = figures["top-1 agreement of output 'y' for requests"]
    assert (agreement.unit, agreement.canary) == ("share", 0.5)
    assert figures["failed shadow requests"].canary == 0.0


@pytest.mark.parametrize(
    ("pods", "fails"),
    [
        ([pod(output(0.05))], False),
        ([pod(output(0.06))], True),
        ([pod(output(0.01)), pod(output(0.06))], True),
        ([pod(output(0.01)), pod(output(0.01, incomparable=1))], True),
        ([pod(output(None, incomparable=10))], True),
    ],
)
def test_only_above_a_limit_do_answers_fail(pods: list[Measurements], fails: bool) -> None:
    assert reasons(*pods) == []
    assert reasons(*pods, limited=True) == [Reason.ANSWERS_CHANGED] * fails


def test_a_size_that_depends_on_data_fails_nothing_and_is_said() -> None:
    resized = ShadowOutput(name="y", answers=10, worst=0.01, mean=0.01, resized=7)
    result = compare_shadow([pod(resized), pod(output(0.01))], [CANARY], LIMITED)
    assert result.state == "passed"
    figures = {figure.name: figure for figure in result.figures}
    assert figures["output 'y' for requests"].canary_samples == 13
    assert figures["mean of output 'y' for requests"].canary_samples == 13
    (note,) = result.notes
    assert "in 7 of 20 answers" in note
    nothing = ShadowOutput(name="y", answers=10, resized=10)
    assert compare_shadow([pod(nothing)], [CANARY], LIMITED).state == "passed"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"failed": 5, "compared": 0}, []),  # as few as one client's retries
        ({"failed": 10, "compared": 0}, [Reason.TOO_MANY_ERRORS]),
        ({"failed": 20, "compared": 200}, [Reason.TOO_MANY_ERRORS]),
        ({"failed": 1, "compared": 1000}, []),
        ({"rejected": 50, "compared": 0}, [Reason.REQUESTS_REJECTED]),
        ({"rejected": 20, "compared": 200}, []),
        ({"dropped": 10_000, "compared": 0}, []),
    ],
)
def test_unanswered_copies_fail_like_errors(counts: dict[str, int], expected: list[str]) -> None:
    assert reasons(pod(**counts)) == expected


def test_measurements_of_another_canary_do_not_count() -> None:
    other = pod(output(9.0), revision="older", failed=100)
    assert compare_shadow([other], [CANARY], LIMITED).figures == ()
    assert reasons(other, limited=True) == []


def test_without_any_request_nothing_is_said() -> None:
    nothing = Measurements(model="m", revision="old", since=START)
    for pods in ([nothing], [pod(compared=0)], [pod(compared=0, dropped=9)]):
        result = compare_shadow(pods, [CANARY], LIMITED)
        assert (result.state, result.figures) == ("passed", ())


def test_it_is_part_of_all_comparisons() -> None:
    result = compare([pod(failed=50)], [CANARY], limits())
    assert Reason.TOO_MANY_ERRORS in {finding.reason for finding in result.findings}
