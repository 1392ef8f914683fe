"""Which waiting request runs next, and which one a full queue gives up, by priority."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from enginewright_runtime.core.request_errors import RequestError
from enginewright_serving.server.inference.job import Job
from enginewright_serving.server.inference.waiting import FAIR_RUNS, Waiting
from enginewright_serving.server.protocol.priorities import (
    DEFAULT,
    HIGHEST,
    LOWEST,
    may_state_priority,
    read_priority,
)
from hypothesis import given
from hypothesis import strategies as st

PRIORITIES = st.integers(HIGHEST, LOWEST)


def job(priority: int, queued: float = 0.0) -> Job:
    return cast("Job", SimpleNamespace(priority=priority, queued=queued))


def fill(priorities: list[int]) -> Waiting[Job]:
    waiting: Waiting[Job] = Waiting()
    for number, priority in enumerate(priorities):
        waiting.add(job(priority, float(number)))
    return waiting


def place(item: Job) -> tuple[int, float]:
    return item.priority, item.queued


@given(st.lists(PRIORITIES))
def test_higher_priorities_come_first_and_older_ones_within_a_priority(given: list[int]) -> None:
    assert [place(item) for item in fill(given)] == sorted(
        (priority, float(number)) for number, priority in enumerate(given)
    )


@given(st.lists(PRIORITIES), PRIORITIES)
def test_newest_of_the_lowest_priority_is_given_up(given: list[int], priority: int) -> None:
    waiting = fill(given)
    expected = max(map(place, waiting), default=None)
    victim = waiting.give_up(priority)
    if expected is None or expected[0] <= priority:
        assert victim is None
        assert len(waiting) == len(given)
    else:
        assert victim is not None
        assert place(victim) == expected
        assert len(waiting) == len(given) - 1


@given(st.lists(st.tuples(PRIORITIES, st.integers(0, 3)), min_size=1))
def test_order_is_kept_and_nothing_is_lost(steps: list[tuple[int, int]]) -> None:
    waiting: Waiting[Job] = Waiting()
    taken, number = [], 0
    for priority, runs in steps:
        waiting.add(job(priority, float(number)))
        number += 1
        for _ in range(min(runs, len(waiting))):
            waiting.be_fair()
            taken.append(waiting.popleft())
            assert list(map(place, waiting)) == sorted(map(place, waiting))
    assert sorted(item.queued for item in (*taken, *waiting)) == [float(n) for n in range(number)]


@given(st.lists(PRIORITIES, min_size=1, max_size=20), PRIORITIES)
def test_first_client_does_not_stop_the_others(others: list[int], priority: int) -> None:
    waiting = fill(others)
    left = len(others)
    for run in range(FAIR_RUNS * len(others) + 1):
        if not left:
            return
        waiting.add(job(priority, 1000.0 + run))
        waiting.be_fair()
        left -= waiting.popleft().queued < 1000.0
    # those of the same or a higher priority run first anyway, the others in turn
    assert not left


def test_with_one_priority_the_order_is_that_of_arrival() -> None:
    waiting = fill([DEFAULT] * 100)
    order = []
    while waiting:
        waiting.be_fair()
        order.append(waiting.popleft().queued)
    assert order == [float(number) for number in range(100)]


@pytest.mark.parametrize(
    ("given", "priority"),
    [
        (0, DEFAULT),
        (1, HIGHEST),
        (2, 2),
        (3, DEFAULT),
        (5, LOWEST),
        (6, LOWEST),
        (2**64 - 1, LOWEST),
    ],
)
def test_a_requests_priority_is_tritons(given: int, priority: int) -> None:
    assert read_priority({"priority": given}) == priority


def test_a_request_without_a_priority_has_the_default() -> None:
    assert read_priority({}) == DEFAULT


@pytest.mark.parametrize("given", [-1, True, 1.0, "1", None, [1]])
def test_a_priority_is_a_number(given: Any) -> None:
    with pytest.raises(RequestError, match="must be a number: 1 is the highest, 5 the lowest"):
        read_priority({"priority": given})


def test_only_the_beginning_of_a_request_is_searched_for_a_priority() -> None:
    text = b'{"parameters": {"priority": 1}}'
    assert may_state_priority(memoryview(text))
    assert not may_state_priority(memoryview(b"{}"))
    assert not may_state_priority(memoryview(b" " * 64 * 1024 + text))
