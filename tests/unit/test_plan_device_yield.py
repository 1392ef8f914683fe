"""The only device serves: under Recreate its pods yield it to a build, and come back however the build ends."""

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from enginewright.manifests.labels import CLASS, COMPONENT, SERVE
from enginewright.manifests.pod_options import GRACE_SECONDS
from enginewright_contract.reasons import Reason

from tests.support.plan_objects import (
    DIGEST,
    OTHER,
    Json,
    accelerator_class,
    gpu_node,
    l4,
    publish_model,
)
from tests.support.plan_world import World, conditions_of
from tests.support.simulation import NO_DEVICE, statuses, unschedulable

SECOND: Final = publish_model("b" * 64, DIGEST)


def updating(strategy: str = "Recreate", **spec: Any) -> World:
    """Return a model that serves with an engine, and of which another engine is to be built by a Job that was made."""
    world = World(rollout={"strategy": strategy}, replicas=1).has_gpus(aheadOfTime=False)
    world.nodes.append(gpu_node("gpu-1"))
    world.settle().job_succeeds().engine_built().all_available()
    return world.edit(source=OTHER, **spec).job_succeeds(SECOND).misses()


def block(world: World) -> World:
    return world.unschedulable(NO_DEVICE, "engine")


def builds(world: World) -> World:
    return world.stage_runs("build", "engine")


def finish_build(world: World) -> World:
    return world.succeeds("engine", nodes_accelerated=415)


def building(**spec: Any) -> World:
    """Return a model whose pods have yielded to a build that runs."""
    return builds(block(updating(**spec)))


def engine_of(world: World, name: str) -> Json:
    (engine,) = [
        entry for entry in world.all("InferenceEngine") if entry["metadata"]["name"] == name
    ]
    return engine


def pods(world: World) -> int:
    count: int = world.the("Deployment")["spec"]["replicas"]
    return count


# event: Jobs | an update must build on the only device, under `Recreate` | nothing while it
#   builds; the previous revision again if the build fails, or five minutes free no device | Ready
#   `CapacityBlocked`, pods yield the device, then `Building`
def test_a_build_gets_the_device_and_then_the_new_revision() -> None:
    world = updating()
    assert pods(world) == 1
    assert pods(block(world)) == 0
    assert "the pods of l4 yield the device (rollout.strategy: Recreate)" in world.message()
    assert pods(builds(world)) == 0
    assert pods(world.later(hours=3)) == 0, "it builds for as long as it may"
    before = world.status["serving"]["revision"]
    assert pods(finish_build(world)) == 1
    assert world.all_available().status["serving"]["revision"] != before
    assert world.conditions()["Ready"][0] == "True"


# event: Jobs | two models under `Recreate` need one engine, which must build on a device that serves
#   | the other model; then the new revisions | Ready `CapacityBlocked`, pods of one yield the device
def test_one_of_two_models_yields_to_the_build_of_the_engine_that_they_share() -> None:
    world = updating()
    (engine,) = [item["name"] for item in world.status["engines"]]
    world.freed_elsewhere = {engine}
    assert pods(block(world)) == 1
    world.freed_elsewhere = set()
    assert pods(world.settle()) == 0, "the other model's device was of no use"


def test_between_two_attempts_the_model_serves() -> None:
    world = building().job_fails(Reason.DRIVER_MISSING, of="engine")
    assert pods(world) == 1
    assert pods(block(world.later(minutes=1))) == 0
    assert pods(builds(world)) == 0
    assert pods(world.later(hours=1)) == 0, "a later attempt has it as long as it builds"
    assert "yield the device" in world.message()


def test_another_pod_of_the_same_attempt_gets_the_device_too() -> None:
    world = building().later(hours=1)
    assert pods(world.pod_fails(Reason.DRIVER_MISSING, of="engine")) == 1
    assert pods(block(world)) == 0
    assert pods(world.later(minutes=5, seconds=GRACE_SECONDS)) == 1
    assert pods(block(world)) == 1


@pytest.mark.parametrize(
    "reported",
    [
        NO_DEVICE,
        "0/2 nodes are available: 2 Insufficient memory.",
        "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
    ],
    ids=["device", "memory", "claim"],
)
def test_where_that_frees_nothing_the_model_serves_again(reported: str) -> None:
    world = block(updating()).unschedulable(reported, "engine")
    assert world.last is not None
    assert world.last.requeue_after == 300 + GRACE_SECONDS
    assert pods(world.later(minutes=5)) == 0
    assert pods(world.later(seconds=GRACE_SECONDS)) == 1
    world.all_available()
    assert pods(block(world.later(hours=1))) == 1
    assert pods(builds(world)) == 1, "a build with another device needs no yield"


@pytest.mark.parametrize("of", ["job", "pod"])
def test_yield_is_tried_once_after_a_failure(of: str) -> None:
    world = building()
    if of == "job":
        world.job_fails(Reason.DRIVER_MISSING, of="engine").later(minutes=1)
    else:
        world.later(hours=1).pod_fails(Reason.DRIVER_MISSING, of="engine")
    assert pods(block(world)) == 0
    elsewhere = "0/2 nodes are available: 2 Insufficient memory."
    assert pods(world.unschedulable(elsewhere, "engine")) == 0
    assert pods(world.later(minutes=5, seconds=GRACE_SECONDS)) == 1
    for _ in range(3):
        assert pods(block(world)) == 1
        assert pods(world.unschedulable(elsewhere, "engine").later(minutes=6)) == 1


def test_pods_that_take_long_to_end_have_that_time() -> None:
    world = block(updating(serving={"terminationGracePeriod": "30m"}))
    assert pods(world.later(minutes=34)) == 0
    assert pods(world.later(minutes=1)) == 1


def test_while_the_status_cannot_be_written_nothing_is_taken() -> None:
    world = updating()
    before = copy.deepcopy(world.status)
    world.job_pod(of="engine", placed=False, conditions=[unschedulable(NO_DEVICE)])
    for _ in range(4):
        world.pass_once()
        world.status = copy.deepcopy(before)
        assert pods(world) == 1


@pytest.mark.parametrize("replacement", ["nosuch", "a100"])
def test_class_that_is_removed_during_a_build_has_its_pods_again(replacement: str) -> None:
    world = building(accelerators=[{"class": "l4"}])
    assert pods(world) == 0
    world.classes.append(
        l4(nodeSelector={"pool": "a100"}).model_copy(
            update={"metadata": accelerator_class("a100").metadata}
        )
    )
    world.edit(accelerators=[{"class": replacement}])
    assert pods(world) == 1


def test_yielding_pods_count_as_requested_and_not_as_complete() -> None:
    world = block(updating())
    before = world.status["serving"]
    world.observe(replicas=0)
    assert world.status["serving"]["revision"] == before["revision"]
    assert world.status["serving"]["classes"][0]["replicas"] == 1
    assert world.conditions()["Ready"] == ("False", "CapacityBlocked")


def test_a_revision_that_never_served_does_not_by_having_no_pods() -> None:
    world = finish_build(updating())
    serving = world.status["serving"]["revision"]
    world.new_pod_fails(Reason.DRIVER_TOO_OLD)
    assert world.status["serving"]["revision"] == serving
    world.edit(source={"uri": "https://models.example/third.onnx"})
    block(world.job_succeeds(publish_model("c" * 64, DIGEST)).misses())
    world.observe(replicas=0)
    assert world.status["serving"]["revision"] == serving
    world.job_fails(Reason.BUILD_FAILED, of="engine")
    assert world.status["serving"]["revision"] == serving


def test_an_operator_that_restarts_goes_on() -> None:
    assert pods(building().operator_restarts()) == 0


def without_a_node_of_the_class() -> World:
    world = updating()
    world.nodes = [node for node in world.nodes if node["metadata"]["name"] != "gpu-1"]
    return block(world)


def without_devices() -> World:
    world = updating()
    for entry in world.all("Pod"):
        if entry["metadata"]["labels"].get(COMPONENT) == SERVE:
            entry["spec"] = {}
    return block(world)


def on_another_device() -> World:
    world = block(updating())
    world.nodes.append(gpu_node("gpu-2"))
    pod = world.job_pod(of="engine", **statuses(world.stages("engine"), "build"))
    pod["spec"] = {"nodeName": "gpu-2"}
    return world.settle()


def before_the_yield() -> World:
    world = block(updating())
    world.now -= timedelta(days=1)
    return world.settle()


NO_YIELD: Final[dict[str, Callable[[], World]]] = {
    "Surge, blocked": lambda: block(updating("Surge")),
    "Surge, builds": lambda: builds(updating("Surge")),
    "Surge, queued": lambda: updating("Surge"),
    "paused": lambda: block(updating(rollout={"strategy": "Recreate", "paused": True})),
    "no node of the class": without_a_node_of_the_class,
    "the build has a device": lambda: builds(updating()),
    "the build has another device": on_another_device,
    "pods without a device": without_devices,
    "a clock that goes back": before_the_yield,
}


# event: Jobs | an update must build on the only device, under `Surge` | all pods; the build waits
#   | Ready `CapacityBlocked`
@pytest.mark.parametrize("situation", NO_YIELD)
def test_pods_do_not_yield(situation: str) -> None:
    assert pods(NO_YIELD[situation]()) == 1


# event: Jobs | the spec is put back while an engine is built, or its model is deleted | the previous
#   revision, which gets its device back | the InferenceEngine's Ready `NotRequested`; its Job ends,
#   and starts again once a model needs the engine
@pytest.mark.parametrize("strategy", ["Recreate", "Surge"])
@pytest.mark.parametrize("becomes", [block, builds], ids=["blocked", "builds"])
def test_reverted_model_serves_at_once(becomes: Callable[[World], World], strategy: str) -> None:
    world = becomes(block(updating(strategy)))
    engine = world.status["engines"][0]["name"]
    assert pods(world.edit(source={"uri": "https://models.example/resnet.onnx"})) == 1
    assert world.running_jobs() == []
    assert conditions_of(engine_of(world, engine))["Ready"] == ("False", "NotRequested")
    world.edit(source=OTHER)
    assert world.status["engines"][0]["name"] == engine
    assert finish_build(builds(world)).conditions()["EnginesReady"] == ("True", "Built")


@pytest.mark.parametrize("reason", [Reason.DRIVER_MISSING, Reason.BUILD_FAILED])
def test_failure_is_remembered_when_the_spec_is_reverted(reason: Reason) -> None:
    world = building().job_fails(reason, of="engine")
    engine = world.status["engines"][0]["name"]
    world.edit(source={"uri": "https://models.example/resnet.onnx"}).later(hours=1)
    assert engine_of(world, engine)["status"]["failure"]["reason"] == reason
    assert world.running_jobs() == []


def cannot_start(world: World) -> World:
    """Have the build's pod be on the node whose device it got, where its image cannot be pulled."""
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    names = world.stages("engine")
    every = [{"name": name, "image": "gpu:1", "state": waiting} for name in names]
    return world.job_pod_becomes(
        of="engine", initContainerStatuses=every[:-1], containerStatuses=every[-1:]
    )


# event: Jobs | a build to which pods yielded the device does not begin | nothing for five minutes and
#   the time in which pods end, once for each Job; then the previous revision | what keeps it from
#   starting
def test_pods_wait_five_minutes_for_a_build_to_begin() -> None:
    world = cannot_start(block(updating()))
    assert pods(world.later(minutes=5)) == 0
    assert pods(world.later(seconds=GRACE_SECONDS)) == 1
    assert pods(world.later(hours=1)) == 1


# event: Jobs | a build to which pods yielded the device does not begin
def test_unstartable_build_gives_the_device_back_and_is_given_up() -> None:
    world = updating()
    for attempt in range(1, 6):
        cannot_start(block(world))
        assert pods(world) == 0
        world.later(minutes=5, seconds=GRACE_SECONDS)
        assert pods(world) == 1
        assert world.running_jobs() == []
        assert world.conditions()["Ready"] == ("False", "PodNotStarted")
        assert (world.conditions()["Stalled"][0] == "True") == (attempt == 5)
        world.all_available().later(hours=1)
    assert world.running_jobs() == []


def test_late_build_has_time_to_start() -> None:
    world = block(updating())
    assert pods(world.later(minutes=5, seconds=GRACE_SECONDS)) == 1
    (job,) = world.running_jobs()
    world.later(minutes=40)
    cannot_start(world).later(minutes=4)  # the image is pulled
    assert world.running_jobs() == [job]
    assert finish_build(builds(world)).conditions()["EnginesReady"] == ("True", "Built")


def test_pods_yield_once_to_a_job_whatever_comes_in_between() -> None:
    world = block(updating())
    assert pods(world.later(minutes=5, seconds=GRACE_SECONDS)) == 1
    image = world.config.images["rtx"]
    facts = world.images.pop(image)
    assert world.settle().conditions()["Ready"][1] == "ProbingImage"
    world.images[image] = facts
    assert pods(block(world)) == 1


def test_an_obstacle_that_comes_and_goes_ends_no_build_that_no_pod_waits_for() -> None:
    world = builds(block(updating("Surge")))
    jobs = world.running_jobs()
    classes, world.classes = world.classes, []
    assert world.settle().conditions()["Stalled"][0] == "True"
    assert world.running_jobs() == jobs
    world.classes = classes
    assert world.settle().running_jobs() == jobs


def test_a_pod_that_the_kubelet_refuses_has_not_begun() -> None:
    world = block(updating())
    world.job_pod_becomes(of="engine", phase="Failed", reason="UnexpectedAdmissionError")
    assert pods(world.later(minutes=5, seconds=GRACE_SECONDS)) == 1


def test_pods_that_came_back_for_an_obstacle_leave_only_for_a_build_that_is_blocked() -> None:
    world = building(accelerators=[{"class": "l4"}])
    classes, world.classes = world.classes, []
    assert pods(world.settle()) == 1
    world.all_available().classes = classes
    assert pods(world.settle()) == 1


def test_an_obstacle_that_passes_by_itself_ends_no_build() -> None:
    world = building()
    image = world.config.images["rtx"]
    facts = world.images.pop(image)
    assert pods(world.settle()) == 1
    assert world.conditions()["Ready"][1] == "ProbingImage"
    world.images[image] = facts
    assert finish_build(world.settle()).conditions()["EnginesReady"] == ("True", "Built")


def on_two_classes() -> World:
    """Return a model on two classes, whose engines are both to be built where pods serve."""
    both = [{"class": "a10"}, {"class": "l4"}]
    world = World(rollout={"strategy": "Recreate"}, accelerators=both).has_gpus(aheadOfTime=False)
    other = l4(aheadOfTime=False, nodeSelector={"pool": "a10"})
    metadata = other.metadata.model_copy(update={"name": "a10"})
    world.classes.append(other.model_copy(update={"metadata": metadata}))
    world.nodes += [gpu_node("gpu-1"), gpu_node("gpu-2", "NVIDIA-A10", pool="a10")]
    world.settle().job_succeeds().engine_built().all_available()
    world.edit(source=OTHER).job_succeeds(SECOND)
    for job in world.running_jobs():
        world.misses(job["metadata"]["name"])
    return world


def job_of(world: World, accelerator_class: str) -> str:
    (engine,) = [
        running_job["metadata"]["name"]
        for running_job in world.running_jobs()
        if running_job["metadata"]["labels"][CLASS] == accelerator_class
    ]
    return str(engine)


@pytest.mark.parametrize("first", ["blocked", "failed"])
def test_an_update_that_is_refused_takes_no_pods_away(first: str) -> None:
    world = on_two_classes()
    others, failing = job_of(world, "l4"), job_of(world, "a10")
    if first == "blocked":
        world.unschedulable(NO_DEVICE, others)
        assert sorted(world.replicas().values()) == [0, 1]
    world.job_fails(Reason.BUILD_FAILED, of=failing)
    assert world.conditions()["Ready"] == ("False", "BuildFailed")
    assert sorted(world.replicas().values()) == [1, 1]
    world.unschedulable(NO_DEVICE, others).later(minutes=1)
    assert sorted(world.replicas().values()) == [1, 1]


def test_that_pods_yield_is_stated_whatever_the_first_class_waits_for() -> None:
    world = on_two_classes()
    world.unschedulable(NO_DEVICE, job_of(world, "l4"))
    assert world.replicas()["resnet-l4"] == 0
    assert "the pods of l4 yield the device" in world.message()


def test_no_yield_to_a_rebuild_of_the_own_engine() -> None:
    world = World(rollout={"strategy": "Recreate"}, replicas=2).has_gpus(aheadOfTime=False)
    world.nodes += [gpu_node("gpu-1"), gpu_node("gpu-2")]
    world.settle().job_succeeds().misses()
    finish_build(world).all_available().now += timedelta(days=1)
    name = world.the("Deployment")["metadata"]["name"]
    world.partly_available(name, 1)
    world.crash(name, Reason.ENGINE_CORRUPT, "fetch-artifact", index=1)
    world.settle().misses()
    assert pods(block(world)) == 2
    assert world.conditions()["Ready"] == ("False", "CapacityBlocked")


def test_another_spec_build_has_the_device_too() -> None:
    world = block(updating()).later(minutes=6).all_available()
    builds(world).job_fails(Reason.BUILD_FAILED, of="engine")
    assert pods(block(world.edit(build={"timeout": "3h"}).misses())) == 0
