"""Beside hostile clients, what is unanswered is never a latency, and only a whole and undisturbed run is published."""

import dataclasses
from typing import Any

import pytest

from bench.serving.hostile import COMPARED
from bench.serving.hostile_results import (
    ENDED,
    FLOOD,
    KEPT,
    NO_ANSWER,
    OUT_OF_MEMORY,
    PROBES,
    Beside,
    Comparison,
    Served,
)
from bench.serving.servers import OURS, TRITON

ABOUT = {
    "date": "2026-01-01",
    "cpu": "a processor",
    "cores": 2,
    "network": "own namespace",
    "versions": {"uvicorn": "1.0"},
}


def make_beside(**changes: Any) -> Beside:
    values: dict[str, Any] = {
        "connections": FLOOD,
        "port": "http",
        "kind": "storm",
        "answered": 9,
        "failed": 0,
        "p50_us": 150.0,
        "p99_us": 900.0,
        "alone_p99_us": 300.0,
        "probes": PROBES,
        "peak_mb": 120.0,
        "after_mb": 100.0,
    }
    return Beside(**(values | changes))


def lose_answers(**changes: Any) -> Beside:
    return make_beside(answered=0, failed=1, p50_us=None, p99_us=None, probes=0, **changes)


def make_served(*besides: Beside, server: str = OURS, **changes: Any) -> Served:
    return Served(server, "1.0", before_mb=90.0, beside=list(besides), **changes)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (make_beside(), "0.15 / 0.9"),
        (make_beside(failed=1), "0.15 / 0.9; 1 of 10 fail"),
        (make_beside(probes=1), "0.15 / 0.9; 2 of 3 probes fail"),
        (lose_answers(), "1 of 1 fail; 3 of 3 probes fail"),
        (
            lose_answers(end=OUT_OF_MEMORY, after_mb=None),
            "1 of 1 fail; 3 of 3 probes fail; out of memory",
        ),
        (make_beside(end=NO_ANSWER, after_mb=None), "0.15 / 0.9; no answer afterwards"),
        (make_beside(p50_us=12_345.0, p99_us=1_234_567.0), "12.3 / 1,235"),
    ],
)
def test_what_went_wrong_is_beside_the_latencies(item: Beside, text: str) -> None:
    assert item.text == text


def test_unanswered_requests_and_probes_are_problems_and_so_is_an_end() -> None:
    assert not make_served(make_beside()).problems
    lost = [
        make_beside(failed=1),
        make_beside(probes=PROBES - 1),
        make_beside(end=ENDED, after_mb=None),
        lose_answers(),
    ]
    assert [make_served(item).problems for item in lost] == [
        [f"2,000 http storm: {item.text}"] for item in lost
    ]


def test_slower_answers_are_a_problem_only_beside_few_that_send_little() -> None:
    slow = "900 http idle: p99 is more than 2 times that alone"
    assert make_served(make_beside(connections=KEPT, kind="idle")).problems == [slow]
    assert not make_served(make_beside(connections=KEPT, kind="idle", p99_us=599.0)).problems
    assert not make_served(make_beside(connections=KEPT, kind="slow bodies")).problems
    assert not make_served(make_beside(kind="idle")).problems


def test_memory_that_is_kept_and_kinds_without_time_are_problems() -> None:
    growing = make_served(make_beside(), after_mb=300.0, left_out=["2,000 http storm"])
    assert growing.problems == [
        "no time for 2,000 http storm",
        "210.0 MB are kept, more than 150",
    ]


def test_only_our_servers_limits_fail_a_run() -> None:
    comparison = Comparison(
        ABOUT, [make_served(make_beside()), make_served(lose_answers(), server=TRITON)], absent={}
    )
    assert not comparison.problems
    comparison.servers[0].beside.append(lose_answers())
    assert comparison.problems == [f"{OURS}, 2,000 http storm: 1 of 1 fail; 3 of 3 probes fail"]


def test_a_run_with_gaps_is_not_published() -> None:
    whole = [make_served(make_beside(), server=name) for name in COMPARED]
    assert not Comparison(ABOUT, whole).list_gaps(COMPARED)
    (gap,) = Comparison(ABOUT, whole[1:]).list_gaps(COMPARED)
    assert gap == f"NOT MEASURED: {COMPARED[0]}"
    assert Comparison(ABOUT, whole, absent={"other": "no wheel"}).list_gaps(COMPARED) == [
        "ABSENT other: no wheel"
    ]
    disturbed = dataclasses.replace(whole[0], others=0.3)
    (gap,) = Comparison(ABOUT, [disturbed, *whole[1:]]).list_gaps(COMPARED)
    assert gap.startswith(f"DISTURBED, {OURS}: other programs took 30%")
    hurried = dataclasses.replace(whole[0], left_out=["900 grpc idle"])
    (gap,) = Comparison(ABOUT, [hurried, *whole[1:]]).list_gaps(COMPARED)
    assert gap == f"NO TIME, {OURS}: 900 grpc idle"
