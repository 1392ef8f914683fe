"""The queue's promises, in virtual time."""

import asyncio
from collections import Counter

import pytest
from enginewright.controller.queue import LAZY, REST, QueueClosed, QueueMetrics, WorkQueue
from prometheus_client import CollectorRegistry


def make_queue(registry: CollectorRegistry | None = None, jitter: float = 1.0) -> WorkQueue[str]:
    metrics = QueueMetrics(registry or CollectorRegistry())
    return WorkQueue("test", metrics, jitter=lambda: jitter)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_waiting_key_is_queued_once() -> None:
    queue = make_queue()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert [await queue.get(), await queue.get(), *await rest(queue)] == ["a", "b"]


async def rest(queue: WorkQueue[str]) -> list[str]:
    """Return the keys that come within an hour."""
    taken = []
    while True:
        try:
            taken.append(await asyncio.wait_for(queue.get(), 3600))
        except TimeoutError:
            return taken


async def test_key_in_work_is_given_again_only_afterwards() -> None:
    queue = make_queue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert await rest(queue) == []
    queue.finish("a")
    assert await rest(queue) == ["a"]
    queue.finish("a")
    assert await rest(queue) == []


async def work(queue: WorkQueue[str], times: list[float]) -> None:
    """Work on every key at once, for no time."""
    while True:
        key = await queue.get()
        times.append(now())
        queue.finish(key)


async def test_burst_of_changes_is_worked_on_at_its_beginning_and_once_after_a_rest() -> None:
    queue = make_queue()
    times: list[float] = []
    worker = asyncio.create_task(work(queue, times))
    for _ in range(10):
        queue.add("a")
        await asyncio.sleep(0.01)
    await asyncio.sleep(10)
    queue.add("a")  # it has rested
    await asyncio.sleep(1)
    worker.cancel()
    assert times == pytest.approx([0, REST, 10.1])


async def test_change_that_others_follow_waits_for_them_and_for_no_more_than_a_moment() -> None:
    queue = make_queue()
    times: list[float] = []
    worker = asyncio.create_task(work(queue, times))
    for _ in range(3):
        queue.add_lazily("a")
        await asyncio.sleep(LAZY / 5)
    queue.add("a")  # that of the three is needless then
    await asyncio.sleep(10)
    queue.add_lazily("a")
    await asyncio.sleep(10)
    worker.cancel()
    assert times == pytest.approx([0.6 * LAZY, 10 + 1.6 * LAZY])


async def test_key_that_changes_all_the_time_is_worked_on_after_each_rest_and_delays_no_other() -> (
    None
):
    queue = make_queue()
    times: list[float] = []
    worker = asyncio.create_task(work(queue, times))
    for number in range(195):
        queue.add("a")
        queue.add(f"other-{number}")
        await asyncio.sleep(0.01)
    worker.cancel()
    others, of_a = Counter(times), [REST * number for number in range(10)]
    assert sum(others.values()) == 195 + len(of_a)
    assert [time for time, count in others.items() if count == 2] == pytest.approx(of_a)


async def test_work_just_done_makes_what_was_due_of_the_key_needless() -> None:
    queue = make_queue()
    queue.add_rate_limited("a")
    queue.add("a")
    key = await queue.get()
    queue.forget(key)
    queue.finish(key)
    assert await rest(queue) == []


@pytest.mark.parametrize(("first", "second"), [(10.0, 3.0), (3.0, 10.0)])
async def test_add_after_keeps_the_earliest(first: float, second: float) -> None:
    queue = make_queue()
    queue.add_after("a", first)
    queue.add_after("a", second)
    assert await queue.get() == "a"
    assert now() == pytest.approx(3.0)
    queue.finish("a")
    assert await rest(queue) == []


async def test_failures_of_a_key_double_up_to_five_minutes_until_forgotten() -> None:
    queue = make_queue()
    delays = []
    for _ in range(14):
        delays.append(queue.add_rate_limited("a"))
        assert await queue.get() == "a"
        queue.finish("a")
    assert delays[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert delays[-1] == 300
    assert queue.add_rate_limited("b") == pytest.approx(0.1)
    queue.forget("a")
    assert queue.add_rate_limited("a") == pytest.approx(0.1)
    assert make_queue(jitter=0.0).add_rate_limited("a") == pytest.approx(0.05)


async def test_failures_after_events_do_not_lengthen_the_wait() -> None:
    """An event queues a key; if that attempt fails too, the next one is due when it was before."""
    queue = make_queue()
    started, due = now(), []
    for _ in range(6):
        due.append(now() + queue.add_rate_limited("a", at_least=20) - started)
        queue.add("a")  # the event
        assert await queue.get() == "a"
        queue.finish("a")
    assert due == pytest.approx([20] * 6)
    assert await queue.get() == "a"
    queue.finish("a")
    assert queue.add_rate_limited("a") == pytest.approx(0.2)


async def test_a_servers_wish_for_later_is_kept() -> None:
    queue = make_queue()
    queue.add_rate_limited("a", at_least=20)
    assert await queue.get() == "a"
    assert now() == pytest.approx(20)


async def test_a_cancelled_getter_loses_no_key() -> None:
    queue = make_queue()
    first = asyncio.create_task(queue.get())
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")  # wakes the first, which is cancelled before it runs
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"


async def test_shutdown_ends_all_getters() -> None:
    queue = make_queue()
    getters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add_after("later", 5)
    queue.shut_down()
    queue.add("too late")
    results = await asyncio.gather(*getters, return_exceptions=True)
    assert [type(result) for result in results] == [QueueClosed] * 3
    with pytest.raises(QueueClosed):
        await queue.get()


async def test_metrics_have_client_gos_names() -> None:
    registry = CollectorRegistry()

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"name": "test"})

    queue = make_queue(registry)
    queue.add("a")
    queue.add("b")
    assert value("workqueue_depth") == 2
    await asyncio.sleep(2)
    key = await queue.get()
    await asyncio.sleep(3)
    assert value("workqueue_depth") == 1
    assert value("workqueue_unfinished_work_seconds") == pytest.approx(3)
    assert value("workqueue_longest_running_processor_seconds") == pytest.approx(3)
    queue.finish(key)
    queue.add_rate_limited(key)
    assert value("workqueue_adds_total") == 2
    assert value("workqueue_retries_total") == 1
    assert value("workqueue_queue_duration_seconds_sum") == pytest.approx(2)
    assert value("workqueue_work_duration_seconds_sum") == pytest.approx(3)
