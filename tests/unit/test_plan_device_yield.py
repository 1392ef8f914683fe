"""The only device serves: under Recreate its pods give way to a build, and come back whatever becomes of it."""

import copy
from datetime import timedelta
from typing import Any, Final

import pytest
from enginewright.contract.reasons import Reason
from enginewright.manifests.deployment import GRACE_SECONDS

from tests.support.plan_world import DIGEST, OTHER, World, accelerator_class, l4, node, published

SECOND: Final = published("b" * 64, DIGEST)


def updating(strategy: str = "Recreate", **spec: Any) -> World:
    """Return a model that serves with an engine, and of which another engine is to be built."""
    world = World(rollout={"strategy": strategy}, replicas=1).has_gpus(aheadOfTime=False)
    gpu = node("gpu-1")
    gpu["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-L4"
    world.nodes.append(gpu)
    world.settle().job_succeeds().engine_built().all_available()
    return world.edit(source=OTHER, **spec).job_succeeds(SECOND)


def ready_false(reason: str) -> dict[str, str]:
    return {
        "type": "Ready",
        "status": "False",
        "reason": reason,
        "message": f"{reason}!",
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }


def says(world: World, reason: str, **status: Any) -> World:
    """Have the engine that is not built yet report a reason."""
    (engine,) = [
        each
        for each in world.all("InferenceEngine")
        if not (each.get("status") or {}).get("engine")
    ]
    engine["status"] = {
        "conditions": [ready_false(reason)],
        "attempt": 1,
        "job": "build-1",
        **status,
    }
    return world.settle()


def pods(world: World) -> int:
    count: int = world.the("Deployment")["spec"]["replicas"]
    return count


def ready(world: World) -> dict[str, Any]:
    (condition,) = [each for each in world.status["conditions"] if each["type"] == "Ready"]
    return dict(condition)


# event: Jobs | an update must build on the only device, under `Recreate` | nothing while it
#   builds; the previous revision again if the build fails, or five minutes free no device | Ready
#   `CapacityBlocked`, pods yield the device, then `Building`
def test_a_build_gets_the_device_and_then_the_new_revision() -> None:
    world = updating()
    assert pods(world) == 1
    says(world, "CapacityBlocked")
    assert pods(world) == 0
    assert (
        "the pods of l4 yield the device (rollout.strategy: Recreate)" in (ready(world)["message"])
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
    assert pods(world.later(minutes=5, seconds=GRACE_SECONDS)) == 1


@pytest.mark.parametrize("reason", ["CapacityBlocked", "Queued", "ClaimNotBound"])
def test_where_that_frees_nothing_the_model_serves_again(reason: str) -> None:
    world = says(says(updating(), "CapacityBlocked"), reason)
    assert world.last is not None
    assert world.last.requeue_after == 300 + GRACE_SECONDS
    assert pods(world.later(minutes=5)) == 0
    assert pods(world.later(seconds=GRACE_SECONDS)) == 1
    world.all_available()
    assert pods(says(world.later(hours=1), "CapacityBlocked")) == 1
    assert pods(says(world, "Building")) == 1, "a build that found another device takes nobody's"


def test_pods_that_take_long_to_end_have_that_time() -> None:
    world = says(updating(serving={"terminationGracePeriod": "30m"}), "CapacityBlocked")
    assert pods(world.later(minutes=34)) == 0
    assert pods(world.later(minutes=1)) == 1


def test_a_clock_that_goes_back_keeps_no_pods_away() -> None:
    world = says(updating(), "CapacityBlocked")
    world.now -= timedelta(days=1)
    assert pods(world.settle()) == 1


def test_while_the_status_cannot_be_written_nothing_is_taken() -> None:
    world = updating()
    (engine,) = [each for each in world.all("InferenceEngine") if not each.get("status")]
    engine["status"] = {"conditions": [ready_false("CapacityBlocked")], "attempt": 1}
    before = copy.deepcopy(world.status)
    for _ in range(4):
        world.pass_once()
        world.status = copy.deepcopy(before)
        assert pods(world) == 1


def test_a_rollout_that_is_paused_keeps_its_pods() -> None:
    paused = {"strategy": "Recreate", "paused": True}
    assert pods(says(updating(rollout=paused), "CapacityBlocked")) == 1


@pytest.mark.parametrize("wanted", ["nosuch", "a100"])
def test_a_class_that_is_edited_away_in_mid_build_has_its_pods_again(wanted: str) -> None:
    world = updating(accelerators=[{"class": "l4"}])
    says(says(world, "CapacityBlocked"), "Building")
    assert pods(world) == 0
    world.classes.append(
        l4(nodeSelector={"pool": "a100"}).model_copy(
            update={"metadata": accelerator_class("a100").metadata}
        )
    )
    world.edit(accelerators=[{"class": wanted}])
    assert pods(world) == 1


def test_what_gave_way_counts_as_asked_for_and_not_as_complete() -> None:
    world = says(updating(), "CapacityBlocked")
    before = world.status["serving"]
    world.observed(replicas=0)
    assert world.status["serving"]["revision"] == before["revision"]
    assert world.status["serving"]["classes"][0]["replicas"] == 1
    assert ready(world)["reason"] == "CapacityBlocked"


def test_a_revision_that_never_served_does_not_by_having_no_pods() -> None:
    world = updating().engine_built()
    serving = world.status["serving"]["revision"]
    world.new_pod_fails(Reason.DRIVER_TOO_OLD)
    assert world.status["serving"]["revision"] == serving
    world.edit(source={"uri": "https://models.example/third.onnx"})
    world.job_succeeds(published("c" * 64, DIGEST))
    says(world, "CapacityBlocked")
    world.observed(replicas=0)
    assert world.status["serving"]["revision"] == serving
    failure = {"reason": Reason.BUILD_FAILED, "message": "no", "lasting": True}
    says(world, "BuildFailed", failure=failure)
    assert world.status["serving"]["revision"] == serving


def test_where_no_node_is_of_the_class_pods_would_leave_for_nothing() -> None:
    world = updating()
    world.nodes = [each for each in world.nodes if each["metadata"]["name"] != "gpu-1"]
    assert pods(says(world, "CapacityBlocked")) == 1


def test_an_operator_that_restarts_goes_on() -> None:
    world = says(says(updating(), "CapacityBlocked"), "Building")
    world.operator_restarts()
    assert pods(world.settle()) == 0


# event: Jobs | an update must build on the only device, under `Surge` | all pods; the build waits
#   | Ready `CapacityBlocked`
@pytest.mark.parametrize("reason", ["CapacityBlocked", "Building", "Queued"])
def test_under_surge_nothing_gives_way(reason: str) -> None:
    assert pods(says(updating("Surge"), reason)) == 1


def test_a_build_that_has_a_device_takes_nobodys() -> None:
    assert pods(says(updating(), "Building")) == 1


def test_a_model_that_is_put_back_serves_at_once() -> None:
    world = says(says(updating(), "CapacityBlocked"), "Building")
    assert pods(world.edit(source={"uri": "https://models.example/resnet.onnx"})) == 1
