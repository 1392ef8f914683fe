"""The event loop goes on while measurements are compared."""

import asyncio
import threading

import pytest
from enginewright.analysis.result import AnalysisResult
from enginewright.controller import comparisons
from enginewright.controller.comparisons import Comparisons
from enginewright.controller.routing import ModelKey
from enginewright.plan.plan import plan

from tests.support.plan_objects import OTHER, SECOND
from tests.support.plan_world import World


def test_the_event_loop_goes_on_during_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(rollout={"canary": {"hold": "1m"}}).settle().job_succeeds().all_available()
    facts = world.edit(source=OTHER).job_succeeds(SECOND).canary_available().facts()
    goes_on = threading.Event()
    waited: list[bool] = []

    def compare(*_: object) -> AnalysisResult:
        waited.append(goes_on.wait(10))
        return AnalysisResult("inconclusive")

    monkeypatch.setattr(comparisons, "compare", compare)

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(Comparisons().plan(ModelKey("ns", "m"), plan, facts))
            await asyncio.sleep(0.1)
            goes_on.set()

    asyncio.run(both())
    assert waited == [True]


def test_a_comparison_that_fails_waits_for_new_measurements_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(rollout={"canary": {"hold": "1m"}}).settle().job_succeeds().all_available()
    facts = world.edit(source=OTHER).job_succeeds(SECOND).canary_available().facts()

    def compare(*_: object) -> AnalysisResult:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(comparisons, "compare", compare)
    made = asyncio.run(Comparisons().plan(ModelKey("ns", "m"), plan, facts))
    (comparison,) = made.comparisons
    assert comparison.result is not None
    assert comparison.result.state == "inconclusive"
    assert "float division by zero" in comparison.result.waits_for
