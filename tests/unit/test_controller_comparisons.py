"""What is compared for a plan, and that it is compared again only when something new was measured."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from enginewright.analysis.result import AnalysisResult
from enginewright.controller.comparisons import Comparisons
from enginewright.controller.routing import ModelKey
from enginewright.plan.plan import plan
from enginewright.plan.types import Facts, Plan

from tests.support.plan_objects import OTHER, SECOND
from tests.support.plan_world import World

KEY: Final = ModelKey("ns", "m")


class Counted:
    """Makes comparisons, and counts them."""

    def __init__(self) -> None:
        self.made = 0
        self.known = Comparisons(self._make)

    async def _make(self, compare: Callable[..., AnalysisResult], *args: Any) -> AnalysisResult:
        self.made += 1
        return compare(*args)

    async def plan(self, facts: Facts) -> Plan:
        return await self.known.plan(KEY, plan, facts)


def analysing() -> World:
    """Return a model on two classes with a canary on each, whose pods have measured enough."""
    classes = [{"class": "a", "replicas": 2}, {"class": "b", "replicas": 2}]
    world = World("a", "b", rollout={"canary": {"hold": "1m"}}, accelerators=classes).settle()
    world.job_succeeds().all_available()
    return world.edit(source=OTHER).job_succeeds(SECOND).canary_available()


async def test_a_plan_that_lacks_comparisons_is_made_again_with_one_of_each_class() -> None:
    facts, counted = analysing().facts(), Counted()
    facts = replace(facts, now=facts.now + timedelta(minutes=2))  # the canary is held long enough
    lacking = plan(facts)
    assert len(lacking.needs) == 2
    assert lacking.status["target"]["phase"] == "Analyzing", "nothing is decided without them"
    made = await counted.plan(facts)
    assert counted.made == 2
    assert made.needs == ()
    assert made.status["target"]["phase"] == "Promoting"
    assert made == plan(replace(facts, comparisons=made.comparisons))


async def test_only_changed_classes_are_compared_again() -> None:
    world, counted = analysing(), Counted()
    await counted.plan(world.facts())
    world.later(seconds=1)
    await counted.plan(world.facts())
    assert counted.made == 2
    world.measures(world.canary_pods()[0]["metadata"]["name"], ratio=1.01)
    await counted.plan(world.facts())
    assert counted.made == 3
    world.edit(rollout={"canary": {"hold": "1m", "minSamples": 300}})
    await counted.plan(world.facts())
    assert counted.made == 5


async def test_nothing_is_kept_that_the_last_plan_did_not_use_or_of_a_model_that_is_gone() -> None:
    facts, counted = analysing().facts(), Counted()
    decided = await counted.plan(facts)
    others = replace(decided, comparisons=())
    assert await counted.known.plan(KEY, lambda _: others, facts) == others
    await counted.plan(facts)
    assert counted.made == 4
    counted.known.forget(KEY)
    await counted.plan(facts)
    assert counted.made == 6
