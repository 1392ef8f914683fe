"""Requests that the event loop runs itself."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.job import Job, JobState
from enginewright_serving.server.inference.runs import ModelRuns
from enginewright_serving.server.inference.turns import Turns

from tests.support.played_clients import Panic, PlayedClient, play_job


async def test_a_request_that_cannot_be_answered_delays_no_other() -> None:
    client = PlayedClient()
    answered: list[Job] = []

    def finish(job: Job) -> None:
        answered.append(job)
        if len(answered) in {1, 3}:
            raise RuntimeError("an internal error")

    runs = ModelRuns(lambda _, feeds: [feeds["x"]])
    limits = BatchLimits(rows=2, turn_rows=2, turn_elements=4)
    turns = Turns(runs, limits, finish, hand_over=answered.append)
    jobs = [play_job(client) for _ in range(5)]
    jobs[2].answered = True  # at its timeout
    for item in jobs:
        turns.add(item)
    for _ in range(100):  # turns of the event loop, more than enough
        await asyncio.sleep(0)
    assert len(turns.waiting) == 0
    assert set(answered) == set(jobs)
    assert len(answered) == len(jobs)
    assert client.aborted == 2
    turns.add(play_job(client))
    await asyncio.sleep(0)
    assert len(answered) == 6


async def test_a_request_that_is_handed_over_waits_as_if_it_had_not_run() -> None:
    handed: list[Job] = []

    def fail(_: Any, __: Any) -> Any:
        raise ValueError("one of them is at fault")

    limits = BatchLimits(rows=2, turn_rows=2, turn_elements=4)
    turns = Turns(ModelRuns(fail), limits, handed.append, hand_over=handed.append)
    jobs = [play_job() for _ in range(2)]
    for job in jobs:
        turns.add(job)
    for _ in range(100):  # turns of the event loop, more than enough
        await asyncio.sleep(0)
    assert [(job.started, job.finished, job.error, job.ran) for job in handed] == [
        (0.0, 0.0, None, {})
    ] * len(jobs)


async def test_a_request_that_cannot_be_handed_over_fails_alone() -> None:
    handed: list[Job] = []
    done: list[Job] = []

    def fail(_: Any, __: Any) -> Any:
        raise ValueError("one of them is at fault")

    def hand_over(job: Job) -> None:
        if job is jobs[0]:
            raise MemoryError("no space")
        handed.append(job)

    limits = BatchLimits(rows=2, turn_rows=2, turn_elements=4)
    turns = Turns(ModelRuns(fail), limits, done.append, hand_over=hand_over)
    jobs = [play_job() for _ in range(2)]
    for job in jobs:
        turns.add(job)
    for _ in range(100):  # turns of the event loop, more than enough
        await asyncio.sleep(0)
    assert (handed, done) == (jobs[1:], jobs[:1])
    assert jobs[0].state is JobState.DONE
    assert jobs[0].error is not None


async def test_requests_that_cannot_be_joined_run_in_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: Any, __: Any) -> Any:
        raise KeyError("x")

    done: list[Job] = []
    handed: list[Job] = []
    limits = BatchLimits(rows=2, turn_rows=2, turn_elements=4)
    runs = ModelRuns(lambda _, feeds: [feeds["x"]])
    turns = Turns(runs, limits, done.append, hand_over=handed.append)
    jobs = [play_job() for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(Job, "joins", fail)
        for job in jobs[:2]:
            turns.add(job)
        await asyncio.sleep(0.01)
    assert handed == jobs[:1]
    assert done == jobs[1:2]
    assert [job.rows for job in handed] == [0], "it joins no other there"
    turns.add(jobs[2])
    await asyncio.sleep(0.01)
    assert done == jobs[1:]


def raising(error: BaseException) -> tuple[Turns, list[Job], list[Job], list[Job]]:
    """Return turns in which the run of the first of three requests raises `error`.

    The other values are the requests, those that are done, and those that are handed over.
    """
    done: list[Job] = []
    handed: list[Job] = []

    def run(_: Any, feeds: dict[str, Any]) -> Any:
        if 0 in feeds["x"]:
            raise error
        return [feeds["x"]]

    limits = BatchLimits(rows=1, turn_rows=1, turn_elements=4)
    turns = Turns(ModelRuns(run), limits, done.append, hand_over=handed.append)
    jobs = [play_job(value=value) for value in range(3)]
    for job in jobs:
        turns.add(job)
    return turns, jobs, done, handed


async def test_a_run_in_which_native_code_panics_is_repeated_in_the_thread() -> None:
    turns, jobs, done, handed = raising(Panic())
    await asyncio.sleep(0.01)
    assert (handed, done, len(turns.waiting)) == (jobs[:1], jobs[1:], 0)


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt()], ids=repr)
def test_fatal_errors_are_raised_and_others_have_their_turn(error: BaseException) -> None:
    loop = asyncio.new_event_loop()

    async def add() -> None:
        queues.append(raising(error))
        await asyncio.sleep(0.01)

    queues: list[tuple[Turns, list[Job], list[Job], list[Job]]] = []
    adding = loop.create_task(add())
    with pytest.raises(type(error)):
        loop.run_until_complete(adding)
    ((turns, jobs, done, handed),) = queues
    assert len(turns.waiting) == 2
    loop.run_until_complete(asyncio.sleep(0.01))
    assert (handed, done, len(turns.waiting)) == ([], jobs[1:], 0)
    loop.run_until_complete(adding)
    loop.close()


def stop(seconds: float) -> None:
    """Pass time as a limit on the processor time does: nothing computes."""
    time.sleep(seconds)


def compute(seconds: float) -> None:
    """Take so much of the processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def run_in_loop(spend: Callable[[float], None], runs: int) -> Turns:
    """Have the event loop run so many requests, each for 25 ms."""

    def run(_: Any, feeds: dict[str, Any]) -> Any:
        spend(0.025)
        return [feeds["x"]]

    limits = BatchLimits(rows=1, turn_rows=1, turn_elements=4)
    turns = Turns(ModelRuns(run), limits, lambda _: None, hand_over=lambda _: None)
    for _ in range(runs):
        job = play_job()
        assert turns.takes(job)
        turns.add(job)
        await asyncio.sleep(0)
    return turns


async def test_runs_that_a_limit_of_processor_time_stops_stay_in_the_event_loop() -> None:
    turns = await run_in_loop(stop, 5)
    assert not turns.is_paused(time.monotonic())


async def test_runs_that_take_much_processor_time_leave_the_event_loop_for_a_while() -> None:
    turns = await run_in_loop(compute, 3)
    now = time.monotonic()
    assert turns.is_paused(now)
    assert not turns.is_paused(now + 10.0)
