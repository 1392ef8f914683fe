"""An update whose answers differ: what is told of it, and that it is reported, held for a user or rejected."""

from datetime import timedelta
from typing import Any

import pytest
from enginewright.manifests.labels import PROMOTE, REVISION
from enginewright.manifests.outcome import RevisionOutcome
from enginewright_contract.measurements import AnswerChange, OutputChange, ShadowOutput

from tests.support.optional import present
from tests.unit.test_plan_canary import analysing, phase
from tests.unit.test_plan_shadow import compare, order, verifying

FLIPPED = AnswerChange(
    prepared_key="k", samples=8, outputs=(OutputChange(name="y", relative=1.31, top1=0.0),)
)
TOLD = "answers: output 'y' differs by up to 1, top-1 agreement 0%"
LIMIT = {"analysis": {"minTop1Agreement": "99%"}}


def flip(**rollout: Any) -> Any:
    """Return a world whose canary gets requests, and whose answers all differ."""
    world = analysing()
    world.edit(rollout={**world.spec["rollout"], **rollout})
    for pod in world.all("Pod"):
        name = pod["metadata"]["name"]
        if pod["metadata"]["labels"].get(REVISION) == world.status["revision"]:
            measured = present(world.measurements[name])
            world.measurements[name] = measured.model_copy(update={"answers": FLIPPED})
    return world.settle()


def outcome(world: Any) -> RevisionOutcome:
    (stored,) = (
        item
        for item in world.all("ControllerRevision")
        if item["metadata"]["labels"][REVISION] == world.status["revision"]
    )
    return present(RevisionOutcome.read(stored["metadata"].get("annotations") or {}))


@pytest.mark.parametrize("rollout", [{}, {**LIMIT, "answers": "Report"}])
def test_a_difference_is_told_before_at_and_after_the_promotion(rollout: dict[str, Any]) -> None:
    world = flip(**rollout)
    assert phase(world) == "Analyzing"
    assert TOLD in world.message()
    assert phase(world.later(seconds=101)) == "Promoting"
    (event,) = [intent for intent in world.events if intent.reason == "Promoted"]
    assert TOLD in event.message
    world.later(seconds=30).all_available()
    assert world.status["active"]["revision"] == world.status["revision"]
    assert outcome(world).answers == TOLD
    world.later(seconds=3600)
    assert outcome(world).answers == TOLD


@pytest.mark.parametrize("rollout", [LIMIT, {**LIMIT, "answers": "Rollback"}])
def test_beyond_a_limit_it_is_rejected(rollout: dict[str, Any]) -> None:
    world = flip(**rollout)
    assert world.conditions()["RolledBack"] == ("True", "AnswersChanged")
    assert "in 0.0% of rows, limit 99.0%" in outcome(world).message


def test_held_for_a_user_who_promotes_it() -> None:
    world = flip(**LIMIT, answers="Hold").later(minutes=30)
    assert phase(world) == "Analyzing"
    assert world.conditions()["Ready"] == ("False", "AnswersChanged")
    assert world.conditions()["Stalled"][0] == "True"
    assert "in 0.0% of rows, limit 99.0%; rollout.answers is Hold: `enginewright promote`" in (
        world.message()
    )
    world.annotate(PROMOTE, world.status["revision"])
    assert phase(world) == "Promoting"
    world.later(seconds=30).all_available()
    assert outcome(world).answers == TOLD


def test_held_before_it_gets_requests_while_copies_go_on() -> None:
    world = verifying()
    limited = {"analysis": {"maxOutputDifference": "0.1"}, "answers": "Hold"}
    world.edit(rollout={**world.spec["rollout"], **limited})
    compare(world, 10_000, outputs=(ShadowOutput(name="y", answers=9, worst=0.5, mean=0.2),))
    world.now += timedelta(minutes=30)
    assert phase(world.settle()) == "Verifying"
    assert world.status["target"]["reason"] == "AnswersChanged"
    assert order(world).addresses
