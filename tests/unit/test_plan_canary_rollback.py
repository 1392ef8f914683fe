"""A user's rollback: of a canary, of a promotion under way and of the revision that serves."""

from typing import Any

import pytest
from enginewright.manifests.labels import PROMOTE, REVISION, ROLLBACK
from enginewright.manifests.outcome import RevisionOutcome

from tests.support.plan_objects import OTHER, SECOND, publish_model
from tests.support.plan_world import World, serving

THIRD = {"uri": "https://models.example/third.onnx"}
CANARY = {"canary": {"replicas": 1, "hold": "1m"}}


def update(world: World, source: dict[str, Any] = OTHER) -> str:
    """Have the spec ask for another model, which is prepared; return its revision."""
    content = SECOND if source == OTHER else publish_model("c" * 64, "f" * 64)
    world.edit(source=source).job_succeeds(content)
    return str(world.status["revision"])


def two_served(**spec: Any) -> tuple[World, str, str]:
    """Return a model whose second revision serves, and both revisions."""
    world = serving(**spec)
    first = world.status["active"]["revision"]
    second = update(world)
    world.all_available()
    assert world.status["active"]["revision"] == second
    return world, first, second


def find_revisions(world: World) -> set[str]:
    return {entry["metadata"]["labels"][REVISION] for entry in world.all("Deployment")}


def outcome(world: World, revision: str) -> tuple[str, str]:
    """Return the state and the reason that are recorded of a revision."""
    (stored,) = [
        entry
        for entry in world.all("ControllerRevision")
        if entry["metadata"]["labels"][REVISION] == revision
    ]
    read = RevisionOutcome.read(stored["metadata"]["annotations"])
    assert read
    return read.state, read.reason


def condition(world: World, kind: str) -> dict[str, Any]:
    (reported,) = [item for item in world.status["conditions"] if item["type"] == kind]
    return dict(reported)


def assert_went_back(world: World, bad: str, good: str) -> None:
    assert find_revisions(world) == {good}
    world.all_available()
    assert world.status["active"]["revision"] == good
    assert "target" not in world.status
    assert outcome(world, bad) == ("Rejected", "RolledBackByUser")
    assert outcome(world, good) == ("Promoted", "")
    assert world.conditions()["RolledBack"] == ("True", "RolledBackByUser")
    assert world.conditions()["Available"][0] == "True"
    assert world.status["lastFailure"]["revision"] == bad


@pytest.mark.parametrize(
    "rollout",
    [
        {"onFailure": "Rollback"},
        {"onFailure": "Pause"},
        {"strategy": "InPlace"},
        {"strategy": "Recreate"},
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_serving_revision_goes_back(rollout: dict[str, str], named: bool) -> None:
    world, first, second = two_served(rollout=rollout)
    world.annotate(ROLLBACK, f"{second} {first}" if named else second)
    assert_went_back(world, second, first)


@pytest.mark.parametrize("on_failure", ["Rollback", "Pause"])
def test_a_promotion_under_way(on_failure: str) -> None:
    world = serving(rollout={"onFailure": on_failure})
    first = world.status["active"]["revision"]
    second = update(world)
    assert world.status["target"]["phase"] == "Promoting"
    world.rolling(available=1).annotate(ROLLBACK, second)
    assert_went_back(world, second, first)


def test_a_promotion_that_ends_as_the_user_decides() -> None:
    world = serving()
    first = world.status["active"]["revision"]
    second = update(world)
    (deployment,) = world.serving_deployments()
    world.complete(deployment["metadata"]["name"])  # the operator has not seen it yet
    world.annotate(ROLLBACK, second)
    assert_went_back(world, second, first)


@pytest.mark.parametrize("analyzed", [True, False])
def test_a_canary(analyzed: bool) -> None:
    world = serving(rollout=CANARY)
    first = world.status["active"]["revision"]
    second = update(world)
    if analyzed:
        (canary,) = world.canaries()
        world.complete(canary["metadata"]["name"])
        world.settle()
    assert world.status["target"]["phase"] == ("Analyzing" if analyzed else "Verifying")
    world.annotate(ROLLBACK, second)
    assert not world.canaries()
    assert_went_back(world, second, first)


@pytest.mark.parametrize("paused", [True, False])
def test_going_back_needs_no_analysis_and_no_other_phase(paused: bool) -> None:
    world, first, second = two_served()
    world.edit(rollout={**CANARY, "paused": paused}).annotate(ROLLBACK, f"{second} {first}")
    assert not world.canaries()
    assert_went_back(world, second, first)


def test_while_another_revision_is_prepared() -> None:
    world, first, second = two_served()
    world.edit(source=THIRD).annotate(ROLLBACK, f"{second} {first}")
    assert "revision" not in world.status
    assert find_revisions(world) == {first}
    world.all_available()
    assert world.status["active"]["revision"] == first
    assert outcome(world, second)[0] == "Promoted", "the spec no longer asks for it"


def test_a_named_revision_is_preferred_to_the_one_before() -> None:
    world, first, _ = two_served()
    third = update(world, THIRD)
    world.all_available().annotate(ROLLBACK, f"{third} {first}")
    assert_went_back(world, third, first)


@pytest.mark.parametrize("to", ["", "unknown", "itself"])
def test_without_an_earlier_revision_it_serves_on(to: str) -> None:
    world = serving()
    (only,) = find_revisions(world)
    world.annotate(ROLLBACK, f"{only} {only if to == 'itself' else to}".strip())
    assert find_revisions(world) == {only}
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert outcome(world, only) == ("Promoted", "")
    assert world.conditions()["RolledBack"] == ("False", "RolledBackByUser")
    assert ("unknown" in condition(world, "RolledBack")["message"]) == (to == "unknown")
    world.later(hours=2).annotate(ROLLBACK, None)
    assert world.conditions()["RolledBack"] == ("False", "Serving")
    assert [event.type for event in world.events if event.reason == "RolledBackByUser"] == [
        "Warning"
    ]


def test_a_named_revision_that_is_not_kept_is_said_and_the_one_before_serves() -> None:
    world, first, second = two_served()
    world.annotate(ROLLBACK, f"{second} unknown")
    assert_went_back(world, second, first)
    assert "revision unknown" in condition(world, "RolledBack")["message"]


def test_it_holds_without_the_annotation_and_in_a_new_operator() -> None:
    world, first, second = two_served()
    world.annotate(ROLLBACK, f"{second} {first}").annotate(ROLLBACK, None).operator_restarts()
    assert_went_back(world, second, first)
    world.later(hours=30)
    assert_went_back(world, second, first)


def test_it_holds_until_the_spec_asks_for_another_revision() -> None:
    world, first, second = two_served()
    world.annotate(ROLLBACK, f"{second} {first}").all_available()
    third = update(world, THIRD)
    world.all_available()
    assert world.status["active"]["revision"] == third
    assert outcome(world, second) == ("Superseded", "RolledBackByUser")
    assert world.conditions()["RolledBack"][0] == "False"


def test_a_promotion_lifts_it() -> None:
    world, first, second = two_served()
    world.edit(rollout=CANARY).annotate(ROLLBACK, f"{second} {first}").all_available()
    world.subject["metadata"]["annotations"].pop(ROLLBACK)
    world.annotate(PROMOTE, second)
    assert world.status["target"]["phase"] == "Promoting", "the analysis is skipped"
    world.all_available()
    assert world.status["active"]["revision"] == second
    assert outcome(world, second) == ("Promoted", "")
    assert "lastFailure" not in world.status
