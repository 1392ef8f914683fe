"""The only device serves: under Recreate its pods give way to a build, and come back whatever becomes of it."""

from typing import Any, Final

import pytest
from enginewright.contract.reasons import Reason

from tests.support.plan_world import DIGEST, World, published

SECOND: Final = published("b" * 64, DIGEST)
THIRD: Final = {"uri": "https://models.example/other.onnx"}


def updating(strategy: str = "Recreate") -> World:
    """Return a model that serves with an engine, and of which another engine is to be built."""
    world = World(rollout={"strategy": strategy}, replicas=1).has_gpus(aheadOfTime=False)
    world.settle().job_succeeds().engine_built().all_available()
    return world.edit(source=THIRD).job_succeeds(SECOND)


def says(world: World, reason: str, **status: Any) -> World:
    """Have the engine that is not built yet report a reason."""
    (engine,) = [
        each
        for each in world.all("InferenceEngine")
        if not (each.get("status") or {}).get("engine")
    ]
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": reason,
        "message": f"{reason}!",
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }
    engine["status"] = {"conditions": [ready], "attempt": 1, "job": "build-1", **status}
    return world.settle()


def pods(world: World) -> int:
    count: int = world.the("Deployment")["spec"]["replicas"]
    return count


def ready(world: World) -> dict[str, Any]:
    (condition,) = [each for each in world.status["conditions"] if each["type"] == "Ready"]
    return dict(condition)


def test_a_build_gets_the_device_and_then_the_new_revision() -> None:
    world = updating()
    assert pods(world) == 1
    says(world, "CapacityBlocked")
    assert pods(world) == 0
    assert (
        "the pods of l4 give way to it, as rollout.strategy Recreate allows"
        in (ready(world)["message"])
    )
    assert pods(says(world, "Building")) == 0
    assert pods(world.later(hours=3)) == 0, "it builds for as long as it may"
    before = world.status["serving"]["revision"]
    world.engine_built()
    assert pods(world) == 1
    assert world.all_available().status["serving"]["revision"] != before
    assert ready(world)["status"] == "True"


def test_a_build_that_fails_gives_the_device_back() -> None:
    world = says(says(updating(), "CapacityBlocked"), "Building")
    failure = {"reason": Reason.BUILD_FAILED, "message": "no", "lasting": True}
    assert pods(says(world, "BuildFailed", failure=failure)) == 1


def test_between_two_attempts_the_model_serves() -> None:
    world = says(says(updating(), "CapacityBlocked"), "Building")
    failure = {"reason": Reason.DRIVER_MISSING, "message": "no", "attempts": 1}
    assert pods(says(world, "DriverMissing", failure=failure)) == 1
    assert pods(says(world, "CapacityBlocked", failure=failure, attempt=2)) == 0
    assert pods(says(world, "DriverMissing", failure=failure, attempt=2)) == 0, "it builds"


def test_another_pod_of_the_same_attempt_gets_the_device_too() -> None:
    world = says(says(updating(), "CapacityBlocked"), "Building")
    world.later(hours=1)
    failure = {
        "reason": Reason.DRIVER_MISSING,
        "message": "no",
        "attempts": 1,
        "time": "2026-11-21T13:00:00Z",
    }
    assert pods(says(world, "DriverMissing", failure=failure)) == 1
    assert pods(says(world, "CapacityBlocked", failure=failure)) == 0
    assert pods(world.later(minutes=5)) == 1


def test_where_that_frees_nothing_the_model_serves_again() -> None:
    world = says(updating(), "CapacityBlocked")
    assert world.last is not None
    assert world.last.requeue_after == 300
    assert pods(world.later(minutes=4)) == 0
    assert pods(world.later(minutes=1)) == 1
    assert pods(world.later(hours=1)) == 1, "once for each attempt"
    assert ready(world)["reason"] == "CapacityBlocked"


def test_an_operator_that_restarts_goes_on() -> None:
    world = says(says(updating(), "CapacityBlocked"), "Building")
    world.operator_restarts()
    assert pods(world.settle()) == 0


@pytest.mark.parametrize("reason", ["CapacityBlocked", "Building", "Queued"])
def test_under_surge_nothing_gives_way(reason: str) -> None:
    assert pods(says(updating("Surge"), reason)) == 1


def test_a_build_that_has_a_device_takes_nobodys() -> None:
    assert pods(says(updating(), "Building")) == 1


def test_a_model_that_is_put_back_serves_at_once() -> None:
    world = says(says(updating(), "CapacityBlocked"), "Building")
    assert pods(world.edit(source={"uri": "https://models.example/resnet.onnx"})) == 1
