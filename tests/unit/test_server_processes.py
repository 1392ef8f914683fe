"""Several server processes as one: their parts of the limits, and the sums of what they report."""

import pytest
from enginewright.contract.execution import ComputeBucket
from enginewright.contract.measurements import SERIES, WINDOWS, LatencySeries
from enginewright.contract.task import ServeTask
from enginewright_runtime.serve.server.metrics import Metrics
from enginewright_runtime.serve.server.processes.exposition import (
    counted,
    describe,
    expose,
    sum_families,
)
from enginewright_runtime.serve.server.processes.shares import settings_of_process, task_of_process
from enginewright_runtime.serve.server.processes.totals import (
    merge_latencies,
    sum_buckets,
    sum_statistics,
)
from enginewright_runtime.serve.server.settings import MIB, ServerSettings
from enginewright_runtime.serve.server.statistics import statistics
from enginewright_runtime.serve.sidecar.every_process import worst
from enginewright_runtime.serve.sidecar.golden import ProbeResult

TASK = ServeTask(model="m", revision="r1", prepared_key="a" * 64, backend="cpu")


# shares


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7, 32])
def test_all_processes_together_have_the_limits_of_one(processes: int) -> None:
    whole = ServerSettings()
    share = settings_of_process(whole, processes)
    assert 1 <= share.connections * processes <= whole.connections
    assert 1 <= share.reserved_connections * processes <= whole.reserved_connections
    assert share.inflight_bytes * min(processes, 4) <= whole.inflight_bytes
    assert share.inflight_bytes >= share.body_bytes == whole.body_bytes, "each takes the largest"
    assert share.inflight_largest >= 1
    task = task_of_process(TASK.model_copy(update={"processes": processes}))
    assert 1 <= task.max_queue * processes <= TASK.max_queue


def test_one_process_has_its_settings_as_they_are() -> None:
    small = ServerSettings(inflight_bytes=MIB, connections=3)
    assert settings_of_process(small, 1) == small
    assert task_of_process(TASK) == TASK


def test_a_process_has_room_for_one_request_however_many_there_are() -> None:
    share = settings_of_process(ServerSettings(connections=4, reserved_connections=2), 32)
    assert (share.connections, share.reserved_connections) == (1, 1)
    assert task_of_process(TASK.model_copy(update={"processes": 32, "max_queue": 4})).max_queue == 1


# sums


def metrics(*seconds: float, depth: int = 0, bad: int = 0) -> Metrics:
    found = Metrics("m", "r1")
    found.depth = lambda: depth
    for each in seconds:
        found.queue.observe(each)
        found.requests[200] += 1
    if bad:
        found.requests[418] = bad
    return found


def test_metrics_of_several_processes_are_those_of_one_that_did_it_all() -> None:
    parts = [metrics(0.1, 0.2, depth=1), metrics(0.3, depth=2, bad=4)]
    summed = expose(sum_families(describe(each.families()) for each in parts))
    whole = metrics(0.1, 0.2, 0.3, depth=3, bad=4)
    assert sorted(summed.decode().splitlines()) == sorted(whole.expose().decode().splitlines())


def test_of_a_process_that_has_ended_only_what_grows_counts() -> None:
    ended = counted(describe(metrics(0.1, depth=5).families()))
    running = describe(metrics(0.2, depth=1).families())
    text = expose(sum_families([ended, running])).decode()
    assert 'enginewright_requests_total{code="200",model="m",revision="r1"} 2.0' in text
    assert 'enginewright_queue_depth{model="m",revision="r1"} 1.0' in text


def test_sums_leave_what_is_summed_as_it_is() -> None:
    one = describe(metrics(0.1).families())
    sum_families([one, one])
    assert one == describe(metrics(0.1).families())


def test_counts_of_a_size_are_added_and_its_best_warm_up_kept() -> None:
    first = [
        ComputeBucket(elements=8, warmup_seconds=0.2, count=1, seconds=0.5, untimed=1),
        ComputeBucket(elements=16, count=3, seconds=0.3),
    ]
    second = [ComputeBucket(elements=8, warmup_seconds=0.1, count=2, seconds=0.25)]
    assert sum_buckets([first, second]) == (
        ComputeBucket(elements=8, warmup_seconds=0.1, count=3, seconds=0.75, untimed=1),
        ComputeBucket(elements=16, count=3, seconds=0.3),
    )
    assert sum_buckets([[], []]) == ()


def latencies(name: int, count: int, *windows: tuple[float, float]) -> LatencySeries:
    return LatencySeries(source="requests", name=str(name), count=count, windows=windows)


def test_windows_of_all_processes_are_in_order_of_time() -> None:
    first = [latencies(8, 25, (1.0, 0.1), (3.0, 0.3))]
    second = [latencies(8, 12, (2.0, 0.2)), latencies(64, 1)]
    assert merge_latencies([first, second]) == (
        latencies(8, 37, (1.0, 0.1), (2.0, 0.2), (3.0, 0.3)),
        latencies(64, 1),
    )


def test_merged_latencies_have_the_bounds_of_their_message() -> None:
    long = tuple((float(at), 0.1) for at in range(WINDOWS))
    first = [latencies(size, size, *long) for size in range(1, SERIES + 1)]
    second = [latencies(size, size, *long) for size in range(2, SERIES + 4)]
    merged = merge_latencies([first, second])
    assert len(merged) == SERIES
    assert {each.name for each in merged} == {str(size) for size in range(4, SERIES + 4)}
    assert all(len(each.windows) <= WINDOWS for each in merged)
    assert merged[0].windows[-1] == (WINDOWS - 1.0, 0.1), "the latest are kept"


def test_statistics_of_several_processes_are_those_of_one_that_did_it_all() -> None:
    first, second, whole = (Metrics("m", "r1") for _ in range(3))
    for number, part in enumerate((first, first, second)):
        for each in (part, whole):
            each.compute.observe(0.25)
            each.total[2].observe(0.5)
            each.runs.add(1 + number % 2, 0.25, succeeded=True)
    summed = sum_statistics([statistics(TASK, first), statistics(TASK, second)])
    assert summed == statistics(TASK, whole)
    assert sum_statistics([]) is None


# golden inferences


def test_the_result_that_shows_most_that_something_is_wrong_counts() -> None:
    right = ProbeResult("s", 0.1, 0.0, compute=0.1)
    slow = ProbeResult("s", 0.2, 0.0, compute=0.2)
    busy = ProbeResult("s", 0.0, 0.0, not_run="the server is too busy")
    late = ProbeResult("s", 30.0, 0.0, not_run="the server did not respond", late=True)
    fails = ProbeResult("s", 0.0, 0.0, not_run="the server returned 500", fails=True)
    wrong = ProbeResult("s", 0.1, 0.0, wrong="output 'y' differs")
    gone = ProbeResult("s", 0.0, 0.0, not_run="the server does not listen", unreachable=True)
    order = [right, slow, busy, late, fails, wrong, gone]
    for index, each in enumerate(order[1:], 1):
        assert worst(order[: index + 1]) is each
        assert worst(order[index::-1]) is each
