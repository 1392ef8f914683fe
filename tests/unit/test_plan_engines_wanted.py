"""Engines as a model's plan sees them: asked for once, judged against the promise, never repeated."""

from typing import Any, Final

import pytest
from enginewright.api.inference_engine import EngineFacts
from enginewright.plan.engines.status import describe_engine
from enginewright_contract.keys import engine_key
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ENGINE_STAGES, EngineRecipe, ServeTask

from tests.support.plan_objects import (
    GPU_IMAGE,
    RTX_IMAGE,
    accelerator_class,
    gpu_node,
    publish_model,
)
from tests.support.plan_world import World


def container_of(pod: dict[str, Any], name: str) -> dict[str, Any]:
    spec = pod["spec"]
    (container,) = [c for c in (*spec["initContainers"], *spec["containers"]) if c["name"] == name]
    return dict(container)


def prepare(classes: dict[str, Any] | None = None, **spec: Any) -> World:
    return World(**spec).has_gpus(**(classes or {})).settle().job_succeeds()


def test_an_engine_is_asked_for_once_the_model_is_prepared() -> None:
    world = World().has_gpus().settle()
    assert world.all("InferenceEngine") == []
    world.job_succeeds()
    engine = world.the("InferenceEngine")
    recipe = EngineRecipe(
        backend="tensorrt-rtx",
        backend_version="1.7.1.116",
        ort_version="1.31.1",
        accelerator_class="l4",
        device="NVIDIA-L4 nvidia.com/gpu",
        compute_capability="8.9",
        ahead_of_time=True,
    )
    assert engine["spec"]["key"] == engine_key("a" * 64, recipe)
    assert engine["metadata"]["name"] == f"tensorrt-rtx-l4-{engine['spec']['key'][:12]}"
    assert "ownerReferences" not in engine["metadata"], "two models may share it"
    assert world.status["engines"] == [{"class": "l4", "name": engine["metadata"]["name"]}]
    assert world.all("Deployment") == []


def test_a_build_ahead_of_time_asks_for_no_device() -> None:
    build = prepare().the("InferenceEngine")["spec"]["build"]
    assert "resourceName" not in build
    assert build["image"] == RTX_IMAGE


def test_a_build_ahead_of_time_goes_to_a_node_of_its_class_where_there_is_one() -> None:
    assert "nodeSelector" not in prepare().the("InferenceEngine")["spec"]["build"]
    world = World().has_gpus()
    world.nodes.append(gpu_node("gpu-1"))
    build = world.settle().job_succeeds().the("InferenceEngine")["spec"]["build"]
    assert build["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_a_build_on_a_device_asks_for_one_of_the_class() -> None:
    world = prepare({"aheadOfTime": False}, build={"workspace": "4Gi", "timeout": "2h"})
    spec = world.the("InferenceEngine")["spec"]
    assert spec["build"]["resourceName"] == "nvidia.com/gpu"
    assert spec["build"]["timeoutSeconds"] == 7200
    assert spec["recipe"]["workspaceBytes"] == 4 << 30
    assert "aheadOfTime" not in spec["recipe"]


def test_class_of_different_devices_gets_no_engine() -> None:
    world = World().has_gpus(nodeSelector={"pool": "gpus"}, aheadOfTime=False)
    world.nodes = [
        gpu_node("a", "NVIDIA-L4", pool="gpus"),
        gpu_node("b", "NVIDIA-L40S", pool="gpus"),
    ]
    world.settle()
    assert world.conditions()["Stalled"] == ("True", "MixedDevices")
    assert "NVIDIA-L4, NVIDIA-L40S" in world.message()
    world.nodes = [gpu_node("a", "NVIDIA-L4", pool="gpus"), gpu_node("b", "NVIDIA-L4", pool="gpus")]
    assert world.settle().conditions()["Ready"] == ("False", "Preparing")


def test_pods_serve_the_engine_when_it_is_built() -> None:
    world = prepare().engine_built()
    (variable,) = container_of(world.the("Deployment")["spec"]["template"], "server")["env"]
    task = ServeTask.model_validate_json(variable["value"])
    assert task.engine_key == world.the("InferenceEngine")["spec"]["key"]
    assert task.compute_capability == "8.9"
    assert task.promise.policy == "Forbid"
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    built = EngineFacts.model_validate(world.the("InferenceEngine")["status"]["engine"])
    assert world.condition("EnginesReady")["message"] == (
        f"{describe_engine(built)}, sha256 eeeeeeeeeeee"
    )


def test_other_build_settings_are_a_new_chance_after_a_failure_for_good() -> None:
    world = prepare().engine_fails(Reason.BUILD_OUT_OF_MEMORY)
    world.edit(build={"resources": {"limits": {"memory": "16Gi"}}})
    assert world.the("InferenceEngine")["spec"]["build"]["resources"] == {
        "limits": {"memory": "16Gi"}
    }


@pytest.mark.parametrize("component", ["engine-lookup", "engine"])
def test_while_a_job_runs_on_a_node_other_settings_change_nothing(component: str) -> None:
    world = prepare({"aheadOfTime": False})
    if component == "engine":
        world.misses()
    world.stage_runs(world.stages(component)[0], component)
    before = world.the("InferenceEngine")["spec"]
    world.edit(build={"timeout": "2h"})
    assert world.the("InferenceEngine")["spec"] == before
    assert len(world.running_jobs()) == 1


# event: Jobs | the resources or the time of a build change | the previous revision; a Job for an
#   engine that runs on a node goes on, any other is replaced | Ready `Queued`, then `Building`
@pytest.mark.parametrize("pod", ["none yet", "unschedulable", "without its image"])
def test_a_job_that_waits_is_replaced_by_one_with_the_edited_resources(pod: str) -> None:
    too_much, enough = ({"requests": {"memory": item}} for item in ("900Gi", "4Gi"))
    world = prepare({"aheadOfTime": False}, build={"resources": too_much}).misses()
    if pod == "unschedulable":
        world.unschedulable("0/3 nodes are available: 3 Insufficient memory.", "engine")
    if pod == "without its image":
        waits = {"name": "build", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
        world.job_pod_becomes(of="engine", initContainerStatuses=[waits])
    first = world.job("engine")["metadata"]["name"]
    world.edit(build={"resources": enough})
    assert not world.find("Job", first)
    world.misses()
    (build, *_) = world.job("engine")["spec"]["template"]["spec"]["initContainers"]
    assert build["resources"]["requests"] == {"memory": "4Gi"}
    assert len(world.running_jobs()) == 1


def test_a_build_between_two_attempts_takes_edited_resources() -> None:
    world = prepare().job_fails(Reason.DRIVER_MISSING, of="engine")
    world.edit(build={"resources": {"requests": {"memory": "4Gi"}}})
    (build, *_) = world.job("engine")["spec"]["template"]["spec"]["initContainers"]
    assert build["resources"]["requests"] == {"memory": "4Gi"}


def test_an_edit_does_not_return_to_a_build_that_has_failed_for_good() -> None:
    world = prepare().job_fails(Reason.BUILD_FAILED, of="engine").edit(build={"timeout": "2h"})
    world.edit(build={})
    assert world.the("InferenceEngine")["spec"]["build"]["timeoutSeconds"] == 7200
    assert len(world.running_jobs()) == 1


def test_an_engine_that_is_deleted_is_asked_for_again_while_the_old_revision_serves() -> None:
    world = prepare().engine_built().all_available()
    name = world.the("InferenceEngine")["metadata"]["name"]
    world.remove("InferenceEngine", name)
    world.settle()
    assert world.the("InferenceEngine")["metadata"]["name"] == name
    assert world.all("Deployment"), "what serves, serves on"
    assert world.conditions()["Available"][0] == "True"
    assert world.conditions()["Ready"] == ("False", "Queued")


@pytest.mark.parametrize(
    ("fallback", "reported"),
    [
        ({}, ("False", "NodeFallback")),
        ({"policy": "Budget", "maxNodeShare": "5%"}, ("False", "RollingOut")),
        ({"policy": "Budget", "maxNodeShare": "4%"}, ("False", "FallbackOverBudget")),
        ({"policy": "Budget", "maxComputeShare": "9%"}, ("False", "FallbackOverBudget")),
        ({"policy": "Budget", "maxComputeShare": "50%"}, ("False", "RollingOut")),
        ({"policy": "Allow"}, ("False", "RollingOut")),
    ],
)
def test_partial_engine_is_judged_first(
    fallback: dict[str, str], reported: tuple[str, str]
) -> None:
    world = prepare(**({"fallback": fallback} if fallback else {})).engine_built(
        accelerated=100, elsewhere=["a (Det)", "b (Det)"], computePermilleElsewhere=120
    )
    assert world.conditions()["Ready"] == reported
    started = bool(world.all("Deployment"))
    assert started == (reported[1] == "RollingOut")
    if not started:
        message = world.message()
        assert "5 of 105 nodes, 12% of the compute time" in message
        assert "a (Det), b (Det) and 3 more" in message


def test_an_unknown_compute_share_does_not_prove_a_budget() -> None:
    world = prepare(fallback={"policy": "Budget", "maxComputeShare": "50%"}).engine_built(
        accelerated=104
    )
    assert world.conditions()["Ready"] == ("False", "FallbackOverBudget")


def allow(*backends: str) -> dict[str, Any]:
    return {"fallback": {"policy": "Allow"}, "backends": list(backends)}


def test_under_allow_the_next_backend_takes_over_and_says_which_was_asked_for() -> None:
    world = prepare(None, **allow("tensorrt-rtx", "cuda")).engine_fails(Reason.BUILD_FAILED)
    (rejected,) = world.status["rejectedBackends"]
    assert (rejected["backend"], rejected["reason"]) == ("tensorrt-rtx", "BuildFailed")
    world.job_succeeds(publish_model(key="c" * 64)).all_available()
    template = world.the("Deployment")["spec"]["template"]
    (variable,) = container_of(template, "server")["env"]
    task = ServeTask.model_validate_json(variable["value"])
    assert task.backend == "cuda"
    assert task.promise.asked_backend == "tensorrt-rtx"
    assert container_of(template, "server")["image"] == GPU_IMAGE


@pytest.mark.parametrize(
    "spec",
    [allow("tensorrt-rtx"), {"backends": ["tensorrt-rtx", "cuda"]}],
    ids=["the last one", "without Allow"],
)
def test_a_backend_without_another_after_it_keeps_its_own_reason(spec: dict[str, Any]) -> None:
    world = prepare(None, **spec).engine_fails(Reason.BUILD_FAILED)
    assert "rejectedBackends" not in world.status
    assert world.conditions()["Ready"] == ("False", "BuildFailed")


def test_a_failure_that_is_no_backends_fault_rejects_none() -> None:
    world = World(**allow("tensorrt-rtx", "cuda")).has_gpus().settle()
    world.job_fails(Reason.DIGEST_MISMATCH, "fetch")
    assert "rejectedBackends" not in world.status


def test_a_change_of_the_spec_gives_a_rejected_backend_a_new_chance() -> None:
    world = prepare(None, **allow("tensorrt-rtx", "cuda")).engine_fails(Reason.BUILD_FAILED)
    world.job_succeeds(publish_model(key="c" * 64)).all_available()
    world.edit(build={"timeout": "3h"})
    assert "inputsHash" not in world.status["rejectedBackends"][0], (
        "the failure is of another build"
    )
    assert world.the("InferenceEngine")["spec"]["build"]["timeoutSeconds"] == 3 * 3600


def test_an_image_without_the_backends_libraries_is_named() -> None:
    world = World(backends=["cuda"]).has_gpus()
    world.images[GPU_IMAGE] = world.images[GPU_IMAGE].model_copy(update={"backends": {}})
    world.settle()
    assert world.conditions()["Stalled"] == ("True", "BackendNotAllowed")
    assert GPU_IMAGE in world.condition("Stalled")["message"]


def test_image_with_an_unusable_library_serves_other_backends() -> None:
    def world(backend: str) -> World:
        world = World(backends=[backend]).has_gpus(backends=["tensorrt", "cuda"])
        why = {"tensorrt": "this image has TensorRT 11"}
        world.images[GPU_IMAGE] = world.images[GPU_IMAGE].model_copy(update={"unusable": why})
        return world.settle()

    refused = world("tensorrt")
    assert refused.conditions()["Stalled"] == ("True", "BackendNotAllowed")
    message = refused.condition("Stalled")["message"]
    assert "contains cuda, not tensorrt: this image has TensorRT 11; build the image" in message
    assert world("cuda").conditions()["Ready"] == ("False", "Preparing")


DAMAGE: Final = "engine abababababab is damaged: file m.engine has 5 bytes instead of 9"


def test_an_engine_that_the_store_has_lost_is_built_again_once() -> None:
    world = prepare().engine_built().all_available()
    engine = world.the("InferenceEngine")
    uid = engine["metadata"]["uid"]
    world.now = world.now.replace(hour=13)
    world.new_pod_fails(Reason.ENGINE_CORRUPT, "fetch-artifact", DAMAGE)
    messages = [event.message for event in world.events]
    assert any(f"the engine for l4 is built again: {DAMAGE}" in message for message in messages)
    again = world.the("InferenceEngine")
    assert again["metadata"]["uid"] != uid
    assert again["spec"]["key"] == engine["spec"]["key"]
    assert world.stages("engine") == ENGINE_STAGES
    assert len(world.running_jobs()) == 1, "the model is there"
    world.settle()
    assert world.the("InferenceEngine")["metadata"]["uid"] == again["metadata"]["uid"]


def test_an_engine_that_is_lost_is_built_again_for_its_class_alone() -> None:
    world = World(accelerators=[{"class": "l4"}, {"class": "other"}]).has_gpus()
    selector = {"nvidia.com/gpu.product": "NVIDIA-OTHER"}
    changed = {"nodeSelector": selector, "aheadOfTime": True, "computeCapability": "12.0"}
    world.classes.append(accelerator_class("other", "tensorrt-rtx", "cuda", **changed))
    world.settle().job_succeeds().engine_built().all_available().later(hours=1)
    uids = {
        entry["spec"]["class"]: entry["metadata"]["uid"] for entry in world.all("InferenceEngine")
    }
    world.crash("resnet-l4", Reason.ENGINE_CORRUPT, "fetch-artifact", DAMAGE)
    world.settle()
    now = {
        entry["spec"]["class"]: entry["metadata"]["uid"] for entry in world.all("InferenceEngine")
    }
    assert [name for name in uids if now[name] != uids[name]] == ["l4"]


# fault: Engines | an engine for GPUs on which no provider serves it (T4, A100, H100 with
#   TensorRT-RTX)
@pytest.mark.parametrize("capability", ["7.5", "8.0", "9.0"])
def test_no_engine_is_asked_for_where_none_can_be_served(capability: str) -> None:
    """TensorRT-RTX builds for the first two, and its provider takes none of them."""
    world = World().has_gpus(computeCapability=capability).settle()
    assert world.conditions()["Stalled"] == ("True", "BackendNotAllowed")
    message = world.condition("Stalled")["message"]
    assert "tensorrt-rtx does not run on the class l4" in message
    assert "supports only 8.6, 8.9, 12.0 and newer" in message
    assert "choose one of cuda in spec.backends" in message
    assert not world.children()
    world = World(**allow("tensorrt-rtx", "cuda")).has_gpus(computeCapability=capability).settle()
    (container,) = world.job()["spec"]["template"]["spec"]["initContainers"][:1]
    assert container["image"] == GPU_IMAGE
