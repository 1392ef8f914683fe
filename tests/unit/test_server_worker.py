"""Jobs in the model's threads: each is answered once, also when others expire or a run raises."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self, cast

import numpy as np
import pytest
from enginewright_serving.server.api.grpc.responder import GrpcResponder
from enginewright_serving.server.api.http_responder import HttpResponder
from enginewright_serving.server.inference import runs as model_runs
from enginewright_serving.server.inference import worker as worker_module
from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.idle import Pauses
from enginewright_serving.server.inference.job import Job
from enginewright_serving.server.inference.job_queue import JobQueue
from enginewright_serving.server.inference.results import InferenceResults
from enginewright_serving.server.inference.run_errors import Fault
from enginewright_serving.server.inference.worker import InferenceWorker
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.observe.metrics import Metrics
from enginewright_serving.server.protocol.priorities import LOWEST
from enginewright_serving.transport.call import InferenceCall
from typing_extensions import override

from tests.support.played_clients import Plan, PlayedClient, PlayedHealth, play_job

pytestmark = pytest.mark.asyncio(loop_factories=["real"])  # threads take part

SECRET = "a detail for the log only"


class Client(PlayedClient):
    """A client that gets back what it sent."""

    @override
    def succeed(self, job: Job) -> None:
        super().succeed(job)
        assert job.arrays is not None
        np.testing.assert_array_equal(job.arrays[0], job.feeds["x"])


class Bench:
    """A worker whose first run takes as long as a test wants."""

    def __init__(self, limits: BatchLimits, capacity: int = 64) -> None:
        self.metrics = Metrics("m", "r1")
        self.results = InferenceResults(self.metrics, 60.0)
        self.results.observe_runs(cast("Any", PlayedHealth()), ComputeBuckets())
        self._end = threading.Event()
        self._begun = threading.Event()
        self.raises: BaseException | None = None
        self.judge: Callable[[], Fault] = lambda: Fault.SERVER
        self.lost: list[str] = []
        self.worker = InferenceWorker(
            *(self._run, self._judge, capacity, limits, 1, self.results.finish),
            lambda: self.lost.append(threading.current_thread().name),
        )
        self.jobs: list[tuple[Job, Client]] = []

    def __enter__(self) -> Self:
        self.submit(1)
        assert self._begun.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()

    def submit(
        self,
        value: float,
        plan: Plan | None = None,
        width: int = 2,
        call: InferenceCall | None = None,
    ) -> Job:
        client = Client()
        job = play_job(client, value, plan=plan, call=call, width=width)
        self.jobs.append((job, client))
        self.worker.submit(job)
        return job

    async def answer_all(self) -> list[list[int]]:
        """End the first run; return what the clients of all jobs were sent, once all are answered."""
        self._end.set()
        async with asyncio.timeout(20):
            while self.worker.outstanding:
                assert not self.lost
                await asyncio.sleep(0.001)
        assert not any(client.aborted for _, client in self.jobs)
        return [client.sent for _, client in self.jobs]

    def _run(self, _outputs: list[str], feeds: dict[str, Any]) -> list[Any]:
        self._begun.set()
        assert self._end.wait(20)
        if self.raises is not None and 2 in feeds["x"]:
            raise self.raises
        return [feeds["x"]]

    def _judge(self, _plan: Any, _feeds: Any, _error: Exception) -> Fault:
        return self.judge()


BATCHES = [BatchLimits(), BatchLimits(rows=4), BatchLimits(rows=4, delay=0.002)]


@pytest.mark.parametrize("limits", BATCHES, ids=["one by one", "batches", "batches that wait"])
async def test_a_request_that_expires_in_the_queue_leaves_it_whole(limits: BatchLimits) -> None:
    with Bench(limits) as bench:
        bench.submit(2)
        late = bench.submit(3, Plan())
        bench.submit(4)
        assert bench.worker.depth == 3
        bench.results.expire(late)
        assert bench.worker.depth == 2
        assert late.feeds, "a thread may still read it"
        assert bench.jobs[2][1].released
        assert await bench.answer_all() == [[200], [200], [504], [200]]


async def test_a_golden_inference_that_expires_while_it_is_deferred_leaves_the_queue() -> None:
    with Bench(BatchLimits()) as bench:
        client = Client()
        job = play_job(client, call=InferenceCall(reserved=True, defer=60.0))
        bench.worker.submit(job)
        assert bench.worker.outstanding == 2
        bench.results.expire(job)
        assert bench.worker.outstanding == 1
        assert (client.sent, client.released) == ([504], True)
        assert await bench.answer_all() == [[200]]


async def test_an_idle_thread_that_takes_a_golden_inference_makes_no_room_for_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look, looks = JobQueue._next, threading.Event()

    def look_later(queue: JobQueue) -> Any:
        return look(queue) if looks.is_set() else None

    monkeypatch.setattr(JobQueue, "_next", look_later)
    bench = Bench(BatchLimits(), capacity=2)
    bench.submit(1, call=InferenceCall(reserved=True, defer=1e-9))
    for value in (2, 3):
        assert not bench.worker.full
        bench.submit(value)
    assert bench.worker.full, "the thread is about to take the golden inference"
    looks.set()
    bench.worker.stop_deferring()
    assert await bench.answer_all() == [[200]] * 3


def fails(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


class LimitsThatFail(BatchLimits):
    """Raises once several jobs are to run."""

    @override
    def whole(self, rows: Any) -> int:
        if len(rows) > 1:
            raise KeyError(SECRET)
        return super().whole(rows)


ERRORS = [KeyError(SECRET), MemoryError(SECRET), SystemExit(SECRET), KeyboardInterrupt(SECRET)]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_an_error_while_a_batch_is_formed_fails_its_requests_only(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Bench(BatchLimits(rows=4)) as bench, monkeypatch.context() as patch:
        patch.setattr(Job, "joins", fails(error))
        bench.submit(2)
        bench.submit(3)  # the last one that waits joins no other
        assert await bench.answer_all() == [[200], [500], [200]]
        check_unexpected(caplog, bench)
        patch.undo()
        bench.submit(4)
        assert (await bench.answer_all())[-1] == [200]


async def test_a_late_request_whose_batch_cannot_be_formed_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Bench(BatchLimits(rows=4)) as bench, monkeypatch.context() as patch:
        patch.setattr(Job, "joins", fails(MemoryError(SECRET)))
        bench.submit(2).deadline = time.monotonic() - 1.0
        bench.submit(3)
        assert await bench.answer_all() == [[200], [504], [200]]


def check_unexpected(caplog: pytest.LogCaptureFixture, bench: Bench) -> None:
    """Check that one error was logged with its trace, of which clients see the reference only."""
    (record,) = [log_record for log_record in caplog.records if log_record.levelno >= logging.ERROR]
    assert record.exc_info is not None
    assert SECRET in caplog.text
    for message in [item for _, responder in bench.jobs for item in responder.messages]:
        assert SECRET not in message
        assert message.split(" reference ")[1].split()[0] in record.getMessage()


async def test_error_in_dividing_a_batch_fails_its_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Bench(LimitsThatFail(rows=4)) as bench:
        bench.submit(2)
        bench.submit(3)
        assert await bench.answer_all() == [[200], [500], [500]]
        check_unexpected(caplog, bench)
        assert bench.worker.busy_seconds(time.monotonic()) == 0.0
        bench.submit(4)
        assert (await bench.answer_all())[-1] == [200]


@pytest.mark.parametrize("name", ["join", "split"])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_error_in_joining_or_splitting(
    name: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Bench(BatchLimits(rows=4)) as bench, monkeypatch.context() as patch:
        patch.setattr(model_runs, name, fails(error))
        bench.submit(2)
        bench.submit(3)
        expected = 200 if isinstance(error, Exception) else 500  # they run again, one by one
        assert await bench.answer_all() == [[200], [expected], [expected]]
        bench.submit(4)
        assert (await bench.answer_all())[-1] == [200]


@pytest.mark.parametrize("limits", BATCHES, ids=["one by one", "batches", "batches that wait"])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_thread_survives_any_error_of_a_run(
    error: BaseException, limits: BatchLimits
) -> None:
    with Bench(limits) as bench:
        bench.raises = error
        bench.submit(2)
        bench.submit(3, width=3)
        assert await bench.answer_all() == [[200], [500], [200]]
        assert bench.worker.busy_seconds(time.monotonic()) == 0.0
        bench.submit(4)
        assert (await bench.answer_all())[-1] == [200]


async def test_an_error_while_a_thread_waits_for_requests_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look, errors = JobQueue._next, [MemoryError(SECRET)]

    def fail_once(queue: JobQueue) -> Any:
        if errors:
            raise errors.pop()
        return look(queue)

    with Bench(BatchLimits()) as bench:
        monkeypatch.setattr(JobQueue, "_next", fail_once)
        bench.submit(2)
        assert await bench.answer_all() == [[200], [200]]
    assert not errors
    assert SECRET in caplog.text


@pytest.mark.parametrize("how", ["expires", "is given up"])
async def test_unanswerable_request_loses_its_connection(how: str) -> None:
    with Bench(BatchLimits()) as bench:
        job, responder = bench.submit(2), bench.jobs[1][1]
        aborted: list[Job] = []
        given: Any = responder
        given.fail, given.abort = fails(RuntimeError("internal")), lambda: aborted.append(job)
        if how == "expires":
            bench.results.expire(job)
        else:
            assert bench.worker.give_up(0) is job
            bench.results.refuse(job, "another one needs its place")
        assert aborted == [job]
        assert responder.released
        assert await bench.answer_all() == [[200], []]


async def test_charge_is_released_with_the_connection() -> None:
    released: list[Any] = []
    closed: list[Any] = []
    request, call = object(), SimpleNamespace(fail=closed.append)
    owner: Any = SimpleNamespace(release=released.append, abort=lambda: closed.append(request))
    unused: Any = None
    http: Any = request
    HttpResponder(owner, unused, owner, http, unused, None).abort()
    grpc: Any = call
    GrpcResponder(owner, unused, grpc, unused, False).abort()
    assert released == [request, call]
    assert len(closed) == 2


async def test_a_request_that_expires_after_a_thread_has_taken_it_keeps_its_inputs() -> None:
    queue = JobQueue(BatchLimits(rows=4), 1)
    results = InferenceResults(Metrics("m", "r1"), 60.0)
    jobs = [play_job() for _ in range(2)]
    for job in jobs:
        queue.put(job)
    assert queue.take(0) == jobs
    assert not queue.remove(jobs[1])
    results.expire(jobs[1])
    assert jobs[1].answered
    assert jobs[1].feeds


async def test_failing_batch_is_no_stuck_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now, busy = [1.0], list[float]()
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with Bench(BatchLimits(rows=8)) as bench:

        def step() -> None:
            now[0] += 1.0
            busy.append(bench.worker.busy_seconds(now[0]))

        def judge() -> Fault:
            step()
            return Fault.CLIENT

        def fail(*_: Any) -> Any:
            step()
            raise ValueError(SECRET)

        bench.judge = judge
        for value in range(8):
            bench.submit(value)
        monkeypatch.setattr(bench.worker._runs, "_run", fail)
        assert await bench.answer_all() == [[200], *([[400]] * 8)]
    assert busy == [1.0] * (1 + 8 + 8)  # the batch, each of it alone, and who is at fault


async def test_abandoned_request_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench(BatchLimits(rows=4)) as bench:
        first, left, expired, late = [bench.submit(value) for value in (2, 3, 4, 5)]
        loop, sizes = asyncio.get_running_loop(), list[int]()

        def run(_: Any, feeds: dict[str, Any]) -> list[Any]:
            sizes.append(len(feeds["x"]))
            if len(feeds["x"]) > 1:
                left.call.abandoned = True
                late.deadline = time.monotonic() - 1.0
                raise ValueError(SECRET)
            if sizes == [4, 1]:  # the others wait for theirs, and may expire
                done = threading.Event()
                loop.call_soon_threadsafe(bench.results.expire, expired)
                loop.call_soon_threadsafe(done.set)
                assert done.wait(20)
            return [feeds["x"]]

        monkeypatch.setattr(bench.worker._runs, "_run", run)
        assert await bench.answer_all() == [[200], [200], [], [504], [504]]
        assert sizes == [4, 1]
        assert first.arrays is not None


async def test_expired_request_is_in_no_later_part(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench(BatchLimits(rows=4, sizes=(1, 2))) as bench:
        jobs = [bench.submit(value) for value in (2, 3, 4, 5)]
        ran = list[list[float]]()

        def run(_: Any, feeds: dict[str, Any]) -> list[Any]:
            ran.append(feeds["x"][:, 0].tolist())
            jobs[2].deadline = time.monotonic() - 1.0
            return [feeds["x"]]

        monkeypatch.setattr(bench.worker._runs, "_run", run)
        assert await bench.answer_all() == [[200], [200], [200], [504], [200]]
        assert ran == [[2.0, 3.0], [5.0]]
        assert {size: n for size, (n, _) in bench.metrics.runs.succeeded.items()} == {
            1: 2,
            2: 1,
        }


async def test_run_counts_though_its_first_request_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench(BatchLimits(rows=4)) as bench:
        late = bench.submit(2)
        bench.submit(3)
        loop, attempt = asyncio.get_running_loop(), bench.worker._runs.attempt

        def expire_first(jobs: list[Job]) -> bool:
            done = threading.Event()
            loop.call_soon_threadsafe(bench.results.expire, late)
            loop.call_soon_threadsafe(done.set)
            assert done.wait(20)
            return attempt(jobs)

        monkeypatch.setattr(bench.worker._runs, "attempt", expire_first)
        assert await bench.answer_all() == [[200], [504], [200]]
        assert {size: n for size, (n, _) in bench.metrics.runs.succeeded.items()} == {
            1: 1,
            2: 1,
        }
        assert bench.metrics.compute.count == 2


async def test_a_run_counts_though_a_copy_of_a_request_is_its_first() -> None:
    with Bench(BatchLimits(rows=4)) as bench:
        bench.submit(2, call=InferenceCall(copy=True))
        for value in (3, 4):  # of the priority that copies have
            bench.submit(value, Plan(priority=LOWEST))
        assert await bench.answer_all() == [[200]] * 4
        assert {size: n for size, (n, _) in bench.metrics.runs.succeeded.items()} == {
            1: 1,
            3: 1,
        }


@pytest.mark.parametrize("limits", BATCHES, ids=["one by one", "batches", "batches that wait"])
async def test_an_error_as_a_request_leaves_the_queue_does_not_lose_it(
    limits: BatchLimits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end, errors = Pauses.end, [MemoryError(SECRET)]

    def fail_once(pauses: Pauses, now: float) -> None:
        if errors:
            raise errors.pop()
        end(pauses, now)

    with Bench(limits) as bench:
        monkeypatch.setattr(Pauses, "end", fail_once)
        bench.submit(2)
        bench.submit(3, width=3)
        assert await bench.answer_all() == [[200], [200], [200]]
    assert not errors
    assert SECRET in caplog.text


async def test_a_connection_that_cannot_be_closed_delays_no_other_answer() -> None:
    with Bench(BatchLimits(rows=4)) as bench:
        bench.submit(2)
        given: Any = bench.jobs[1][1]
        given.succeed = given.fail = given.abort = fails(RuntimeError("internal"))
        bench.submit(3)
        assert await bench.answer_all() == [[200], [], [200]]
