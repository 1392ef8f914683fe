"""Which golden sample is asked when: all before admission, then the one that costs users least. No IO."""

from dataclasses import replace

import pytest
from enginewright_contract.execution import ComputeBucket
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.probe_schedule import (
    ADMISSION_INTERVAL,
    ProbeFacts,
    ProbeSchedule,
    Traffic,
)

NAMES = ["min", "opt", "max"]
PROVEN = frozenset(NAMES)


def turns() -> ProbeSchedule:
    return ProbeSchedule(NAMES)


def serving(idle: float = 0.0) -> ProbeFacts:
    return ProbeFacts(PROVEN, idle)


def right(seconds: float, sample: str = "min", queued: float = 0.0) -> ProbeResult:
    return ProbeResult(sample, seconds + queued, 0.0, queued=queued, compute=seconds)


def test_every_sample_is_asked_before_any_twice_and_none_is_deferred() -> None:
    order = turns()
    proven: set[str] = set()
    for second in range(3):
        turn = order.next(ProbeFacts(frozenset(proven), 0.0), float(second))
        assert turn.sample not in proven
        assert turn.defer == 0.0
        interval = order.interval(right(0.5, turn.sample), ProbeFacts(frozenset(proven), 0.0))
        proven.add(turn.sample)
        assert (interval < 0.1) is (proven != PROVEN)
    assert proven == PROVEN


def admit(**costs: float) -> ProbeSchedule:
    """Return the turns of a pod that has answered each sample once, in so many seconds."""
    order = turns()
    for name in reversed(NAMES):
        order.interval(right(costs.get(name, 0.025), name), serving())
    return order


def test_each_round_has_one_inference_in_a_batch_once_all_samples_are_right() -> None:
    order = turns()
    admitting = ProbeFacts(frozenset({"min"}), 0.0, batch=8)
    assert [order.next(admitting, 0.0).batch for _ in range(9)] == [1] * 9
    facts = ProbeFacts(PROVEN, 0.0, batch=8)
    asked = [order.next(facts, float(second)) for second in range(15)]
    assert [turn.batch for turn in asked] == [8, 1, 1, 1, 1] * 3
    assert {turn.sample for turn in asked if turn.batch > 1} == PROVEN
    alone = [order.next(serving(), float(second)) for second in range(15)]
    assert {turn.batch for turn in alone} == {1}, "of a server without batches"


def test_an_inference_in_a_batch_tells_no_cost_of_its_sample() -> None:
    order = admit()
    paired = replace(right(9.0, "min"), paired=True)
    assert order.interval(paired, serving()) == 60.0
    assert set(ask(order, serving())) >= {"min"}
    assert not order.find_left_out(serving())


BATCHES = {"min": 0.025, "opt": 0.2, "max": 1.2}


def ask(order: ProbeSchedule, facts: ProbeFacts, seconds: int = 1000) -> list[str]:
    return [order.next(facts, float(second)).sample for second in range(seconds)]


# fault: Latency | a golden inference of a large sample delays requests | samples in service cost
#   no more than requests do | prevented
def test_beside_requests_only_the_smallest_is_asked_and_may_be_deferred() -> None:
    order = admit(**BATCHES)
    assert set(ask(order, serving())) == {"min"}
    assert order.next(serving(), 1000.0).defer == 20.0


def test_beside_requests_as_large_a_sample_costs_no_more_than_they_do() -> None:
    samples = ask(admit(**BATCHES), ProbeFacts(PROVEN, 0.0, served=0.21))
    assert set(samples) == {"min", "opt"}


def test_a_large_sample_does_not_hold_up_the_small_ones() -> None:
    order = admit(**BATCHES)
    assert order.interval(right(1.2, "max"), serving()) == pytest.approx(5.0 * 1.5)


# fault: Latency | a busy node delays the smallest golden sample, and a larger one runs beside requests
#   instead | of a sample's last runs the fastest counts | prevented
@pytest.mark.parametrize("delayed", range(1, 5))
def test_delayed_runs_of_a_small_sample_do_not_exchange_it_for_a_larger_one(delayed: int) -> None:
    order = admit(**BATCHES)
    for _ in range(delayed):
        order.interval(right(3.0, "min"), serving())
    assert set(ask(order, serving())) == {"min"}
    assert order.find_left_out(serving()) == ["opt", "max"]


def test_a_sample_that_has_become_slow_is_no_longer_small() -> None:
    order = admit()
    for _ in range(5):
        order.interval(right(3.0, "opt"), serving())
    assert order.find_left_out(serving()) == ["opt"]


def test_samples_that_cost_the_same_take_turns() -> None:
    assert set(ask(admit(), serving())) == PROVEN


def test_a_sample_that_was_wrong_is_asked_until_it_is_right() -> None:
    order = turns()
    facts = ProbeFacts(PROVEN - {"max"}, 0.0)
    wrong = ProbeResult("max", 1.0, 0.0, wrong="output 'y' ...")
    assert order.interval(wrong, facts) == 1.0
    turn = order.next(facts, 0.0)
    assert (turn.sample, turn.defer) == ("max", 0.0)


def test_larger_samples_take_half_a_percent_of_idle_time() -> None:
    samples = ask(admit(**BATCHES), serving(1e9), 10_000)
    assert set(samples) == PROVEN
    assert sum(BATCHES[name] for name in samples if name != "min") <= 0.005 * 10_000 + 1.2


def test_quick_samples_are_sent_often_when_idle() -> None:
    order = admit(min=0.0001, opt=0.001, max=0.002)
    assert set(ask(order, serving(1e9), 15)) == PROVEN


@pytest.mark.parametrize("compute", [0.0001, 0.001, 0.005, 0.025, 0.1, 0.3])
def test_beside_requests_it_takes_half_a_percent_of_the_servers_time(compute: float) -> None:
    """And a fifth of that where there is never an idle moment: it is then deferred five intervals."""
    order = turns()
    interval = order.interval(right(compute, queued=100.0), serving())
    assert compute / interval <= 0.005001
    longest = interval + order.next(serving(), 0.0).defer
    assert longest <= 5 * interval
    assert compute / longest <= 0.001001


@pytest.mark.parametrize(
    ("result", "facts", "interval"),
    [
        (right(0.1), serving(59.0), 20.0),
        (right(0.1), serving(61.0), 2.0),  # an idle server may spend ten times as much
        (right(1.0), ProbeFacts(PROVEN, 61.0, undecided=True), 4.0),
        (right(1.0), ProbeFacts(PROVEN, 0.0, undecided=True), 60.0),
        (right(10.0), serving(), 60.0),  # never less often than once a minute
        (ProbeResult("min", 30.0, 0.0, not_run="503"), serving(), 1.0),
    ],
)
def test_interval_follows_cost_and_traffic(
    result: ProbeResult, facts: ProbeFacts, interval: float
) -> None:
    assert turns().interval(result, facts) == pytest.approx(interval)


def bucket(count: int) -> ComputeBucket:
    return ComputeBucket(elements=64, count=count)


def test_traffic_is_known_by_the_counts_of_requests() -> None:
    traffic = Traffic()
    assert traffic.idle(5.0) == 0.0  # unknown is busy
    traffic.add([bucket(0)], 5.0)
    assert traffic.idle(5.0) > 1e9  # no request yet
    traffic.add([bucket(3)], 10.0)
    traffic.add([bucket(3)], 50.0)
    assert traffic.idle(50.0) == 40.0


# fault: Latency | requests that all differ in shape, hence untimed, look like an idle pod
def test_requests_that_all_differ_in_shape_are_traffic() -> None:
    """Audio of any length: no request's time is counted, because each is the first of its shape."""
    traffic = Traffic()
    traffic.add([ComputeBucket(elements=64)], 5.0)
    for second in range(10, 100):
        traffic.add([ComputeBucket(elements=64, untimed=second)], float(second))
    traffic.add([ComputeBucket(elements=64, untimed=99)], 99.5)
    assert traffic.idle(99.5) == 0.5
    assert traffic.served == 0.0


def test_a_sidecar_that_comes_later_does_not_take_old_requests_for_idleness() -> None:
    traffic = Traffic()
    traffic.add([bucket(1000)], 5.0)
    traffic.add([bucket(1000)], 6.0)
    assert traffic.idle(6.0) == 1.0


def test_time_without_a_report_is_no_time_without_requests() -> None:
    """The server may be too busy with them to report."""
    traffic = Traffic()
    traffic.add([bucket(3)], 0.0)
    traffic.add([bucket(3)], 100.0)
    assert traffic.idle(104.0) == 100.0
    assert traffic.idle(106.0) == 0.0
    traffic.add([bucket(4)], 200.0)
    assert traffic.idle(204.0) == 0.0


@pytest.mark.parametrize(
    ("reports", "served"),
    [
        ([], 0.0),
        ([(10, 1.0)] * 2, 0.0),
        ([(10, 1.0)] * 3, 0.1),
        ([(0, 0.0), (10, 1.0), (0, 0.0), (20, 2.0), (10, 1.0)], 0.1),
        ([(1, 0.1), (1, 90.0), (1, 0.1), (1, 0.1)], 0.1),  # the node delays one request
        ([(1000, 100.0)] * 3 + [(10, 5.0)] * 15, 0.5),  # other requests than before
    ],
)
def test_request_time_is_a_recent_median(reports: list[tuple[int, float]], served: float) -> None:
    traffic = Traffic()
    count, seconds = 0, 0.0
    for number, (more, longer) in enumerate(reports):
        count, seconds = count + more, seconds + longer
        traffic.add([ComputeBucket(elements=64, count=count, seconds=seconds)], float(number))
    assert traffic.served == pytest.approx(served)


def probing(idle: float = 0.0) -> ProbeFacts:
    return ProbeFacts(PROVEN, idle, probing=True)


def duty(facts: ProbeFacts, costs: dict[str, float], own: float = 0.0) -> tuple[float, float]:
    """Return runs per second and the share of the server's time over a hundred simulated seconds."""
    order = admit(**costs)
    order.interval(right(min(costs.values())), facts)
    now, runs, spent = 0.0, 0, 0.0
    while now < 100.0:
        sample = order.next(facts, now).sample
        result = ProbeResult(sample, costs[sample], own, compute=costs[sample])
        order.interval(result, facts)
        runs += 1
        spent += costs[sample]
        now += max(order.pace(facts), costs[sample])
    return runs / now, spent / now


@pytest.mark.parametrize("cost", [0.0001, 0.001, 0.01, 0.1, 1.0])
@pytest.mark.parametrize(("idle", "share"), [(0.0, 0.05), (59.0, 0.05), (61.0, 0.2), (1e9, 0.2)])
def test_a_higher_rate_takes_its_share_and_no_more(cost: float, idle: float, share: float) -> None:
    costs = dict.fromkeys(NAMES, cost)
    rate, spent = duty(probing(idle), costs)
    assert rate <= 1 / ADMISSION_INTERVAL + 0.01
    assert spent <= share * 1.001
    # all of the share, where the least interval allows
    assert spent >= 0.95 * min(share, cost / ADMISSION_INTERVAL)
    usual, _ = duty(serving(idle), costs)
    assert rate >= 2.9 * usual


def test_higher_rate_includes_larger_samples_when_idle() -> None:
    """Otherwise a canary, which is asked for it as long as it is compared, would never measure them."""
    order = admit(**BATCHES)
    samples = [order.next(probing(1e9), float(second)).sample for second in range(1000)]
    assert set(samples) == PROVEN
    assert abs(samples.count("opt") - samples.count("max")) <= 1
    spent = sum(BATCHES[name] for name in samples if name != "min")
    assert 0.04 * 1000 < spent <= 0.05 * 1000 + 1.2
    _, total = duty(probing(1e9), BATCHES)
    assert total <= 0.2001


def test_a_higher_rate_is_of_cheap_samples_only_beside_requests() -> None:
    order = admit(**BATCHES)
    samples = [order.next(probing(), float(second)).sample for second in range(1000)]
    assert set(samples) == {"min"}


def test_samples_that_are_left_out_are_known() -> None:
    order = admit(**BATCHES)
    for facts in (serving(), probing()):
        assert order.find_left_out(facts) == ["opt", "max"]
    assert order.find_left_out(ProbeFacts(PROVEN, 0.0, served=0.21)) == ["max"]
    for facts in (serving(61.0), probing(61.0)):
        assert order.find_left_out(facts) == []


def test_a_higher_rate_is_limited_by_the_sidecars_own_time_too() -> None:
    rate, _ = duty(probing(1e9), dict.fromkeys(NAMES, 0.001), own=0.05)
    assert rate == pytest.approx(0.05 / 0.05, rel=0.02)


def test_a_deferred_run_of_a_higher_rate_waits_no_longer_than_that_allows() -> None:
    order = admit()
    order.interval(right(0.025), probing())
    assert order.pace(probing()) == pytest.approx(0.5)
    assert order.next(probing(), 0.0).defer == pytest.approx(2.0)
    assert order.next(probing(61.0), 0.0).defer == 0.0


def test_a_request_for_a_higher_rate_changes_the_pace_at_once_and_for_its_time_only() -> None:
    """The interval for which a result counts stays: the request may end at any moment."""
    order = turns()
    assert order.interval(right(0.1), probing()) == pytest.approx(20.0)
    assert order.pace(serving()) == pytest.approx(20.0)
    assert order.pace(probing()) == pytest.approx(2.0)
    assert order.pace(serving()) == pytest.approx(20.0)


@pytest.mark.parametrize(
    "result",
    [
        ProbeResult("min", 0.01, 0.0, compute=0.01, wrong="output 'y' ..."),
        ProbeResult("min", 0.0, 0.0, not_run="the server is too busy"),
    ],
)
def test_pace_is_kept_after_a_wrong_or_missing_answer(result: ProbeResult) -> None:
    order = turns()
    proven = PROVEN if result.wrong is None else PROVEN - {"min"}
    facts = ProbeFacts(proven, 0.0, probing=True)
    order.interval(result, facts)
    assert order.pace(facts) == 1.0


def test_after_a_restart_the_next_run_does_not_wait_for_the_old_interval() -> None:
    order = admit(min=1.0, opt=1.0, max=1.0)
    order.interval(right(1.0), serving())
    assert order.pace(serving()) == 60.0
    assert order.pace(ProbeFacts(frozenset(), 0.0)) == 1.0
