"""Latency is compared like with like, and decided once there is enough."""

from dataclasses import replace
from typing import Final

import pytest
from enginewright.analysis.comparison import compare
from enginewright.analysis.latency import compare_latency
from enginewright.analysis.result import AnalysisResult, Figure, State, join_results
from enginewright_contract.measurements import WINDOWS, Counts, LatencySeries, Measurements
from enginewright_contract.reasons import Reason

from tests.support.rollout_load import START, Load, Noise, pod, seed_random, series, windows
from tests.support.rollout_simulation import limits

STEADY: Final = Noise(sigma=0.05)
BOTH: Final = (
    "latency: 20 of 100 measurements of the serving revision and"
    " 30 of 100 measurements of the new revision"
)


def make_series(
    seed: int,
    count: int,
    name: str = "1000",
    *,
    seconds: float = 0.01,
    interval: float = 1.0,
    noise: Noise = STEADY,
) -> LatencySeries:
    """Return a series with the same common load for every seed."""
    load = Load.of(seed_random(0), noise)
    return series(windows(seed_random(seed), count, load, seconds=seconds, interval=interval), name)


def golden(result: LatencySeries) -> LatencySeries:
    return result.model_copy(update={"source": "golden"})


def seconds(outcome: AnalysisResult) -> list[Figure]:
    return [figure for figure in outcome.figures if figure.unit == "seconds"]


def together(
    stable: LatencySeries, canary: LatencySeries, min_samples: int = 100
) -> AnalysisResult:
    return compare([pod(stable)], [pod(canary)], limits(min_samples))


def test_a_regression_names_its_series_ratio_and_limit() -> None:
    result = together(make_series(1, 200), make_series(2, 200, seconds=0.015))
    (finding,) = result.findings
    (figure,) = seconds(result)
    assert (result.state, finding.reason) == ("failed", Reason.SLOWER_THAN_STABLE)
    assert (figure.name, figure.state) == ("latency of requests of 1000 elements", "failed")
    assert (figure.limit, figure.stable_samples, figure.canary_samples) == (1.2, 200, 200)
    assert figure.ratio == pytest.approx(1.5, rel=0.1)
    assert figure.canary == pytest.approx(0.015, rel=0.2)
    assert finding.cause.startswith(f"{figure.name}: {figure.ratio:.2f} times")


@pytest.mark.parametrize("ratio", [0.3, 0.9, 1.0, 1.1])
def test_faster_or_within_the_limit_passes(ratio: float) -> None:
    assert (
        together(make_series(1, 200), make_series(2, 200, seconds=0.01 * ratio)).state == "passed"
    )


@pytest.mark.parametrize(
    ("stable", "canary", "waits_for"),
    [
        (40, 200, "latency: 40 of 100 measurements of the serving revision"),
        (200, 10, "latency: 10 of 100 measurements of the new revision"),
        (20, 30, BOTH),
    ],
)
def test_too_few_measurements_are_waited_for(stable: int, canary: int, waits_for: str) -> None:
    noisy = Noise(sigma=0.5)
    result = together(make_series(1, stable, noise=noisy), make_series(2, canary, noise=noisy))
    assert (result.state, result.waits_for) == ("inconclusive", waits_for)


def test_a_model_that_is_slow_and_steady_need_not_reach_the_count() -> None:
    quiet = Noise(sigma=0.05, swing=1.0)

    def verdict(count: int) -> State:
        stable, canary = (
            make_series(number, count, interval=10.0, noise=quiet) for number in (1, 2)
        )
        return together(stable, canary, min_samples=1000).state

    assert [verdict(count) for count in (10, 40)] == ["inconclusive", "passed"]


@pytest.mark.parametrize(("count", "state"), [(90, "inconclusive"), (100, "passed")])
def test_close_to_the_limit_all_measurements_are_needed(count: int, state: State) -> None:
    noisy = Noise()
    result = together(
        make_series(1, count, noise=noisy), make_series(2, count, seconds=0.0115, noise=noisy)
    )
    (figure,) = seconds(result)
    assert (result.state, figure.state) == (state, state)


def of_sample(seed: int, name: str, inputs: str, seconds: float = 0.01) -> LatencySeries:
    result = golden(make_series(seed, 200, name, seconds=seconds))
    return result.model_copy(update={"inputs": inputs})


def test_golden_samples_with_changed_inputs_are_left_out_and_named() -> None:
    """They have another size under the same name: how long they take says nothing of the model."""
    stable = of_sample(1, "min", "a"), of_sample(2, "max", "b")
    slower = of_sample(3, "min", "a"), of_sample(4, "max", "c", seconds=0.1)
    result = compare_latency([pod(*stable)], [pod(*slower)], limits())
    assert result.state == "passed"
    assert [figure.name for figure in result.figures] == ["latency of golden sample 'min'"]
    (note,) = result.notes
    assert "'max'" in note
    assert "'min'" not in note
    same = of_sample(3, "min", "a"), of_sample(4, "max", "b", seconds=0.1)
    result = compare_latency([pod(*stable)], [pod(*same)], limits())
    assert (result.state, result.notes) == ("failed", ())


def test_if_no_golden_sample_is_the_same_requests_decide() -> None:
    stable, canary = pod(of_sample(1, "min", "a")), pod(of_sample(2, "min", "b"))
    few = [
        pod(*measurements.latencies, make_series(seed, 30))
        for seed, measurements in enumerate((stable, canary))
    ]
    result = compare(few[:1], [canary], limits())
    assert result.state == "inconclusive", "clients use the model"
    assert "'min'" in result.waits_for
    assert join_results([result, result]).notes == result.notes
    many = [
        pod(*measurements.latencies, make_series(seed, 200))
        for seed, measurements in enumerate((stable, canary))
    ]
    result = compare(many[:1], many[1:], limits())
    assert (result.state, result.basis) == (
        "passed",
        "latency compared by 200 requests of each revision",
    )


def test_an_idle_model_of_other_golden_samples_passes_and_says_why() -> None:
    result = compare([pod(of_sample(1, "min", "a"))], [pod(of_sample(2, "min", "b"))], limits())
    assert result.state == "passed"
    assert result.basis.startswith("no requests came, and ")
    assert "'min'" in result.basis


def test_basis_of_an_idle_models_promotion_is_reported() -> None:
    result = compare([pod(of_sample(1, "min", "a"))], [pod(of_sample(2, "min", "a"))], limits())
    said = "no requests came; latency compared by 200 golden inferences of each revision"
    assert (result.state, result.basis) == ("passed", said)


def without_median(name: str, inputs: str, count: int = 9) -> LatencySeries:
    return LatencySeries(source="golden", name=name, inputs=inputs, count=count)


@pytest.mark.parametrize("inputs", ["a", ""])
def test_a_sample_that_may_be_the_same_is_waited_for_until_it_has_a_median(inputs: str) -> None:
    stable = pod(of_sample(1, "min", "a"), of_sample(2, "max", "b"))
    canary = pod(without_median("min", inputs), of_sample(3, "max", "c"))
    result = compare([stable], [canary], limits())
    assert (result.state, seconds(result)) == ("inconclusive", [])
    assert "'max'" in result.waits_for


def test_a_sample_that_does_not_run_during_requests_is_waited_for() -> None:
    stable = pod(of_sample(1, "min", "a"), of_sample(2, "max", "b"))
    canary = pod(of_sample(3, "max", "c")).model_copy(update={"golden_left_out": ("min",)})
    assert compare([stable], [canary], limits()).state == "inconclusive"


def test_samples_that_have_not_had_their_turn_are_waited_for() -> None:
    stable = pod(of_sample(1, "min", "a"), of_sample(2, "max", "b"))
    started = pod(without_median("max", "c", 1))
    assert compare([stable], [started], limits()).state == "inconclusive"
    assert compare([stable], [pod(of_sample(3, "max", "c"))], limits()).state == "passed"


@pytest.mark.parametrize(
    ("requests", "state"), [(0, "passed"), (9, "passed"), (10, "inconclusive")]
)
def test_a_handful_of_requests_is_none(requests: int, state: State) -> None:
    stable = pod(of_sample(1, "min", "a"))
    canary = pod(of_sample(2, "min", "b")).model_copy(
        update={"responses": {"200": requests - requests // 2, "400": requests // 2}}
    )
    result = compare([stable], [canary], limits())
    assert result.state == state
    assert ("fewer than 10" in result.basis) == (requests == 9)


def test_requests_of_many_sizes_are_requests_although_no_size_has_a_median() -> None:
    sizes = [LatencySeries(source="requests", name=str(index), count=9) for index in range(16)]
    stable = pod(of_sample(1, "min", "a"), *sizes)
    canary = pod(of_sample(2, "min", "b"), *sizes)
    assert compare([stable], [canary], limits()).state == "inconclusive"


@pytest.mark.parametrize("sizes", [("64", None), ("64", "128"), (None, "64")])
def test_incomparable_requests_are_not_denied(sizes: tuple[str | None, str | None]) -> None:
    arms = [
        pod(of_sample(seed, "min", "a"), *([make_series(seed + 2, 200, size)] if size else []))
        for seed, size in enumerate(sizes)
    ]
    result = compare(arms[:1], arms[1:], limits())
    assert result.state == "passed"
    assert result.basis == (
        "no requests that both revisions can be compared by;"
        " latency compared by 200 golden inferences of each revision"
    )


def test_requests_before_the_new_revision_started_are_none() -> None:
    before = {"200": 9000}
    stable = pod(of_sample(1, "min", "a"), since=START - 1000).model_copy(
        update={
            "responses": before,
            "counts": (Counts(at=START - 1, responses=before), Counts(at=START, responses=before)),
        }
    )
    result = compare([stable], [pod(of_sample(2, "min", "b"))], limits())
    assert result.state == "passed"
    assert result.basis.startswith("no requests came, and ")


@pytest.mark.parametrize("expected", [("a", ""), ("", "a"), ("", "")])
def test_samples_without_a_digest_are_compared_by_name(expected: tuple[str, str]) -> None:
    arms = [pod(of_sample(seed, "min", inputs)) for seed, inputs in enumerate(expected)]
    result = compare_latency([arms[0]], [arms[1]], limits())
    assert (result.state, len(result.figures), result.notes) == ("passed", 1, ())


def test_a_ratio_at_the_limit_is_within_it() -> None:
    stable = series([(START + index, 1.0) for index in range(100)])
    canary = series([(START + index, 2.0) for index in range(100)])
    at_limit = replace(limits(), max_latency_ratio=2.0)
    assert compare([pod(stable)], [pod(canary)], at_limit).state == "passed"
    below = replace(limits(), max_latency_ratio=1.99)
    assert compare([pod(stable)], [pod(canary)], below).state == "failed"


@pytest.mark.parametrize(("ratio", "state"), [(4.0, "passed"), (9.0, "failed")])
def test_a_difference_within_half_a_millisecond_is_noise(ratio: float, state: State) -> None:
    stable, canary = make_series(1, 200, seconds=1e-4), make_series(2, 200, seconds=1e-4 * ratio)
    assert together(stable, canary).state == state


def test_another_mix_hides_no_regression_of_all_sizes() -> None:
    """Most of the new revision's measurements are of the size that takes less time."""
    noise = Noise(sigma=0.25)

    def arm(seed: int, slower: float, small: int) -> list[Measurements]:
        sizes = {index: (small, 0.01) if index < 15 else (60 - small, 0.5) for index in range(30)}
        return [
            pod(
                *(
                    make_series(seed + key, count, str(key), seconds=took * slower, noise=noise)
                    for key, (count, took) in sizes.items()
                )
            )
        ]

    result = compare(arm(1, 1.0, 20), arm(41, 1.35, 40), limits())
    assert "all latencies" in {figure.name for figure in result.figures if figure.state == "failed"}


def test_a_clock_that_saw_no_time_pass_is_left_out() -> None:
    stable, canary = make_series(1, 200), make_series(2, 200)
    result = together(series([(START, 0.0), *stable.windows]), canary)
    assert (result.state, seconds(result)[0].stable_samples) == ("passed", 200)


def test_nothing_in_common_is_no_comparison() -> None:
    result = together(make_series(1, 200, "1000"), make_series(2, 200, "2000", seconds=1.0))
    assert (result.state, result.waits_for[:8]) == ("inconclusive", "latency:")
    result = together(make_series(1, 200), golden(make_series(2, 200, seconds=1.0)))
    assert result.state == "inconclusive"
    assert compare([], [pod(make_series(1, 200))], limits()).state == "inconclusive"
    assert compare([pod(make_series(1, 200))], [], limits()).state == "inconclusive"


def test_golden_inferences_decide_alone_and_count_with_requests() -> None:
    slow = golden(make_series(2, 200, seconds=0.02))
    assert together(golden(make_series(1, 200)), slow).state == "failed"

    def arm(seed: int, took: float) -> list[Measurements]:
        requests, probes = (
            make_series(number, 60, seconds=took, noise=Noise()) for number in (seed, seed + 1)
        )
        return [pod(requests, golden(probes))]

    # close to the limit, so that all measurements are needed
    assert compare(arm(1, 0.01), arm(3, 0.0115), limits(120)).state == "passed"
    assert compare(arm(1, 0.01), arm(3, 0.0115), limits(130)).state == "inconclusive"


def test_another_mix_of_sizes_is_no_regression() -> None:
    def arm(seed: int, small: int, large: int) -> Measurements:
        return pod(
            make_series(seed, small, "1000", seconds=0.01, interval=400 / small),
            make_series(seed + 1, large, "9000", seconds=0.5, interval=400 / large),
        )

    result = compare([arm(1, 400, 40)], [arm(3, 40, 400)], limits())
    assert result.state == "passed"
    assert [second.ratio for second in seconds(result)] == pytest.approx([1.0] * 3, rel=0.2)


def test_a_regression_of_one_size_does_not_drown_among_others() -> None:
    def arm(seed: int, slower: float) -> Measurements:
        small = [make_series(seed + index, 400, str(index)) for index in range(6)]
        return pod(*small, make_series(seed + 9, 200, "9000", seconds=0.5 * slower))

    result = compare([arm(1, 1.0)], [arm(21, 1.4)], limits())
    assert [figure.name for figure in result.figures if figure.state == "failed"] == [
        "latency of requests of 9000 elements"
    ]


def test_pods_of_a_revision_are_pooled() -> None:
    stable = [pod(make_series(index, 30, noise=Noise())) for index in range(1, 5)]
    canary = [pod(make_series(index, 50, noise=Noise())) for index in range(5, 7)]
    result = compare(stable, canary, limits(100))
    assert result.state == "passed"
    (figure,) = seconds(result)
    assert (figure.stable_samples, figure.canary_samples) == (120, 100)


def test_earlier_measurements_of_the_serving_revision_do_not_count() -> None:
    earlier = [(at - 1000, 0.001) for at, _ in make_series(1, 200).windows]
    assert together(series(earlier), make_series(2, 200)).state == "inconclusive"
    both = series([*earlier, *make_series(1, 200).windows])
    assert together(both, make_series(2, 200)).state == "passed"


def test_canary_measurements_before_pods_were_replaced_do_not_count() -> None:
    """Its first measurements would all be compared with the first one of the present pods."""
    stable = pod(make_series(1, 200), since=START)
    slow = [(at - 1000, 5.0) for at, _ in make_series(3, 200).windows]
    canary = pod(series([*slow, *make_series(2, 200).windows]), since=START - 1000)
    result = compare([stable], [canary], limits())
    (figure,) = seconds(result)
    assert (result.state, figure.canary_samples) == ("passed", 200)


def test_load_that_slows_both_is_not_the_new_revisions() -> None:
    """Under the second half's load of 3 times, the new revision has most of its measurements."""
    quiet = Noise(sigma=0.1, swing=1.0)

    def halves(seed: int, first: int, second: int) -> LatencySeries:
        before = make_series(seed, first, interval=200 / first, noise=quiet).windows
        after = make_series(
            seed + 1, second, interval=200 / second, noise=quiet, seconds=0.03
        ).windows
        return series([*before, *((at + 250, value) for at, value in after)])

    assert together(halves(1, 400, 100), halves(3, 100, 400)).state == "passed"


def test_measurements_of_dropped_windows_still_count() -> None:
    few = limits(min_samples=50_000)

    def busy(seed: int, seconds: float) -> Measurements:
        result = make_series(seed, 10 * WINDOWS, seconds=seconds, interval=0.001, noise=Noise())
        late = [(at + 56.0, s) for at, s in result.windows]
        return pod(series(late).model_copy(update={"count": 60_000}))

    assert compare([busy(1, 0.01)], [busy(2, 0.01)], few).state == "passed"
    assert compare([busy(1, 0.01)], [busy(2, 0.014)], few).state == "failed"
    (figure,) = seconds(compare([busy(1, 0.01)], [busy(2, 0.01)], few))
    assert figure.canary_samples == pytest.approx(60_000, rel=0.01)


def test_the_verdict_changes_at_the_looks_only() -> None:
    stable = windows(seed_random(1), 400, Load.of(seed_random(0), Noise()))
    canary = windows(seed_random(2), 400, Load.of(seed_random(0), Noise()), seconds=0.012)
    ratios = [
        seconds(together(series(stable[:count]), series(canary[:count])))[0].ratio
        for count in range(2, 41)
    ]
    assert len(set(ratios)) == len({20, 25, 50, 100, 200, 400})


def test_no_measurements_are_needed_where_none_are_asked_for() -> None:
    result = compare([pod()], [pod()], limits(0))
    assert (result.state, result.basis) == ("passed", "no requests came")
    slow = together(make_series(1, 40), make_series(2, 40, seconds=3.0), min_samples=0)
    assert slow.state == "failed"
