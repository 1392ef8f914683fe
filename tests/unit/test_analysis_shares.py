"""Errors, rejected requests and golden inferences, compared at any number of looks."""

from typing import Any, Final

import pytest
from enginewright.analysis.result import AnalysisResult
from enginewright.analysis.shares import Share, compare_shares, exceeds
from enginewright.contract.measurements import Measurements
from enginewright.contract.reasons import Reason

from tests.support.rollout_load import START, seeded
from tests.support.rollout_simulation import limits

SHARE: Final = 0.001


def pod(**fields: Any) -> Measurements:
    return Measurements(model="m", revision="r", since=START, **fields)


def reasons(found: AnalysisResult) -> list[Reason]:
    return [each.reason for each in found.findings]


def answered(**codes: int) -> Measurements:
    return pod(responses={code.removeprefix("c"): count for code, count in codes.items()})


def compared(stable: Measurements, canary: Measurements) -> AnalysisResult:
    return compare_shares([stable], [canary], limits())


@pytest.mark.parametrize(
    ("stable", "canary", "fails"),
    [
        ((0, 1000), (1, 200), False),  # one request that no revision can answer
        ((0, 1000), (3, 200), False),  # which its client has sent three times
        ((0, 1000), (3, 3), False),
        ((0, 1000), (10, 10), True),
        ((0, 30), (10, 10), True),
        ((0, 10), (10, 10), True),
        ((0, 0), (10, 10), False),  # nothing to compare with
        ((0, 1_000_000), (20, 1000), True),
        ((20_000, 1_000_000), (20, 1000), False),
        ((1, 1000), (5_000, 1_000_000), False),
        ((10, 100_000), (5_000, 1_000_000), True),
        ((100_000_000, 100_000_000), (500, 500), False),
    ],
)
def test_errors(stable: tuple[int, int], canary: tuple[int, int], fails: bool) -> None:
    def arm(part: int, whole: int) -> Measurements:
        return answered(c503=part, c200=whole - part)

    found = compared(arm(*stable), arm(*canary))
    assert reasons(found) == ([Reason.TOO_MANY_ERRORS] if fails else [])
    assert found.state == ("failed" if fails else "passed")
    figure = found.figures[0]
    assert (figure.name, figure.stable_samples, figure.canary_samples) == (
        "5xx responses",
        stable[1],
        canary[1],
    )


def test_more_rejected_requests_are_found_by_their_reason() -> None:
    usual = answered(c400=50, c200=950)
    assert reasons(compared(usual, answered(c400=20))) == [Reason.REQUESTS_REJECTED]
    assert reasons(compared(usual, answered(c400=15, c422=15, c200=30))) == [
        Reason.REQUESTS_REJECTED
    ]
    assert reasons(compared(usual, answered(c400=20, c200=100))) == []
    assert reasons(compared(answered(c400=50), answered(c400=50))) == []


def test_false_failures_over_all_looks_are_rare() -> None:
    """Both revisions answer 0.4% with 5xx, looked at after each of 3,000 responses."""
    failed = 0
    for seed in range(200):
        random = seeded(seed)
        errors = 0
        for count in range(1, 3001):
            error = random.random() < 0.004
            errors += error
            if error and exceeds(Share(12, 3000), Share(errors, count), SHARE):
                failed += 1
                break
    assert failed <= 2


def test_an_excess_of_errors_is_found() -> None:
    found = 0
    for seed in range(200):
        random = seeded(seed)
        errors = sum(random.random() < 0.03 for _ in range(500))
        found += exceeds(Share(5, 5000), Share(errors, 500), SHARE)
    assert found >= 190


@pytest.mark.parametrize(
    ("stable", "canary", "found"),
    [
        ((0, 100), (0, 100), []),
        ((0, 100), (1, 100), [Reason.PARITY_FAILED]),
        ((0, 0), (1, 1), [Reason.PARITY_FAILED]),
        ((10, 100), (1, 10), []),
        ((10, 100), (12, 100), []),
        ((1, 100), (90, 100), [Reason.PARITY_FAILED]),
    ],
)
def test_wrong_golden_inferences(
    stable: tuple[int, int], canary: tuple[int, int], found: list[Reason]
) -> None:
    arms = [pod(golden_wrong=wrong, golden_ok=all_ - wrong) for wrong, all_ in (stable, canary)]
    assert reasons(compared(*arms)) == found


def test_golden_inferences_that_cannot_run_are_errors() -> None:
    arms = pod(golden_ok=100), pod(golden_failed=10)
    assert reasons(compared(*arms)) == [Reason.TOO_MANY_ERRORS]
    assert reasons(compared(pod(golden_ok=100), pod(golden_ok=100, golden_failed=1))) == []


def test_pods_of_a_revision_are_added_up() -> None:
    found = compare_shares([answered(c200=500)] * 2, [answered(c500=5)] * 2, limits())
    assert (found.state, found.figures[0].canary, found.figures[0].canary_samples) == (
        "failed",
        1.0,
        10,
    )
