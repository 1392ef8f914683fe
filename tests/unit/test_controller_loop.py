"""What the workers do with success, failure and a shutdown, in virtual time."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

import pytest
from enginewright.controller.loop import STUCK, Controller, LoopMetrics, ReconcileResult
from enginewright.kube.errors import Forbidden, Transient
from prometheus_client import CollectorRegistry


def make(
    reconcile: Callable[[str], Awaitable[ReconcileResult]],
    registry: CollectorRegistry | None = None,
) -> Controller[str]:
    return Controller(
        "test",
        reconcile,
        LoopMetrics(registry or CollectorRegistry()),
        workers=2,
        describe=lambda key: {"name": key},
    )


def now() -> float:
    return asyncio.get_running_loop().time()


async def passes(
    outcomes: list[ReconcileResult | Exception],
    seconds: float,
    registry: CollectorRegistry | None = None,
) -> list[float]:
    """Add one key, answer its passes with `outcomes` (the last for ever); return their times."""
    times: list[float] = []

    async def reconcile(_key: str) -> ReconcileResult:
        times.append(now())
        outcome = outcomes[min(len(times), len(outcomes)) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    controller = make(reconcile, registry)
    controller.start()
    controller.queue.add("a")
    await asyncio.sleep(seconds)
    await controller.stop(grace=1)
    return times


async def test_an_unchanged_key_is_looked_at_about_every_ten_minutes() -> None:
    times = await passes([ReconcileResult()], 6700)
    assert len(times) in (11, 12)
    assert all(540 <= later - earlier <= 660 for earlier, later in itertools.pairwise(times))


async def test_requeue_after_is_kept() -> None:
    times = await passes([ReconcileResult(requeue_after=7), ReconcileResult()], 60)
    assert times == pytest.approx([0, 7])


async def test_own_writes_are_checked_again_with_growing_waits() -> None:
    assert len(await passes([ReconcileResult(requeue=True), ReconcileResult()], 60)) == 2
    restless = await passes([ReconcileResult(requeue=True)], 600)
    assert len(restless) < 16


async def test_deleted_objects_are_forgotten() -> None:
    assert len(await passes([ReconcileResult(exists=False)], 10_000)) == 1


async def test_a_failure_is_tried_again_and_said(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    with caplog.at_level(logging.ERROR):
        times = await passes([Forbidden("quota q is used up"), ReconcileResult()], 60, registry)
    assert len(times) == 2
    assert "quota q is used up" in caplog.text
    assert "Traceback" not in caplog.text
    for name, result in (("errors", {}), ("", {"result": "error"}), ("", {"result": "success"})):
        metric = "_".join(filter(None, ("controller_runtime_reconcile", name, "total")))
        assert registry.get_sample_value(metric, {"controller": "test", **result}) == 1


async def test_retry_after_is_honoured() -> None:
    times = await passes([Transient("busy", code=429, retry_after=30), ReconcileResult()], 60)
    assert times == pytest.approx([0, 30])


async def test_a_bug_in_one_key_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> ReconcileResult:
        if key == "poisoned":
            raise ZeroDivisionError
        seen.append(key)
        return ReconcileResult()

    controller = make(reconcile)
    controller.start()
    for key in ("poisoned", "a", "b"):
        controller.queue.add(key)
    await asyncio.sleep(30)
    assert controller.problem() is None
    await controller.stop(grace=1)
    assert seen == ["a", "b"]
    assert "Traceback" in caplog.text


async def test_stopping_lets_work_end_or_cuts_it_off() -> None:
    ended: list[str] = []

    async def reconcile(key: str) -> ReconcileResult:
        await asyncio.sleep(0.5 if key == "short" else 3600)
        ended.append(key)
        return ReconcileResult()

    controller = make(reconcile)
    controller.start()
    controller.queue.add("short")
    controller.queue.add("long")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    started = now()
    await controller.stop(grace=1)
    assert ended == ["short"]
    assert now() - started == pytest.approx(1)


async def test_a_stuck_worker_is_trouble() -> None:
    async def reconcile(_key: str) -> ReconcileResult:
        await asyncio.sleep(10 * STUCK)
        return ReconcileResult()

    registry = CollectorRegistry()
    controller = make(reconcile, registry)
    controller.start()
    controller.queue.add("a")
    await asyncio.sleep(STUCK - 1)
    assert controller.problem() is None
    workers = [
        registry.get_sample_value(f"controller_runtime_{name}", {"controller": "test"})
        for name in ("active_workers", "max_concurrent_reconciles")
    ]
    assert workers == [1, 2]
    await asyncio.sleep(2)
    assert "on one key" in (controller.problem() or "")
    await controller.stop(grace=0.1)
