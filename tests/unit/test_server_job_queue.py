"""Which jobs run at the same time, and which alone, so that times can be compared."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from enginewright_serving.server.inference import job_queue
from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.job import Job
from enginewright_serving.server.inference.job_queue import JobQueue
from enginewright_serving.transport.call import InferenceCall

from tests.support.played_clients import play_job


def job(*, reserved: bool = False, rows: int = 0, latest: float = 0.0) -> Job:
    made = play_job(call=InferenceCall(reserved=reserved), rows=rows)
    made.latest = latest
    return made


class Thread:
    """One of the queue's threads, which takes jobs when the test says so."""

    def __init__(self, queue: JobQueue, number: int) -> None:
        self._queue, self._number = queue, number
        self._jobs: list[Job] = []
        self._taker: threading.Thread | None = None
        self.taken = threading.Event()

    def take(self) -> list[Job]:
        self.begin()
        assert self.taken.wait(20)
        return self._jobs

    def begin(self) -> None:
        """Wait for jobs in the background."""
        self.taken.clear()
        self._taker = threading.Thread(target=self._take, daemon=True)
        self._taker.start()

    def finish(self) -> None:
        self._queue.finish(self._number, self._jobs)

    def _take(self) -> None:
        self._jobs = self._queue.take(self._number)
        self.taken.set()


@pytest.fixture(autouse=True, scope="module")
def patient() -> Iterator[None]:
    """What must be alone waits as long as the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_queue, "_LEAST_PATIENCE", 60.0)
        yield


def waiting(queue: JobQueue) -> int:
    """Return the number of threads that wait for the queue to change."""
    changed: Any = queue._changed
    return len(changed._waiters)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.0001)


def test_runs_at_the_same_time_are_not_timed_and_lone_ones_are() -> None:
    queue = JobQueue(BatchLimits(), 2)
    first, second = Thread(queue, 0), Thread(queue, 1)
    jobs = [job() for _ in range(3)]
    for item in jobs[:2]:
        queue.put(item)
    assert [first.take(), second.take()] == [[jobs[0]], [jobs[1]]]
    first.finish()
    second.finish()  # it was alone at its end, but not at its beginning
    queue.put(jobs[2])
    assert first.take() == [jobs[2]]
    first.finish()
    assert [item.alone for item in jobs] == [False, False, True]


def test_a_golden_inference_waits_for_the_others_and_they_for_it() -> None:
    queue = JobQueue(BatchLimits(), 3)
    threads = [Thread(queue, number) for number in range(3)]
    before, golden, after = job(), job(reserved=True), job()
    queue.put(before)
    threads[0].take()
    queue.put(golden)
    threads[1].begin()
    until(lambda: waiting(queue) == 1)
    queue.put(after)
    threads[2].begin()
    until(lambda: waiting(queue) == 2)
    assert not threads[1].taken.is_set()
    threads[0].finish()
    assert threads[1].taken.wait(20)
    until(lambda: waiting(queue) == 1)
    assert not threads[2].taken.is_set()
    threads[1].finish()
    assert threads[2].taken.wait(20)
    threads[2].finish()
    assert before.alone
    assert golden.alone
    assert after.alone


def test_golden_inference_does_not_wait_for_a_hanging_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "_LEAST_PATIENCE", 0.01)
    queue = JobQueue(BatchLimits(), 3)
    hangs, others, third = Thread(queue, 0), Thread(queue, 1), Thread(queue, 2)
    golden = job(reserved=True)
    queue.put(job())
    hangs.take()
    queue.put(golden)
    assert others.take() == [golden]
    queue.put(job())
    third.take()
    others.finish()
    assert not golden.alone, "its time is not compared"


def test_under_constant_load_a_run_is_alone_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "_SECONDS_BESIDE", 0.0)
    queue = JobQueue(BatchLimits(), 2)
    threads = [Thread(queue, number) for number in range(2)]
    jobs = [job() for _ in range(60)]
    for item in jobs:
        queue.put(item)
    for thread in threads:
        thread.take()
    for _ in range(len(jobs) - 2):  # one ends, and takes the next while the other runs
        until(lambda: any(thread.taken.is_set() for thread in threads))
        ends = next(thread for thread in threads if thread.taken.is_set())
        threads.sort(key=lambda thread: thread is ends)  # the other one is next
        ends.finish()
        ends.begin()
        until(lambda: sum(item.taken.is_set() for item in threads) + waiting(queue) == 2)
    alone = [number for number, item in enumerate(jobs[:-2]) if item.alone]
    assert len(alone) == 3
    assert all(later - earlier > 16 for earlier, later in pairwise(alone))


@pytest.mark.parametrize("left", [0.0, 5.2])
def test_a_request_that_is_to_run_alone_waits_no_longer_than_its_deadline(
    left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = JobQueue(BatchLimits(), 2)
    long, short = Thread(queue, 0), Thread(queue, 1)
    queue.put(job())
    long.take()
    monkeypatch.setattr(job_queue, "_RUNS_BESIDE", 0)
    monkeypatch.setattr(job_queue, "_MARGIN", 5.0)
    urgent = job()
    urgent.deadline = time.monotonic() + left
    queue.put(urgent)
    assert short.take() == [urgent]
    assert time.monotonic() < urgent.deadline + 5.0
    short.finish()
    assert not urgent.alone


# fault: Requests | a golden inference waits for the runs beside it to end, and a request has a tight deadline | it
#   waits no longer than that request can, and its time is not compared | the request is in time
@pytest.mark.parametrize("first", ["the golden inference", "the request"])
def test_a_golden_inference_that_waits_to_be_alone_lets_no_request_expire(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "_MARGIN", 5.0)
    queue = JobQueue(BatchLimits(), 2)
    long, short = Thread(queue, 0), Thread(queue, 1)
    queue.put(job())
    long.take()
    golden, urgent = job(reserved=True, latest=time.monotonic()), job()
    if first == "the golden inference":
        queue.put(golden)
        short.begin()
        until(lambda: waiting(queue) == 1)
    urgent.deadline = time.monotonic() + 5.2
    queue.put(urgent)
    if first == "the request":
        queue.put(golden)
        short.begin()
    assert short.taken.wait(20)
    assert urgent.deadline - 5.0 <= time.monotonic() < urgent.deadline
    short.finish()
    assert not golden.alone, "its time is not compared"
    assert short.take() == [urgent]
    short.finish()
    long.finish()


def test_a_golden_inference_whose_client_has_left_holds_up_no_request() -> None:
    queue = JobQueue(BatchLimits(), 2)
    long, idle = Thread(queue, 0), Thread(queue, 1)
    queue.put(job())
    long.take()
    golden, request = job(reserved=True), job()
    queue.put(golden)
    idle.begin()
    until(lambda: waiting(queue) == 1)
    golden.call.abandoned = True
    queue.put(request)
    assert idle.taken.wait(20)
    idle.finish()
    assert idle.take() == [request]
    idle.finish()
    long.finish()


def test_a_golden_inference_that_is_alone_lets_no_request_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_queue, "_MARGIN", 5.0)
    queue = JobQueue(BatchLimits(), 2)
    busy, idle = Thread(queue, 0), Thread(queue, 1)
    golden, patient, urgent = job(reserved=True), job(), job()
    queue.put(golden)
    assert busy.take() == [golden]
    queue.put(patient)
    idle.begin()
    until(lambda: waiting(queue) == 1)
    urgent.deadline = time.monotonic() + 5.2
    queue.put(urgent)
    assert idle.taken.wait(20)
    assert urgent.deadline - 5.0 <= time.monotonic() < urgent.deadline
    idle.finish()
    assert idle.take() == [urgent]
    busy.finish()
    idle.finish()
    assert not golden.alone, "its time is not compared"


def test_a_deferred_golden_inference_waits_behind_no_other_that_may_wait_longer() -> None:
    queue = JobQueue(BatchLimits(), 1)
    thread, now = Thread(queue, 0), time.monotonic()
    patient = job(reserved=True, latest=now + 60.0)
    urgent = job(reserved=True, latest=now)
    first, second = job(), job()
    for item in (patient, urgent, first, second):  # requests wait at any time
        queue.put(item)
    assert thread.take() == [urgent]
    thread.finish()
    assert thread.take() == [first]
    thread.finish()
    patient.call.abandoned = True
    assert thread.take() == [patient]


def test_deferred_golden_inference_skips_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "_LEAST_PATIENCE", 0.01)
    queue = JobQueue(BatchLimits(), 2)
    busy, idle = Thread(queue, 0), Thread(queue, 1)
    queue.put(job())
    busy.take()
    golden = job(reserved=True, latest=time.monotonic() + 0.05)
    idle.begin()
    until(lambda: waiting(queue) == 1)
    queue.put(golden)
    assert idle.taken.wait(20)
    assert time.monotonic() >= golden.latest
    idle.finish()
    assert not golden.alone
    busy.finish()


@pytest.mark.parametrize("urgent", [0, 1])
def test_requests_wait_no_longer_than_their_deadlines(
    urgent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "_MARGIN", 5.0)
    queue = JobQueue(BatchLimits(rows=4, delay=60.0), 1)
    thread, jobs = Thread(queue, 0), [job(rows=1) for _ in range(2)]
    now = time.monotonic()
    for item in jobs:
        item.queued = now
        queue.put(item)
    jobs[urgent].deadline = now + 5.2
    assert thread.take() == jobs
    assert time.monotonic() < jobs[urgent].deadline
    thread.finish()


def test_requests_wait_for_others_only_if_their_runs_end_before_their_deadlines() -> None:
    queue = JobQueue(BatchLimits(rows=4, delay=60.0), 1)
    thread, before, late = Thread(queue, 0), job(rows=1), job(rows=1)
    before.queued = 0.0  # it waits no more
    queue.put(before)
    thread.take()
    before.started, before.finished = 1.0, 21.0  # so long did it take
    thread.finish()
    late.queued = time.monotonic()
    late.deadline = late.queued + 20.0
    queue.put(late)
    assert thread.take() == [late]
    thread.finish()
