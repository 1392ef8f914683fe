"""A revision that fails after its promotion: one goes back if the one before passes there, and only then."""

from collections.abc import Callable

import pytest
from enginewright.manifests.labels import CANARY, PROMOTE, ROLLBACK, SERVE
from enginewright.plan.rollout.rollout import KEPT_REVISIONS
from enginewright_contract.keys import sha256_text
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Check

from tests.support.plan_objects import publish_model, verdict
from tests.support.plan_world import World
from tests.unit.test_plan_canary import (
    analysing,
    cannot_start,
    components,
    find_revisions,
    phase,
    revision,
    serve,
    update,
)


def promote() -> tuple[World, str, str]:
    """Return a model after an update, with the revision before it and the new one."""
    world = analysing()
    old = world.status["active"]["revision"]
    world.later(seconds=61).all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    return world, old, world.status["revision"]


def fails(world: World, reason: Reason = Reason.PARITY_FAILED, *, pods: int = 2) -> World:
    """Have so many serving pods not pass their proofs any more."""
    (deployment,) = world.serving_deployments()
    name = deployment["metadata"]["name"]
    world.partly_available(name, 2 - pods)
    check = Check.GOLDEN if reason is Reason.PARITY_FAILED else Check.PLACEMENT
    for index in range(2 - pods, 2):
        world.verdicts[f"{name}-{index:05}"] = verdict(failed={check: reason})
    return world.settle()


# event: Rollouts | the active revision's answers become wrong hours after its promotion | nothing wrong: a
#   pod of the revision before it is verified first, and gets requests until that is whole | `RolledBack`
#   with stage `serving`, an Event
def test_the_revision_before_is_restored_once_a_pod_of_it_passes() -> None:
    world, old, new = promote()
    fails(world.later(hours=5))
    (trial,) = world.canaries()
    assert revision(trial) == old
    assert components(world) == []
    assert find_revisions(world) == {new}
    world.serving_pod(trial["metadata"]["name"])
    world.settle()
    assert components(world) == [CANARY], "not before its proofs pass"
    world.canary_available()
    assert components(world) == [SERVE]
    assert find_revisions(world) == {old}
    assert world.conditions()["RolledBack"] == ("True", "ParityFailed")
    failure = world.status["lastFailure"]
    assert (failure["revision"], failure["stage"]) == (new, "serving")
    world.all_available()
    assert not world.canaries()
    assert world.status["active"]["revision"] == old
    assert world.conditions()["RolledBack"] == ("True", "ParityFailed")
    assert world.operator_restarts().conditions()["RolledBack"][0] == "True"


@pytest.mark.parametrize("event", ["no device", "a third spec", "an obstacle", "a lost status"])
def test_the_trial_serves_until_the_restored_pods_do(event: str) -> None:
    world, old, _ = promote()
    fails(world)
    world.canary_available()
    assert components(world) == [SERVE]
    match event:
        case "no device":
            cannot_start(world, "device")
        case "a third spec":
            world.edit(source={"uri": "https://models.example/third.onnx"})
            world.job_succeeds(publish_model(sha256_text("third"), sha256_text("3")))
        case "an obstacle":
            world.images = {}
            world.settle()
        case _:
            world.status = {}
            world.settle()
    assert components(world) == [SERVE], "nothing else is ready"
    assert revision(world.canaries()[0]) == old
    assert find_revisions(world) == {old}
    world.all_available()
    assert [canary for canary in world.canaries() if revision(canary) == old] == []


@pytest.mark.parametrize("event", ["a third spec", "an obstacle"])
def test_rejected_revision_is_verified_again(event: str) -> None:
    world, old, new = promote()
    bad = world.spec["source"]
    fails(world)
    world.canary_available()
    if event == "a third spec":
        world.edit(source={"uri": "https://models.example/third.onnx"}).all_available()
        world.job_succeeds(publish_model("e" * 64)).edit(source=bad)
        assert phase(world) == "Verifying"
        assert world.status["target"]["revision"] == new
    else:
        images, world.images = world.images, {}
        world.settle().all_available()
        world.images = images
        world.settle()
        assert world.conditions()["RolledBack"] == ("True", "ParityFailed")
    assert find_revisions(world) == {old}
    assert world.status["active"]["revision"] == old


def test_if_the_revision_before_fails_too_nothing_is_rolled_back() -> None:
    world, _, new = promote()
    fails(world)
    (trial,) = world.canaries()
    world.serving_pod(trial["metadata"]["name"])
    pod = f"{trial['metadata']['name']}-00000"
    world.verdicts[pod] = verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})
    world.later(hours=1)
    assert find_revisions(world) == {new}
    assert world.conditions()["RolledBack"][0] == "False"
    assert world.conditions()["Ready"] == ("False", "ParityFailed")


def crash(world: World, restarts: int = 2) -> World:
    """Have all serving pods crash again and again, as under requests."""
    (deployment,) = world.serving_deployments()
    name = deployment["metadata"]["name"]
    for index in range(2):
        world.crash(name, Reason.BACKEND_CRASHED, index=index, restarts=restarts)
    return world.settle()


def test_crashes_are_compared_under_requests() -> None:
    world, old, new = promote()
    crash(world)
    world.canary_available()
    assert components(world) == [SERVE]
    assert find_revisions(world) == {new}, "it may crash too"
    world.later(seconds=61)
    assert find_revisions(world) == {old}
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")


def test_requests_that_crash_both_revisions_roll_nothing_back() -> None:
    world, _, new = promote()
    crash(world)
    world.canary_available()
    (trial,) = world.canaries()
    world.crash(trial["metadata"]["name"], Reason.BACKEND_CRASHED, index=0, restarts=1)
    world.later(seconds=61)
    assert find_revisions(world) == {new}


def pause_on_failure(world: World) -> World:
    return world.edit(rollout={**world.spec["rollout"], "onFailure": "Pause"})


@pytest.mark.parametrize(
    "event",
    [
        lambda world: crash(world, restarts=1),
        lambda world: fails(world, pods=1),
        lambda world: fails(world, Reason.DRIVER_MISSING),
        lambda world: fails(world, Reason.SESSION_REPLACED),
        lambda world: fails(world.later(hours=25)),
        lambda world: fails(pause_on_failure(world)),
    ],
    ids=["one crash each", "one pod", "no driver", "session", "long ago", "onFailure: Pause"],
)
def test_no_trial_begins(event: Callable[[World], World]) -> None:
    world, *_ = promote()
    assert not event(world).canaries()


def test_it_ends_when_a_pod_passes_again() -> None:
    world, _, new = promote()
    fails(world)
    world.all_available()
    assert not world.canaries()
    assert find_revisions(world) == {new}


def test_a_user_may_insist() -> None:
    world, _, new = promote()
    fails(world)
    world.canary_available()
    world.all_available()
    world.annotate(PROMOTE, new)
    assert find_revisions(world) == {new}


def promote_after_failures() -> tuple[World, str, str]:
    """Return what `promoted` does, after as many rejected revisions as are kept."""
    world = serve()
    old = world.status["active"]["revision"]
    for number in range(KEPT_REVISIONS):
        world.edit(source={"uri": f"https://models.example/failing-{number}.onnx"})
        world.job_succeeds(
            publish_model(sha256_text(f"model {number}"), sha256_text(f"key {number}"))
        )
        world.canary_available()
        world.crash(world.canaries()[0]["metadata"]["name"], Reason.BACKEND_CRASHED, index=0)
        world.settle()
        assert phase(world) is None
    update(world).canary_available().later(seconds=61).all_available().later(seconds=5)
    assert world.status["active"]["revision"] != old
    return world, old, world.status["active"]["revision"]


def test_revision_before_outlives_failed_ones() -> None:
    world, old, _ = promote_after_failures()
    fails(world)
    world.canary_available().all_available()
    assert world.status["active"]["revision"] == old
    assert world.conditions()["RolledBack"] == ("True", "ParityFailed")


def test_user_goes_back_past_failed_revisions() -> None:
    world, old, new = promote_after_failures()
    world.annotate(ROLLBACK, f"{new} {old}").all_available()
    assert world.status["active"]["revision"] == old
    assert world.conditions()["RolledBack"] == ("True", "RolledBackByUser")
