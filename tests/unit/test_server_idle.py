"""Golden inferences wait for a moment in which they delay no request, up to a limit."""

import random
import time
from collections.abc import Callable

import pytest
from enginewright_serving.server.inference.idle import Pauses

# When: pure.


def after(*pauses: float) -> Pauses:
    """Return what is remembered at time 0, when a pause begins, of these pauses before."""
    result = Pauses()
    now = -sum(pauses) - 1.0
    for pause in pauses:
        result.begin(now)
        now += pause
        result.end(now)
    result.begin(0.0)
    return result


def test_idle_server_has_no_pauses() -> None:
    assert after().free_at(0.0, 0.0) == 0.0
    assert after().free_at(0.0, 0.1) == pytest.approx(0.15)


def test_a_steady_client_leaves_room_at_the_begin_of_each_pause() -> None:
    assert after(*[0.075] * 32).free_at(0.0, 0.025) == 0.0


def test_late_probe_waits_for_the_next_pause() -> None:
    pauses = after(*[0.075] * 32)
    assert pauses.free_at(0.05, 0.025) > 0.075
    pauses.end(0.075)
    pauses.begin(0.100)
    assert pauses.free_at(0.100, 0.025) == 0.100


def test_between_the_requests_of_a_client_without_pauses_there_is_no_room() -> None:
    assert after(*[0.0003] * 32).free_at(0.0, 0.025) > 0.025


def test_one_short_pause_among_long_ones_is_enough_to_wait() -> None:
    assert after(*[0.5] * 31, 0.01).free_at(0.0, 0.025) > 0.5


def test_pauses_of_long_ago_say_nothing() -> None:
    pauses = after(*[0.5] * 4)
    assert pauses.free_at(100.0, 0.025) == pytest.approx(0.0375)


@pytest.mark.parametrize("period", [0.08, 0.1, 0.4, 1.0, 2.5])
def test_a_steady_client_that_leaves_room_is_never_delayed(period: float) -> None:
    """In virtual time: requests of 25 ms, and every 5 s a golden inference as long."""
    assert measure_delays(lambda: period, compute=0.025) == 0


@pytest.mark.parametrize("period", [0.001, 0.03, 0.05])
def test_one_that_leaves_none_is_delayed_when_the_check_would_go_stale(period: float) -> None:
    assert 0 < measure_delays(lambda: period, compute=0.025) < 0.003


def test_requests_at_random_are_delayed_as_rarely_as_the_share_of_time_says() -> None:
    generator = random.Random(3)  # noqa: S311 - of arrivals
    assert measure_delays(lambda: generator.expovariate(10.0), compute=0.025) < 0.006


def measure_delays(
    period: Callable[[], float], *, compute: float, every: float = 5.0, defer: float = 20.0
) -> float:
    """Return the share of 50,000 requests that a golden inference delays."""
    pauses = Pauses()
    arrival, free, due, hits = period(), 0.0, 0.0, 0
    for _ in range(50_000):
        probed = 0.0
        if free < arrival:
            pauses.begin(free)
            at = max(free, due)
            while at < arrival:  # what the worker's thread does until the next request comes
                start = min(pauses.free_at(at, compute), max(at, due + defer))
                if start <= at:
                    probed, due = at + compute, at + every
                at = max(start, due)
            pauses.end(arrival)
        elif free > due + defer:
            probed, due = free + compute, free + every
        hits += probed > arrival
        arrival = max(arrival, probed)
        free = max(arrival, free) + compute
        arrival = max(arrival + period(), free - 10 * compute)  # no more than ten ever wait
    assert due > every
    return hits / 50_000


# That: on the real server.


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
