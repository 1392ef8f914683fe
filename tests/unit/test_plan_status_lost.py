"""A status that was lost, as after a restoration from a backup without it: the revision that served is known nevertheless."""

import json
from collections.abc import Callable

import pytest
from enginewright.manifests.labels import OUTCOME, REVISION, ROLLBACK
from enginewright.plan.rollout.rollout import KEPT_REVISIONS
from enginewright_contract.keys import sha256_text
from enginewright_contract.reasons import Reason

from tests.support.plan_objects import publish_model
from tests.support.plan_world import World
from tests.unit.test_plan_canary import (
    FIRST,
    analysing,
    find_revisions,
    phase,
    reject_canary,
    serve,
    update,
)


def loses_its_status(world: World) -> World:
    world.status = {}
    return world.operator_restarts()


def without_deployments(world: World) -> World:
    for entry in world.all("Deployment"):
        world.remove("Deployment", entry["metadata"]["name"])
    return world


def without_outcome(world: World, revision: str) -> World:
    stored = world.get("ControllerRevision", f"resnet-{revision}")
    del stored["metadata"]["annotations"][OUTCOME]
    return world


def test_what_serves_goes_on() -> None:
    world = serve()
    before = (world.the("Deployment"), world.status["active"])
    loses_its_status(world)
    assert (world.the("Deployment"), world.status["active"]) == before
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert "target" not in world.status


def test_a_canary_is_verified_again_and_replaces_nothing_before() -> None:
    world = update(serve())
    old = world.status["active"]["revision"]
    loses_its_status(world)
    assert phase(world) == "Verifying"
    assert find_revisions(world) == {old}
    assert world.status["active"]["revision"] == old
    assert len(world.canaries()) == 1


def test_a_promotion_goes_on_and_may_fail() -> None:
    world = analysing()
    old, new = world.status["active"]["revision"], world.status["revision"]
    world.later(seconds=61)
    loses_its_status(world)
    assert (phase(world), find_revisions(world)) == ("Promoting", {new})
    assert world.status["active"]["revision"] == old
    world.annotate(ROLLBACK, new)
    assert find_revisions(world) == {old}


@pytest.mark.parametrize(
    "also_lost",
    [
        lambda world: world,
        without_deployments,
        lambda world: without_outcome(world, world.status["active"]["revision"]),
    ],
    ids=["nothing", "Deployments", "outcome"],
)
def test_rejected_revision_is_not_tried_again(also_lost: Callable[[World], World]) -> None:
    world = reject_canary()
    old = world.status["active"]["revision"]
    loses_its_status(also_lost(world))
    assert find_revisions(world) == {old}
    assert not world.canaries()
    world.all_available()
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")
    assert world.status["active"]["revision"] == old
    assert world.later(hours=1).conditions()["RolledBack"] == ("True", "BackendCrashed")


def test_of_several_that_were_promoted_it_is_the_one_that_deployments_have() -> None:
    world = analysing().later(seconds=61).all_available()
    world.edit(source=FIRST).all_available()
    first = world.status["active"]["revision"]
    world.edit(source={"uri": "https://models.example/third.onnx"})
    loses_its_status(world)
    assert world.status["active"]["revision"] == first
    assert find_revisions(world) == {first}


def test_a_status_with_an_unknown_revision_is_not_believed() -> None:
    world = update(serve())
    old = world.status["active"]["revision"]
    world.status["serving"] |= {"revision": "0000000000"}
    world.operator_restarts()
    assert phase(world) == "Verifying"
    assert find_revisions(world) == {old}
    assert world.status["active"]["revision"] == old


def test_serving_revision_is_kept_among_many_failed_ones() -> None:
    world = serve()
    old = world.status["active"]["revision"]
    for number in range(KEPT_REVISIONS - 1):
        world.edit(source={"uri": f"https://models.example/failing-{number}.onnx"})
        world.job_succeeds(
            publish_model(sha256_text(f"model {number}"), sha256_text(f"key {number}"))
        )
        world.canary_available()
        world.crash(world.canaries()[0]["metadata"]["name"], Reason.BACKEND_CRASHED, index=0)
        world.settle()
    update(world).canary_available().later(seconds=61)
    loses_its_status(world)
    assert phase(world) == "Promoting"
    assert world.find("ControllerRevision", f"resnet-{old}")
    world.new_pod_fails(Reason.BACKEND_CRASHED)
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")
    assert find_revisions(world) == {old}


@pytest.mark.parametrize("at", ["2026-01-01T00:00:00", "yesterday", "NaN"])
def test_an_outcome_without_a_moment_is_none(at: str) -> None:
    world = update(serve()).canary_available().later(seconds=61).all_available()
    new = world.status["active"]["revision"]
    for stored in world.all("ControllerRevision"):
        kept = stored["metadata"]["annotations"]
        kept[OUTCOME] = json.dumps({**json.loads(kept[OUTCOME]), "at": at})
    loses_its_status(world)
    assert find_revisions(world) == {new}
    assert world.conditions()["Ready"] == ("True", "Serving")


def without_pods(world: World) -> World:
    for pod in world.all("Pod"):
        if REVISION in pod["metadata"]["labels"]:
            world.remove("Pod", pod["metadata"]["name"])
    return world


def at_zero() -> World:
    return analysing().later(seconds=61).edit(replicas=0).all_available()


@pytest.mark.parametrize(
    "promoting",
    [lambda: update(serve("Recreate")), lambda: update(serve("InPlace", 1)), at_zero],
    ids=["Recreate", "InPlace with one pod", "0 replicas"],
)
def test_serving_revision_is_known_without_deployments(promoting: Callable[[], World]) -> None:
    world = without_pods(promoting())
    old, new = world.status["active"]["revision"], world.status["revision"]
    assert find_revisions(world) == {new}
    world.observe(availableReplicas=0)
    loses_its_status(world)
    assert (phase(world), find_revisions(world)) == ("Promoting", {new})
    assert world.status["active"]["revision"] == old
    world.edit(replicas=2).rolling(available=0).new_pod_fails(Reason.BACKEND_CRASHED)
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")
    assert find_revisions(world) == {old}


def returning(strategy: str = "Surge") -> World:
    """Return a model whose spec asks for a revision again that was promoted before, too long ago to skip the analysis."""
    world = update(serve(strategy))
    if strategy == "Surge":
        world.canary_available().later(seconds=61)
    return world.all_available().later(hours=30).edit(source=FIRST)


def test_a_return_without_ready_pods_is_verified_again() -> None:
    world = returning().all_available().canary_available()
    active, requested = world.status["active"]["revision"], world.status["revision"]
    assert (active != requested, phase(world)) == (True, "Analyzing")
    loses_its_status(without_pods(world))
    assert (phase(world), find_revisions(world)) == ("Verifying", {active})
    assert world.status["active"]["revision"] == active
    world.all_available().canary_available().later(seconds=61)
    assert world.all_available().status["active"]["revision"] == requested


@pytest.mark.parametrize("strategy", ["Surge", "Recreate"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_promotion_of_a_return_goes_on_without_ready_pods(strategy: str, fails: bool) -> None:
    world = promoting_a_return(strategy)
    active, requested = world.status["active"]["revision"], world.status["revision"]
    loses_its_status(without_pods(world))
    assert (phase(world), find_revisions(world)) == ("Promoting", {requested})
    assert world.status["active"]["revision"] == active, "it has not served with all its pods"
    if not fails:
        assert world.all_available().status["active"]["revision"] == requested
        return
    world.rolling(available=0).new_pod_fails(Reason.BACKEND_CRASHED)
    assert find_revisions(world) == {active}
    loses_its_status(without_pods(world))
    assert find_revisions(world) == {active}, "it stays rejected"
    assert not world.canaries()
    assert world.all_available().conditions()["RolledBack"] == ("True", "BackendCrashed")
    assert world.status["active"]["revision"] == active


def promoting_a_return(strategy: str) -> World:
    world = returning(strategy)
    if strategy == "Surge":
        world.all_available().canary_available().later(seconds=61)
    world.observe(availableReplicas=0)
    assert phase(world) == "Promoting"
    return world


def test_a_revision_that_was_returned_to_is_active_without_ready_pods() -> None:
    world = promoting_a_return("Surge").all_available()
    first = world.status["active"]["revision"]
    world.later(hours=30).edit(source={"uri": "https://models.example/third.onnx"})
    world.job_succeeds(publish_model(sha256_text("third"), sha256_text("3")))
    assert phase(world) == "Verifying"
    loses_its_status(without_pods(world))
    assert (phase(world), find_revisions(world)) == ("Verifying", {first})
    assert world.status["active"]["revision"] == first
