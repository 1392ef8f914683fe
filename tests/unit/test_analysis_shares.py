"""Errors, rejected requests and golden inferences, compared at any number of looks."""

from itertools import pairwise
from typing import Any, Final

import pytest
from enginewright.analysis.result import AnalysisResult
from enginewright.analysis.shares import Share, compare_shares, exceeds, join_periods
from enginewright.analysis.window import periods_of
from enginewright_contract.measurements import Counts, Measurements
from enginewright_contract.reasons import Reason

from tests.support.rollout_load import START, seed_random
from tests.support.rollout_simulation import limits

SHARE: Final = 0.001


def pod(**fields: Any) -> Measurements:
    return Measurements(model="m", revision="r", since=START, **fields)


def reasons(outcome: AnalysisResult) -> list[Reason]:
    return [finding.reason for finding in outcome.findings]


def make_answers(**codes: int) -> Measurements:
    return pod(responses={code.removeprefix("c"): count for code, count in codes.items()})


def compare_arms(stable: Measurements, canary: Measurements) -> AnalysisResult:
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
        return make_answers(c500=part, c200=whole - part)

    result = compare_arms(arm(*stable), arm(*canary))
    assert reasons(result) == ([Reason.TOO_MANY_ERRORS] if fails else [])
    assert result.state == ("failed" if fails else "passed")
    figure = result.figures[0]
    assert (figure.name, figure.stable_samples, figure.canary_samples) == (
        "5xx responses",
        stable[1],
        canary[1],
    )


def since(start: float, *history: Counts, **fields: Any) -> Measurements:
    return Measurements(model="m", revision="r", since=start, counts=history, **fields)


def counts(at: float, **fields: Any) -> Counts:
    return Counts(at=START + at, **fields)


@pytest.mark.parametrize(
    ("before", "now", "fails"),
    [
        # an incident of yesterday hides nothing
        ({"200": 1000, "500": 800}, {"200": 3000, "500": 800}, True),
        # and a good week invents nothing: both fail alike now
        ({"200": 10**6}, {"200": 10**6 + 150, "500": 50}, False),
    ],
)
def test_counted_over_the_same_time(
    before: dict[str, int], now: dict[str, int], fails: bool
) -> None:
    stable = since(
        START - 10**6,
        counts(-5000, responses={"200": 1}),
        counts(-1, responses={"200": 2}),
        counts(1, responses=before),
        counts(60, responses=now),
        responses=now,
    )
    canary = make_answers(c200=150, c500=50)
    result = compare_arms(stable, canary)
    assert reasons(result) == ([Reason.TOO_MANY_ERRORS] if fails else [])
    answered_since = sum(now.values()) - sum(before.values())
    assert result.figures[0].stable_samples == answered_since


def test_golden_inferences_are_counted_over_the_same_time() -> None:
    stable = since(
        START - 10**6,
        counts(2, golden_ok=100, golden_wrong=7, golden_failed=90),
        golden_ok=300,
        golden_wrong=7,
        golden_failed=90,
    )
    assert reasons(compare_arms(stable, pod(golden_ok=100, golden_wrong=1))) == [
        Reason.PARITY_FAILED
    ]
    assert reasons(compare_arms(stable, pod(golden_ok=20, golden_failed=20))) == [
        Reason.TOO_MANY_ERRORS
    ]


def test_nothing_is_known_of_a_pod_that_has_not_counted_since_the_start() -> None:
    stable = since(START - 10**6, counts(-2, responses={"200": 90}), responses={"200": 1000})
    result = compare_arms(stable, make_answers(c500=50))
    assert (result.state, result.figures[0].stable_samples) == ("passed", 0)


def test_a_pod_that_started_later_is_counted_whole_and_so_is_one_without_a_history() -> None:
    later = since(START + 50, counts(60, responses={"200": 700}), responses={"200": 1000})
    earlier = since(START - 50, responses={"200": 100})
    result = compare_shares([later, earlier], [make_answers(c200=1)], limits())
    assert result.figures[0].stable_samples == 1100


def test_a_new_revision_that_starts_again_begins_another_time() -> None:
    stable = since(
        START - 10**6,
        counts(10, responses={"200": 100}),
        counts(100, responses={"200": 300}),
        responses={"200": 1000},
    )
    again = since(START + 90, responses={"200": 1})
    assert compare_arms(stable, again).figures[0].stable_samples == 700
    first = since(START, responses={"200": 1})
    both = compare_shares([stable], [again, first], limits())
    assert both.figures[0].stable_samples == 900


def through_an_incident(per_minute: int) -> Measurements:
    """Return a pod that has answered 10% with 5xx during the first ten of 60 minutes."""
    good, bad = 9 * per_minute // 10, per_minute // 10
    history = [
        counts(
            60.0 * minute,
            responses={
                "200": good * minute + bad * max(0, minute - 10),
                "500": bad * min(minute, 10),
            },
            golden_ok=minute,
            golden_wrong=min(minute, 10),
            golden_failed=min(minute, 10),
        )
        for minute in range(61)
    ]
    last = history[-1]
    return since(
        START,
        *history,
        responses=last.responses,
        golden_ok=last.golden_ok,
        golden_wrong=last.golden_wrong,
        golden_failed=last.golden_failed,
    )


def test_an_incident_that_the_present_serving_pods_have_not_lived_through_is_not_counted() -> None:
    canary = through_an_incident(100)
    assert compare_arms(through_an_incident(1000), canary).state == "passed"
    replaced = since(START + 1800, responses={"200": 30_000}, golden_ok=30)
    result = compare_arms(replaced, canary)
    assert reasons(result) == []
    assert [figure.canary_samples for figure in result.figures[:3]] == [3000, 3000, 30]


def test_errors_after_pods_were_replaced_are_found() -> None:
    history = counts(1800, responses={"200": 3000, "500": 10})
    canary = since(START, history, responses={"200": 3000, "500": 60})
    replaced = since(START + 1790, responses={"200": 3000})
    assert reasons(compare_arms(replaced, canary)) == [Reason.TOO_MANY_ERRORS]


def start_pod(minutes: float, **codes: int) -> Measurements:
    """Return a pod that started after the others, and has answered these."""
    answers = {code.removeprefix("c"): count for code, count in codes.items()}
    return since(START + 60 * minutes, responses=answers)


def test_a_serving_pod_that_is_added_or_replaced_beside_others_begins_no_other_time() -> None:
    added = since(START + 1800, responses={"200": 30_000}, golden_ok=30)
    result = compare_shares(
        [through_an_incident(1000), added], [through_an_incident(100)], limits()
    )
    assert (result.figures[0].stable_samples, result.figures[0].canary_samples) == (90_000, 6000)


@pytest.mark.parametrize("added", [1, 3, 10])
def test_an_incident_of_both_before_serving_pods_were_replaced_fails_nothing(added: int) -> None:
    stable = [through_an_incident(1000), *(start_pod(30 + n, c200=30_000) for n in range(added))]
    sums = (
        sum(pod.responses.get("500", 0) for pod in stable),
        sum(sum(pod.responses.values()) for pod in stable),
    )
    assert exceeds([(Share(*sums), Share(1000, 60_000))], SHARE), "the sums alone would fail it"
    assert reasons(compare_shares(stable, [through_an_incident(1000)], limits())) == []


def test_an_incident_of_both_after_a_step_has_added_pods_fails_nothing() -> None:
    def through_a_late_one() -> Measurements:
        moments = [counts(60.0 * n, responses={"200": 1000 * n}) for n in range(51)]
        return since(START, *moments, responses={"200": 59_000, "500": 1000})

    step = start_pod(50, c200=9000, c500=1000)
    arms = [through_a_late_one()] * 2, [through_a_late_one(), step]
    assert exceeds([(Share(2000, 120_000), Share(2000, 70_000))], SHARE)
    assert reasons(compare_shares(*arms, limits())) == []


def test_errors_of_the_new_revision_are_found_although_pods_were_replaced() -> None:
    moments = [counts(60.0 * n, responses={"200": 100 * n}) for n in range(61)]
    stable = [since(START, *moments, responses={"200": 6000}), start_pod(30, c200=3000)]
    errs = [counts(60.0 * n, responses={"200": 95 * n, "500": 5 * n}) for n in range(61)]
    always = since(START, *errs, responses={"200": 5700, "500": 300})
    assert reasons(compare_shares(stable, [always], limits())) == [Reason.TOO_MANY_ERRORS]
    healthy = since(START, *moments, responses={"200": 6000})
    bad_pod = start_pod(50, c200=900, c500=100)
    assert reasons(compare_shares(stable, [healthy, bad_pod], limits())) == [Reason.TOO_MANY_ERRORS]


@pytest.mark.parametrize("starts", [1, 3, 10, 20])
@pytest.mark.parametrize(
    ("error", "usual", "needed"), [(0.01, 0, 1800), (0.02, 0, 800), (0.05, 0, 300), (0.02, 1, 1000)]
)
def test_errors_are_found_despite_restarts(
    starts: int, error: float, usual: int, needed: int
) -> None:
    """With `usual` errors in 1000 responses of the serving revision, up to 1.5 times as many are needed."""

    def start_periods(whole: int) -> list[tuple[Share, Share]]:
        ends = [whole * n // starts for n in range(starts + 1)]
        return [
            (
                Share(usual * end // 1000 - usual * begin // 1000, end - begin),
                Share(int(error * end) - int(error * begin), end - begin),
            )
            for begin, end in pairwise(ends)
        ]

    assert exceeds(
        [(Share(usual * needed // 1000, needed), Share(int(error * needed), needed))], SHARE
    )
    assert exceeds(join_periods(start_periods(needed * 3 // 2)), SHARE)


def test_an_incident_of_both_in_a_short_period_fails_nothing() -> None:
    """The pods of the new revision that have lived through it are all left, half of the others."""
    incident, later = (Share(10, 100), Share(40, 400)), (Share(0, 900), Share(0, 400))
    assert exceeds([(Share(10, 1000), Share(40, 800))], SHARE), "the sums alone would fail it"
    for periods in ((incident, later), (later, incident)):
        assert join_periods(periods) == list(periods)
        assert not exceeds(join_periods(periods), SHARE)


def test_incidents_of_both_while_pods_are_added_rarely_fail() -> None:
    by_sums = failed = 0
    for seed in range(300):
        random = seed_random(seed)
        whole = random.choice((30, 60, 100))
        incident, share = random.randrange(5), random.choice((0.05, 0.1, 0.5))
        periods = []
        for period in range(5):
            error = share if period == incident else 0.001
            sizes = whole * (1 + 2 * period), whole
            counted = ([random.random() < error for _ in range(size)] for size in sizes)
            stable, canary = (Share(sum(row), len(row)) for row in counted)
            periods.append((stable, canary))
        stable, canary = (
            Share(sum(x.part for x in arm), sum(x.whole for x in arm))
            for arm in zip(*periods, strict=True)
        )
        by_sums += exceeds([(stable, canary)], SHARE)
        failed += exceeds([(stable, canary)], SHARE) and exceeds(join_periods(periods), SHARE)
    assert by_sums >= 10
    assert failed <= 1


@pytest.mark.parametrize(
    ("moments", "begins"),
    [([0, 5, 15, 25, 40], [0, 10, 20, 30]), ([0, 25, 40], [0, 10, 30]), ([35], [0])],
)
def test_period_without_counts_joins_the_next(moments: list[float], begins: list[float]) -> None:
    first = since(START, *(counts(at) for at in moments))
    others = [since(START + at, *map(counts, range(at, 40, 2))) for at in (10, 20, 30)]
    periods = periods_of([first], [pod(), *others])
    assert [period - START for period in periods] == begins


def test_counts_that_go_back_are_none() -> None:
    stable = since(START - 9, counts(1, responses={"200": 90}, golden_ok=9), responses={"200": 5})
    result = compare_arms(stable, make_answers(c200=1))
    assert [figure.stable_samples for figure in result.figures] == [0] * 5


@pytest.mark.parametrize("code", ["c503", "c504"])
def test_requests_that_were_not_run_are_no_errors_of_the_model(code: str) -> None:
    overloaded = make_answers(**{"c200": 1000, code: 9000})
    usual = make_answers(c200=1000)
    assert reasons(compare_arms(usual, overloaded)) == []
    # nor do they hide errors, in either revision
    assert reasons(compare_arms(overloaded, make_answers(c200=80, c500=20))) == [
        Reason.TOO_MANY_ERRORS
    ]
    assert reasons(compare_arms(usual, make_answers(**{"c500": 10, code: 10**6}))) == [
        Reason.TOO_MANY_ERRORS
    ]
    figure = compare_arms(usual, overloaded).figures[-1]
    assert (figure.name, figure.limit) == ("503 and 504 responses", None)
    assert (figure.stable, figure.canary) == (0.0, 0.9)


def test_more_rejected_requests_are_found_by_their_reason() -> None:
    usual = make_answers(c400=50, c200=950)
    assert reasons(compare_arms(usual, make_answers(c400=20))) == [Reason.REQUESTS_REJECTED]
    assert reasons(compare_arms(usual, make_answers(c400=15, c422=15, c200=30))) == [
        Reason.REQUESTS_REJECTED
    ]
    assert reasons(compare_arms(usual, make_answers(c400=20, c200=100))) == []
    assert reasons(compare_arms(make_answers(c400=50), make_answers(c400=50))) == []


def test_false_failures_over_all_looks_are_rare() -> None:
    """Both revisions answer 0.4% with 5xx, looked at after each of 3,000 responses."""
    failed = 0
    for seed in range(200):
        random = seed_random(seed)
        errors = 0
        for count in range(1, 3001):
            error = random.random() < 0.004
            errors += error
            if error and exceeds([(Share(12, 3000), Share(errors, count))], SHARE):
                failed += 1
                break
    assert failed <= 2


def test_an_excess_of_errors_is_found() -> None:
    count = 0
    for seed in range(200):
        random = seed_random(seed)
        errors = sum(random.random() < 0.03 for _ in range(500))
        count += exceeds([(Share(5, 5000), Share(errors, 500))], SHARE)
    assert count >= 190


@pytest.mark.parametrize(
    ("stable", "canary", "expected"),
    [
        ((0, 100), (0, 100), []),
        ((0, 100), (1, 100), [Reason.PARITY_FAILED]),
        ((0, 0), (1, 1), [Reason.PARITY_FAILED]),
        ((10, 100), (1, 10), []),
        ((10, 100), (12, 100), []),
        ((1, 100), (90, 100), [Reason.PARITY_FAILED]),
    ],
)
def test_wrong_golden(
    stable: tuple[int, int], canary: tuple[int, int], expected: list[Reason]
) -> None:
    arms = [pod(golden_wrong=wrong, golden_ok=all_ - wrong) for wrong, all_ in (stable, canary)]
    assert reasons(compare_arms(*arms)) == expected


def test_golden_inferences_that_cannot_run_are_errors() -> None:
    arms = pod(golden_ok=100), pod(golden_failed=10)
    assert reasons(compare_arms(*arms)) == [Reason.TOO_MANY_ERRORS]
    assert reasons(compare_arms(pod(golden_ok=100), pod(golden_ok=100, golden_failed=1))) == []


def test_pods_of_a_revision_are_added_up() -> None:
    result = compare_shares([make_answers(c200=500)] * 2, [make_answers(c500=5)] * 2, limits())
    assert (result.state, result.figures[0].canary, result.figures[0].canary_samples) == (
        "failed",
        1.0,
        10,
    )
