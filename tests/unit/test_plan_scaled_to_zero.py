"""Updates of a model that is scaled to zero: no pod of them runs, and no unverified revision replaces the serving one."""

import pytest
from enginewright.manifests.labels import PROMOTE
from enginewright_contract.reasons import Reason

from tests.support.fake_kube import timestamp
from tests.support.plan_objects import OTHER, SECOND, Json
from tests.support.plan_world import World
from tests.support.simulation import NO_DEVICE, report_crash, runs, unschedulable
from tests.unit.test_plan_canary import (
    CANARY_SPEC,
    analysing,
    find_revisions,
    phase,
    reject_canary,
    revision,
    serve,
    update,
)
from tests.unit.test_plan_regression import fails, promote


def stop(world: World) -> World:
    return world.edit(replicas=0).all_available()


def waits(world: World) -> bool:
    return bool(world.status["target"]["reason"] == "ScaledToZero")


@pytest.mark.parametrize("when", ["verifying", "analysing"])
def test_a_canary_ends_and_its_rollout_waits(when: str) -> None:
    world = analysing() if when == "analysing" else update(serve())
    old, new, before = world.status["active"]["revision"], world.status["revision"], phase(world)
    stop(world)
    assert not world.canaries()
    assert find_revisions(world) == {old}
    assert waits(world)
    assert world.conditions()["Ready"] == ("True", "ScaledToZero")
    assert f"revision {new} waits" in world.message()
    assert world.last
    assert world.last.requeue_after is None
    world.later(hours=1).operator_restarts()
    assert (phase(world), waits(world)) == (before, True)


def test_pods_of_the_stable_revision_come_first_and_then_the_canary() -> None:
    world = stop(serve())
    old = world.status["active"]["revision"]
    update(world)
    assert (phase(world), waits(world)) == ("Held", True)
    assert find_revisions(world) == {old}
    world.subject["spec"]["replicas"] = 2
    world.pass_once()
    assert list(world.replicas().values()) == [2]
    assert find_revisions(world) == {old}
    assert not world.canaries()
    world.settle()
    assert not world.canaries(), "there is nothing to compare it with yet"
    assert world.conditions()["Ready"] == ("False", "Progressing")
    world.all_available()
    (canary,) = world.canaries()
    assert revision(canary) == world.status["revision"] != old
    assert phase(world) == "Verifying"
    assert world.conditions()["Ready"] == ("False", "VerifyingCanary")
    world.all_available().canary_available().later(seconds=61).all_available()
    assert world.status["active"]["revision"] == world.status["revision"]


def test_an_analysis_goes_on_with_its_step() -> None:
    world = stop(analysing()).edit(replicas=2)
    assert phase(world) == "Analyzing"
    assert not world.canaries()
    world.all_available().canary_available()
    assert len(world.canaries()) == 1
    assert phase(world.later(seconds=61)) == "Promoting"


def test_in_place_it_waits_too() -> None:
    world = update(stop(serve("InPlace")))
    assert (phase(world), waits(world)) == ("Held", True)
    world.edit(replicas=2).all_available()
    assert sorted(world.replicas().values()) == [1, 1]


def test_promotion_goes_on_without_a_canary() -> None:
    world = analysing().later(seconds=61)
    new = world.status["revision"]
    stop(world)
    assert phase(world) == "Promoting"
    assert find_revisions(world) == {new}
    assert not world.canaries()


def test_a_canary_that_was_kept_to_be_looked_at_ends() -> None:
    world = serve()
    world.edit(rollout={**world.spec["rollout"], "onFailure": "Pause"})
    update(world).canary_unschedulable()
    name = world.canaries()[0]["metadata"]["name"]
    world.crash(name, Reason.BACKEND_CRASHED, index=0)
    world.settle()
    assert world.conditions()["RolledBack"][0] == "True"
    assert world.canaries()
    assert not stop(world).canaries()


@pytest.mark.parametrize("restored", [False, True])
def test_trial_of_the_revision_before_ends_and_a_restoration_goes_on(restored: bool) -> None:
    world, old, new = promote()
    fails(world)
    assert [revision(canary) for canary in world.canaries()] == [old]
    if restored:
        world.canary_available()
    stop(world)
    assert find_revisions(world) == {old if restored else new}
    assert not world.canaries()


@pytest.mark.parametrize("why", ["promoted by a user", "without a canary", "Recreate"])
def test_update_without_a_canary_replaces_it_at_once(why: str) -> None:
    world = stop(serve())
    rollout = world.spec["rollout"]
    if why == "without a canary":
        world.edit(rollout={**rollout, "canary": {"replicas": 0}})
    elif why == "Recreate":
        world.edit(rollout={**rollout, "strategy": "Recreate"})
    update(world)
    new = world.status["revision"]
    if why == "promoted by a user":
        world.annotate(PROMOTE, new)
    assert find_revisions(world) == {new}
    assert not world.canaries()


def test_a_rejection_stays() -> None:
    world = stop(reject_canary())
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")
    assert world.edit(replicas=2).conditions()["RolledBack"] == ("True", "BackendCrashed")


def test_a_class_that_is_left_at_the_same_time_keeps_no_pods() -> None:
    rollout, classes = {"canary": CANARY_SPEC}, [{"class": "a"}, {"class": "b"}]
    world = World("a", "b", "c", rollout=rollout, accelerators=classes, replicas=4).settle()
    world.job_succeeds().all_available()
    world.edit(accelerators=[{"class": "a"}, {"class": "c"}], replicas=0)
    assert set(world.replicas().values()) == {0}
    world.edit(source=OTHER).job_succeeds(SECOND)
    assert set(world.replicas().values()) == {0}


@pytest.mark.parametrize("added", [{"class": "b", "replicas": 2}, {"class": "b"}])
def test_new_class_waits_for_no_pods_of_a_class_at_zero(added: Json) -> None:
    classes = [{"class": "a"}]
    world = World("a", "b", rollout={"canary": CANARY_SPEC}, accelerators=classes, replicas=1)
    world.settle().job_succeeds().all_available()
    world.edit(accelerators=[{"class": "a", "replicas": 0}]).all_available()
    world.edit(accelerators=[{"class": "a", "replicas": 0}, added])
    assert phase(world) == "Promoting"
    assert world.replicas() == {"resnet-a": 0, "resnet-b": added.get("replicas", 1)}
    world.all_available()
    assert world.status["active"]["revision"] == world.status["revision"]
    assert world.conditions()["Ready"] == ("True", "Serving")


@pytest.mark.parametrize("why", ["no node takes them", "they load the model"])
@pytest.mark.parametrize("when", ["held", "verifying", "analysing"])
def test_nothing_is_promoted_before_stable_pods_are_ready(when: str, why: str) -> None:
    if when == "held":
        world = update(stop(serve()))
    else:
        world = stop(analysing() if when == "analysing" else update(serve()))
    old = world.status["active"]["revision"]
    world.later(minutes=10).edit(replicas=2)
    assert world.last
    assert world.last.requeue_after
    (stable,) = world.serving_deployments()
    loading = runs(timestamp(world.now), ready=False)
    since = {"type": "Initialized", "status": "False", "lastTransitionTime": timestamp(world.now)}
    loading["conditions"].append(since)
    waiting = {"conditions": [unschedulable(NO_DEVICE)]}
    status = waiting if why == "no node takes them" else loading
    world.serving_pod(stable["metadata"]["name"], status=status)
    world.settle()
    for _ in range(3):
        world.later(seconds=61).canary_available()
        assert find_revisions(world) == {old}
        assert not world.canaries()
        reason = "CapacityBlocked" if why == "no node takes them" else "Progressing"
        assert world.conditions()["Ready"] == ("False", reason)
    world.all_available()
    assert len(world.canaries()) == 1


def test_scaled_up_again_a_fix_replaces_pods_that_fail() -> None:
    world = update(stop(serve())).edit(replicas=2)
    (stable,) = world.serving_deployments()
    status = report_crash("server", Reason.BACKEND_CRASHED, timestamp(world.now))
    status["conditions"] = runs(timestamp(world.now), ready=False)["conditions"]
    world.serving_pod(stable["metadata"]["name"], status=status)
    assert not world.later(seconds=30).canaries(), "a moment is no outage"
    world.later(seconds=40).canary_available().later(seconds=61)
    assert find_revisions(world) == {world.status["revision"]}


@pytest.mark.parametrize("when", ["verifying", "analysing"])
def test_paused_too_it_waits_for_nothing_but_the_user(when: str) -> None:
    world = analysing() if when == "analysing" else update(serve())
    before = phase(world)
    stop(world).edit(rollout={**world.spec["rollout"], "paused": True})
    assert (phase(world), waits(world)) == (before, True)
    assert world.conditions()["Ready"] == ("True", "ScaledToZero")
    world.edit(replicas=2).all_available()
    assert (phase(world), world.status["target"]["reason"]) == (before, "Suspended")
    assert len(world.canaries()) == 1
