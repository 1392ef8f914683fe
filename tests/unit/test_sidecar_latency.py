"""What counts as slow: rules on measurements, and ten minutes of traffic in virtual time. No IO."""

import heapq
import random
import re
from collections.abc import Iterator

import pytest
from enginewright_contract.execution import ComputeBucket, size_class
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import CheckState
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.latency import LiveLatency, ProbeLatency
from enginewright_serving.sidecar.probe_schedule import ProbeFacts, ProbeSchedule, Traffic
from enginewright_serving.sidecar.trend import Trend
from hypothesis import given
from hypothesis import strategies as st

# One series.


def trend(*seconds: float, every: float = 1.0) -> Trend:
    recorded = Trend()
    for index, second in enumerate(seconds):
        recorded.add(second, index * every)
    return recorded


def test_the_baseline_is_taken_when_the_measurements_have_settled() -> None:
    falling = [0.1 * 0.8**index for index in range(10)]
    assert trend(*falling).baseline is None
    assert trend(*falling, *[0.010] * 3).baseline is None
    assert trend(*falling, *[0.010] * 10).baseline == pytest.approx(0.010)


def test_first_runs_are_left_out() -> None:
    recorded = Trend(first_runs=1)
    for index in range(11):
        recorded.add(5.0 if index == 0 else 0.010, float(index))
    assert recorded.baseline == pytest.approx(0.010)
    recorded.restart()  # a new process compiles again
    recorded.add(5.0, 20.0)
    assert recorded.last(20.0) is None


def test_unsettled_latency_is_judged_by_its_lowest_quarter() -> None:
    restless = ([0.010] * 5 + [0.050] * 5) * 6
    assert trend(*restless[:59]).baseline is None
    assert trend(*restless).baseline == pytest.approx(0.010)


def test_a_baseline_that_proves_too_high_is_lowered_and_counted() -> None:
    outcome = trend(*[0.023] * 10)
    assert outcome.baseline == pytest.approx(0.023)
    for index in range(19):
        outcome.add(0.010, 10.0 + index)
    assert outcome.baseline == pytest.approx(0.023)
    assert outcome.lowered == 0
    outcome.add(0.010, 29.0)
    assert outcome.baseline == pytest.approx(0.010)
    assert outcome.lowered == 1


def test_a_few_quick_ones_lower_nothing_and_slow_ones_raise_nothing() -> None:
    outcome = trend(*[0.010] * 10, *[0.004, 0.010, 0.010] * 10, *[0.030] * 60)
    assert outcome.baseline == pytest.approx(0.010)
    assert outcome.lowered == 0


def test_hiccup_is_not_the_current_latency() -> None:
    outcome = trend(*[0.010] * 30, *[0.500] * 9)
    assert outcome.current(38.0) == pytest.approx(0.010)
    outcome = trend(*[0.010] * 30, *[0.500] * 12)
    assert outcome.current(41.0) == pytest.approx(0.500)


def test_old_latency_does_not_count() -> None:
    outcome = trend(*[0.010] * 10)
    assert outcome.current(100.0) == pytest.approx(0.010)
    assert outcome.current(100.0, oldest=60.0) is None


@given(st.lists(st.floats(1e-6, 1e3), max_size=100))
def test_a_baseline_is_never_above_all_that_was_measured(seconds: list[float]) -> None:
    outcome = trend(*seconds)
    assert outcome.baseline is None or min(seconds) / 2 <= outcome.baseline <= max(seconds)


def probe(seconds: float, *, compute: float | None = None, queued: float = 0.0) -> ProbeResult:
    return ProbeResult("s0", seconds, 0.0, queued=queued, compute=compute)


def run_probes(*results: ProbeResult, idle: bool = True) -> tuple[ProbeLatency, float]:
    latency = ProbeLatency()
    for index, result in enumerate(results):
        latency.add(result, float(index), idle=idle)
    return latency, float(len(results))


USUAL = probe(0.011, compute=0.010)


# fault: Latency | a full queue looks like a slow model | waiting is excluded | prevented
@pytest.mark.parametrize(
    ("usual", "then", "idle", "state"),
    [
        (USUAL, probe(2.0, compute=0.010, queued=1.98), False, "ok"),  # it waited
        (USUAL, probe(0.031, compute=0.030), False, "failed"),
        # hidden time is found on an idle server: elsewhere it may be a queue
        (USUAL, probe(0.340, compute=0.010, queued=0.330), True, "failed"),
        (USUAL, probe(0.340, compute=0.010, queued=0.330), False, "ok"),
        (probe(0.010), probe(0.030), True, "failed"),  # it reports no times
        (probe(0.001, compute=0.0002), probe(0.009, compute=0.0011), True, "ok"),  # noise
    ],
)
def test_a_slow_model_and_hidden_time_are_slow_and_a_probe_that_waited_is_not(
    usual: ProbeResult, then: ProbeResult, *, idle: bool, state: CheckState
) -> None:
    latency, now = run_probes(*[usual] * 20, *[then] * 40, idle=idle)
    outcome = latency.outcome(now)
    assert outcome.state == state
    if state == "failed":
        assert outcome.reason is Reason.SLOWER_THAN_BASELINE
        assert re.search(r"than 2\.2 times the pod's own baseline of 1[01] ms$", outcome.message)


def test_a_new_server_process_is_held_to_the_pods_baseline() -> None:
    latency, now = run_probes(*[probe(0.011, compute=0.010)] * 20)
    latency.restart()
    assert latency.outcome(now).state == "unknown"
    for index in range(5):
        latency.add(probe(0.041, compute=0.040), now + index, idle=True)
    assert latency.outcome(now + 5).state == "failed"


def bucket(count: int, seconds: float, warmup: float | None = None) -> ComputeBucket:
    return ComputeBucket(elements=64, warmup_seconds=warmup, count=count, seconds=seconds)


def observe_requests(
    *means: float, count: int = 20, warmup: float | None = None
) -> tuple[LiveLatency, float]:
    """Return what is known after polls each 5 s, between which `count` requests took so long on average."""
    live = LiveLatency()
    total, number, now = 0.0, 0, 0.0
    live.add([bucket(0, 0.0, warmup)], now)
    for mean in means:
        total, number, now = total + mean * count, number + count, now + 5.0
        live.add([bucket(number, total, warmup)], now)
    return live, now


@pytest.mark.parametrize(
    ("means", "warmup", "state"),
    [
        ([0.010] * 2, None, "unknown"),
        ([0.010] * 20, None, "ok"),
        ([0.010] * 20 + [0.030] * 2, None, "ok"),
        ([0.010] * 20 + [0.030] * 4, None, "failed"),
        ([0.010] * 20 + [0.500] * 2 + [0.010] * 2, None, "ok"),
        ([0.031] * 3, 0.010, "failed"),  # before the usual is known
        ([0.029] * 3, 0.010, "ok"),
    ],
)
def test_requests_are_compared_with_their_usual(
    means: list[float], warmup: float | None, state: CheckState
) -> None:
    live, now = observe_requests(*means, warmup=warmup)
    assert live.outcome(now).state == state


def test_old_probes_are_not_judged() -> None:
    live, now = observe_requests(*[0.010] * 20, *[0.050] * 5)
    assert live.outcome(now).state == "failed"
    assert live.outcome(now + 91.0).state == "unknown"


def test_reset_counters_are_compared_from_there() -> None:
    live, now = observe_requests(*[0.010] * 20)
    live.add([bucket(3, 0.03)], now + 5)
    live.add([bucket(30, 0.3)], now + 10)
    assert live.outcome(now + 10).state == "unknown"


def test_requests_of_other_sizes_do_not_make_it_slow() -> None:
    live = LiveLatency()
    for poll in range(40):
        small, large = (1000, 10 * poll) if poll > 20 else (50 * poll, 0)
        live.add(
            [
                ComputeBucket(elements=64, count=small, seconds=small * 0.010),
                ComputeBucket(elements=2048, count=large, seconds=large * 0.200),
            ],
            5.0 * poll,
        )
        assert live.outcome(5.0 * poll).state != "failed"


@given(st.integers(0, 1 << 40))
def test_a_class_of_sizes_is_narrow(elements: int) -> None:
    assert elements <= size_class(elements) <= max(elements * 1.125, elements)
    assert size_class(size_class(elements)) == size_class(elements)


# Ten minutes at each rate, and then three times as slow.


class World:
    """One server with one worker, its sidecar, and clients; a second takes none.

    The worker runs what waits first come, first served, refuses beyond a full queue, and takes a deferred
    golden inference when idle or late. Every run takes its time with noise; now and then something on
    the node costs a second.
    """

    def __init__(self, compute: float, load: float, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - of arrivals and noise
        self.compute, self.load, self.factor = compute, load, 1.0
        self.now = 0.0
        self.free = 0.0  # when the worker has done with all that waits
        self.count, self.seconds = 0, 0.0
        self.turns = ProbeSchedule(["min", "max"])
        self.probes, self.live, self.traffic = (
            ProbeLatency(),
            LiveLatency(),
            Traffic(),
        )
        self.proven: set[str] = set()
        self.states: list[tuple[float, str]] = []  # of failed checks
        self.events: list[tuple[float, int, Iterator[float]]] = []
        for number, iterator in enumerate((self.requests(), self.golden(), self.polls())):
            heapq.heappush(self.events, (0.0, number, iterator))

    def run(self, until: float) -> None:
        while self.events[0][0] < until:
            self.now, number, process = heapq.heappop(self.events)
            heapq.heappush(self.events, (self.now + next(process), number, process))

    def measure(self, large: float = 1.0) -> float:
        hiccup = self.random.uniform(0.5, 1.0) if self.random.random() < 0.0005 else 0.0
        noise = self.random.lognormvariate(0.0, 0.2)
        return self.compute * self.factor * large * noise + hiccup

    def requests(self) -> Iterator[float]:
        while True:
            if not self.load:
                yield 1e9
                continue
            yield self.random.expovariate(self.load / self.compute)
            if self.free - self.now < 256 * self.compute:  # else refused
                took = self.measure()
                self.free = max(self.now, self.free) + took
                self.count, self.seconds = self.count + 1, self.seconds + took

    def golden(self) -> Iterator[float]:
        while True:
            idle = self.traffic.idle(self.now)
            facts = ProbeFacts(
                frozenset(self.proven),
                idle,
                self.probes.is_undecided(self.now),
                self.traffic.served,
            )
            turn = self.turns.next(facts, self.now)
            queued = (
                min(max(0.0, self.free - self.now), turn.defer)
                if turn.defer
                else max(0.0, self.free - self.now)
            )
            took = self.measure(20.0 if turn.sample == "max" else 1.0)
            self.free = max(self.free, self.now) + took
            result = ProbeResult(
                turn.sample, queued + took + 0.001, 0.0, queued=queued, compute=took
            )
            self.proven.add(turn.sample)
            interval = self.turns.interval(result, facts)
            yield queued + took
            self.probes.add(result, self.now, idle=idle >= 60.0)
            self.judge("probe", self.probes.outcome(self.now).state)
            yield max(0.0, interval - queued - took)

    def polls(self) -> Iterator[float]:
        while True:
            buckets = [ComputeBucket(elements=64, count=self.count, seconds=self.seconds)]
            self.traffic.add(buckets, self.now)
            self.live.add(buckets, self.now)
            self.judge("live", self.live.outcome(self.now).state)
            yield 5.0

    def judge(self, check: str, state: str) -> None:
        if state == "failed":
            self.states.append((self.now, check))


LOADS = [0.0, 0.5, 0.9, 1.5]


# fault: Latency | the model becomes three times slower, at 0, 50, 90 or 150% load | checks
#   `probe-latency`, `live-latency` | 1 min
# fault: Latency | the model becomes much slower, without requests | check `probe-latency` | 11 s
#   to 1 min
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("compute", [0.003, 0.025, 0.2])
def test_ten_minutes_at_any_load_are_no_alarm_and_a_threefold_slow_down_is_within_one(
    compute: float, load: float, seed: int
) -> None:
    world = World(compute, load, seed)
    world.run(600.0)
    assert world.states == []
    world.factor = 3.0
    world.run(660.0)
    assert world.states, "no alarm within a minute"
    print(f"{compute * 1000:.0f} ms at {load:.0%}: {world.states[0][0] - 600:.0f} s")


# fault: Latency | the baseline was taken on a busy node | it is lowered, counted and logged | 20
#   measurements
def test_a_pod_that_started_beside_other_work_is_not_allowed_three_times_that() -> None:
    world = World(0.025, 0.5, 7)
    world.factor = 2.3
    world.run(120.0)
    world.factor = 1.0
    world.run(420.0)
    assert world.live.lowered + world.probes.lowered
    assert world.states == []
    world.factor = 3.0
    world.run(480.0)
    assert world.states
