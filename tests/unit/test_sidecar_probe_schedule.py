"""Which golden sample is asked when: all before admission, then the one that costs users least. No IO."""

import pytest
from enginewright.contract.execution import ComputeBucket
from enginewright_runtime.serve.sidecar.golden import ProbeResult
from enginewright_runtime.serve.sidecar.probe_schedule import ProbeFacts, ProbeSchedule, Traffic
from enginewright_runtime.serve.sidecar.settings import SidecarSettings

SETTINGS = SidecarSettings()
NAMES = ["min", "opt", "max"]
PROVEN = frozenset(NAMES)


def turns() -> ProbeSchedule:
    return ProbeSchedule(NAMES, SETTINGS)


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


def admitted(**costs: float) -> ProbeSchedule:
    """Return the turns of a pod that has answered each sample once, in so many seconds."""
    order = turns()
    for name in reversed(NAMES):
        order.interval(right(costs.get(name, 0.025), name), serving())
    return order


BATCHES = {"min": 0.025, "opt": 0.2, "max": 1.2}


def asked(order: ProbeSchedule, known: ProbeFacts, seconds: int = 1000) -> list[str]:
    return [order.next(known, float(second)).sample for second in range(seconds)]


def test_beside_requests_only_the_smallest_is_asked_and_may_be_deferred() -> None:
    order = admitted(**BATCHES)
    assert set(asked(order, serving())) == {"min"}
    assert order.next(serving(), 1000.0).defer == 20.0


def test_beside_requests_as_large_a_sample_costs_no_more_than_they_do() -> None:
    found = asked(admitted(**BATCHES), ProbeFacts(PROVEN, 0.0, served=0.21))
    assert set(found) == {"min", "opt"}


def test_a_large_sample_does_not_hold_up_the_small_ones() -> None:
    order = admitted(**BATCHES)
    assert order.interval(right(1.2, "max"), serving()) == pytest.approx(5.0 * 1.5)


def test_samples_that_cost_the_same_take_turns() -> None:
    assert set(asked(admitted(), serving())) == PROVEN


def test_a_sample_that_was_wrong_is_asked_until_it_is_right() -> None:
    order = turns()
    known = ProbeFacts(PROVEN - {"max"}, 0.0)
    wrong = ProbeResult("max", 1.0, 0.0, wrong="output 'y' ...")
    assert order.interval(wrong, known) == 1.0
    turn = order.next(known, 0.0)
    assert (turn.sample, turn.defer) == ("max", 0.0)


def test_where_nobody_asks_larger_ones_take_half_a_percent_of_the_time_too() -> None:
    found = asked(admitted(**BATCHES), serving(1e9), 10_000)
    assert set(found) == PROVEN
    assert sum(BATCHES[name] for name in found if name != "min") <= 0.005 * 10_000 + 1.2


def test_those_of_a_quick_model_are_asked_often_where_nobody_asks() -> None:
    order = admitted(min=0.0001, opt=0.001, max=0.002)
    assert set(asked(order, serving(1e9), 15)) == PROVEN


@pytest.mark.parametrize("compute", [0.0001, 0.001, 0.005, 0.025, 0.1, 0.3])
def test_beside_requests_it_takes_half_a_percent_of_the_servers_time(compute: float) -> None:
    """And a fifth of that where there is never an idle moment: it is then deferred five intervals."""
    order = turns()
    interval = order.interval(right(compute, queued=100.0), serving())
    assert compute / interval <= 0.005001
    longest = interval + order.next(serving(), 0.0).defer
    assert longest <= 5 * interval
    assert compute / longest <= 0.001001


def test_where_nobody_asks_it_may_take_ten_times_as_much() -> None:
    assert turns().interval(right(0.1), serving(61.0)) == pytest.approx(2.0)
    assert turns().interval(right(0.1), serving(59.0)) == pytest.approx(20.0)


def test_where_nobody_asks_and_nothing_is_decided_it_is_asked_more_often() -> None:
    for idle, expected in ((61.0, 4.0), (0.0, 60.0)):
        known = ProbeFacts(PROVEN, idle, undecided=True)
        assert turns().interval(right(1.0), known) == pytest.approx(expected)


def test_it_is_never_asked_less_often_than_once_a_minute() -> None:
    assert turns().interval(right(10.0), serving()) == 60.0


def test_without_an_answer_it_is_asked_again_soon() -> None:
    assert turns().interval(ProbeResult("min", 30.0, 0.0, not_run="503"), serving()) == 1.0


def bucket(count: int) -> ComputeBucket:
    return ComputeBucket(elements=64, count=count)


def test_traffic_is_known_by_the_counts_of_requests() -> None:
    traffic = Traffic()
    assert traffic.idle(5.0) == 0.0  # unknown is busy
    traffic.add([bucket(0)], 5.0)
    assert traffic.idle(5.0) > 1e9  # nobody has asked yet
    traffic.add([bucket(3)], 10.0)
    traffic.add([bucket(3)], 50.0)
    assert traffic.idle(50.0) == 40.0


# fault: Latency | requests that all differ in shape, hence untimed, look like an idle pod
def test_requests_that_all_differ_in_shape_are_traffic() -> None:
    """Audio of any length: no request's time is counted, for each is the first of its shape."""
    traffic = Traffic()
    traffic.add([ComputeBucket(elements=64)], 5.0)
    for second in range(10, 100):
        traffic.add([ComputeBucket(elements=64, untimed=second)], float(second))
    assert traffic.idle(99.5) == 0.5
    assert traffic.served == 0.0


def test_a_sidecar_that_comes_later_does_not_take_old_requests_for_idleness() -> None:
    traffic = Traffic()
    traffic.add([bucket(1000)], 5.0)
    assert traffic.idle(6.0) == 1.0
