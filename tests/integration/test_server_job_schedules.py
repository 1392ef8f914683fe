"""Requests that expire, leave, are evicted, batched, divided and fail at random moments, with real threads of the model.

In every schedule, each request gets exactly one answer, its own, in its time; nothing hangs; counts add up.
"""

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import pytest
from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.job import Job, JobState
from enginewright_serving.server.inference.results import InferenceResults
from enginewright_serving.server.inference.run_errors import Fault
from enginewright_serving.server.inference.worker import InferenceWorker
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.observe.metrics import Metrics
from enginewright_serving.transport.call import InferenceCall
from numpy.typing import NDArray
from typing_extensions import override

from tests.support.effort import examples
from tests.support.played_clients import Panic, Plan, PlayedClient, PlayedHealth

SCHEDULES: Final = examples(20_000)
CHUNK: Final = 1000  # schedules of one event loop and its workers
CAPACITY: Final = 6  # requests that wait: eviction is part of it
ACTIONS: Final = 24  # of a schedule
SCHEDULING: Final = 0.25  # seconds that a loaded machine may let a thread wait between looking at the clock and a run
HANGS: Final = 60.0  # seconds after which a schedule has not ended


def generator(seed: int) -> random.Random:
    """Return the source of chance for one seed; threads decide the rest."""
    return random.Random(seed)  # noqa: S311 - of a schedule


@dataclass(frozen=True)
class UnreliableLimits(BatchLimits):
    """Limits that cannot say at times how many requests to run at once."""

    chance: random.Random = field(default_factory=lambda: generator(1))

    @override
    def whole(self, rows: Sequence[int]) -> int:
        if self.chance.random() < 0.1:  # meanwhile requests expire that were in time a moment ago
            time.sleep(0.0005)
        if self.chance.random() < 0.02:
            raise MemoryError("no memory to divide a batch")
        # at times in parts
        return min(super().whole(rows), self.chance.randint(1, len(rows)))


class Client(PlayedClient):
    """One client, which looks at its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong = ""
        self.left = self.evicted = False

    @override
    def succeed(self, job: Job) -> None:
        super().succeed(job)
        assert job.arrays is not None
        if not np.array_equal(job.arrays[0], compute(job.feeds["x"])):
            self.wrong = f"{job.feeds} was answered with {job.arrays}"
        if job.deadline and job.started > job.deadline + SCHEDULING:
            self.wrong = f"its run began {job.started - job.deadline} s after its deadline"


def compute(x: NDArray[Any]) -> NDArray[Any]:
    """Return what the model makes of its input."""
    return x * 2 + 1


class Pod:
    """A worker, and the requests of the current schedule."""

    def __init__(self, limits: BatchLimits, threads: int) -> None:
        self.metrics = Metrics("m", "r1")
        self.results = InferenceResults(self.metrics, 0.004)
        self.results.observe_runs(cast("Any", PlayedHealth()), ComputeBuckets())
        self.lost: list[str] = []
        self.threads = threads
        self._chance = generator(2)
        self.worker = InferenceWorker(
            *(self._run, self._judge, CAPACITY, limits, threads, self.results.finish),
            lambda: self.lost.append(threading.current_thread().name),
        )
        self.jobs: list[tuple[Job, Client]] = []
        self._computed = 0  # clients' requests that ran, and whose results were needed

    def submit(self, chance: random.Random) -> None:
        """Submit a request, or refuse it where the queue is full and none waits that is less urgent."""
        call, client = InferenceCall(), Client()
        call.copy = chance.random() < 0.1
        call.reserved = not call.copy and chance.random() < 0.15
        call.defer = chance.choice([0.0, 0.0005, 0.003]) if call.reserved else 0.0
        timeout = chance.choice([0.0, 0.0, 0.0002, 0.001, 0.003])
        plan = Plan(timeout=timeout, priority=chance.randint(1, 5))
        shape = (chance.randint(1, 2), chance.randint(1, 2))
        x = np.full(shape, chance.randint(0, 1000), np.float64)
        job = Job(call, plan, {"x": x}, client, time.monotonic())
        if self.worker.full and not call.reserved:
            self.evict(job.priority)
        self.jobs.append((job, client))
        if timeout:
            loop = asyncio.get_running_loop()
            job.timer = loop.call_later(timeout, self.results.expire, job)
        elif not call.reserved:
            job.deadline = job.queued + 0.004
            self.results.waiting[job] = None
        self.worker.submit(job)

    def evict(self, priority: int) -> None:
        """Refuse a waiting request for a more urgent one."""
        job = self.worker.give_up(priority)
        if job is not None:
            next(client for item, client in self.jobs if item is job).evicted = True
            self.results.refuse(job, "a more urgent request needs its place")

    def leave(self, chance: random.Random) -> None:
        """Let a client disconnect, whose request may be anywhere."""
        job, client = chance.choice(self.jobs)
        if not client.sent:
            client.left = job.call.abandoned = True

    async def end(self) -> None:
        """Wait until no request is outstanding, with what the server does every second."""
        limit = time.monotonic() + HANGS
        while self.worker.outstanding:
            assert not self.lost
            assert time.monotonic() < limit, [job.state.name for job, _ in self.jobs]
            self.results.expire_waiting(time.monotonic())
            await asyncio.sleep(0.0002)

    def check(self) -> None:
        """Check the answers of the schedule, and forget them."""
        computed = 0
        for job, client in self.jobs:
            assert not client.wrong, client.wrong
            assert not client.aborted, "for an internal error"
            assert job.state in {JobState.DONE, JobState.RECEIVED}
            answers: list[int | None] = [*client.sent] or ([None] if client.left else [])
            (status,) = answers
            if status in {None, 503, 504}:
                assert client.released
            assert status != 503 or client.evicted
            assert status != 504 or time.monotonic() > job.deadline > 0
            assert job.timer is None or job.timer.cancelled() or job.answered or client.sent
            computed += job.call.of_client and job.started > 0 and not job.answered
        assert not self.results.waiting
        assert self.worker.depth == 0
        assert self.worker.busy_seconds(time.monotonic()) == 0.0
        self._computed += computed
        assert self.metrics.compute.count == self._computed
        self.jobs.clear()

    def _run(self, _outputs: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        time.sleep(self._chance.choice([0.0, 0.0, 0.0001, 0.0005]))
        if self._chance.random() < 0.05:
            raise self._chance.choice([ValueError, MemoryError, Panic])("a run fails")
        return [compute(feeds["x"])]

    def _judge(self, _plan: Any, _feeds: Any, _error: Exception) -> Fault:
        if self._chance.random() < 0.1:
            raise RuntimeError("the cause cannot be determined")
        return self._chance.choice([Fault.CLIENT, Fault.SERVER])


LIMITS: Final = (
    (BatchLimits(), 1),
    (BatchLimits(rows=4), 1),
    (UnreliableLimits(rows=4, sizes=(1, 2, 4)), 2),
    (UnreliableLimits(rows=3, delay=0.0005), 1),
    (BatchLimits(rows=4, delay=0.0005), 3),
    (BatchLimits(rows=4, turn_rows=2, turn_elements=4), 1),
    (UnreliableLimits(rows=4, turn_rows=4, turn_elements=8), 2),
)


async def play(pod: Pod, seed: int) -> None:
    """Play one schedule."""
    chance = generator(seed)
    pod.submit(chance)
    for _ in range(chance.randint(1, ACTIONS)):
        match chance.randint(0, 9):
            case 0:
                pod.evict(chance.randint(1, 5))
            case 1 | 2:
                pod.leave(chance)
            case 3:
                pod.results.expire_waiting(time.monotonic())
            case 4:
                await asyncio.sleep(chance.choice([0.0, 0.0001, 0.001]))
            case _:
                pod.submit(chance)
    await pod.end()
    pod.check()


async def play_all(seeds: Sequence[int]) -> list[Pod]:
    pods = [Pod(limits, threads) for limits, threads in LIMITS]
    for seed in seeds:
        await play(pods[seed % len(pods)], seed)
    for pod in pods:  # as before a process ends
        pod.submit(generator(3))
        pod.worker.stop_deferring()
        await pod.end()
        pod.check()
        assert not pod.lost
    return pods


def test_every_request_gets_its_own_answer_once_whatever_happens_to_it_and_to_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")  # thousands of runs fail
    for begin in range(0, SCHEDULES, CHUNK):
        asyncio.run(play_all(range(begin, min(begin + CHUNK, SCHEDULES))))
        caplog.clear()
