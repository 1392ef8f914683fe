"""Interims, which serve until the first engines are built: when, on which classes, and what is reported."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check, FallbackVerdict

from tests.support.plan_objects import (
    CPU_IMAGE,
    GPU_IMAGE,
    OTHER,
    SECOND,
    gpu_node,
    image_facts,
    l4,
    publish_model,
    verdict,
)
from tests.support.plan_world import World
from tests.support.simulation import NO_DEVICE

BOTH: Final = ["tensorrt-rtx", "cuda"]


def building(interim: str = "CPU", gpus: dict[str, Any] | None = None, **spec: Any) -> World:
    """Return a model of which the engine is built."""
    build = {"interim": interim, **spec.pop("build", {})}
    return World(build=build, **spec).has_gpus(**(gpus or {})).settle().job_succeeds()


def bridge(interim: str = "CPU", **spec: Any) -> World:
    """Return a model whose interim serves."""
    return building(interim, **spec).all_available()


def task(world: World) -> ServeTask:
    (deployment,) = world.serving_deployments()
    return task_of(deployment)


def task_of(deployment: dict[str, Any]) -> ServeTask:
    server = deployment["spec"]["template"]["spec"]["containers"][0]
    value = next(item["value"] for item in server["env"] if item["name"] == "ENGINEWRIGHT_TASK")
    return ServeTask.model_validate_json(value)


def backends(world: World) -> dict[str, str]:
    return {
        serving_deployment["metadata"]["labels"]["enginewright.dev/class"]: task_of(
            serving_deployment
        ).backend
        for serving_deployment in world.serving_deployments()
    }


def ready(world: World) -> tuple[str, str]:
    return world.conditions()["Ready"]


# the usual sequence


def test_an_interim_serves_while_the_first_engine_is_built() -> None:
    world = building()
    asked = task(world)
    assert (asked.backend, asked.engine_key, asked.prepared_key) == ("cpu", None, "a" * 64)
    assert ready(world) == ("False", "Queued")
    assert "its interim, revision" in world.message()
    world.all_available()
    assert ready(world) == ("True", "ServingInterim")
    assert world.conditions()["Available"] == ("True", "Serving")
    assert world.conditions()["EnginesReady"] == ("False", "Queued")
    assert world.status["summary"]["backend"] == "cpu (interim)"
    (serving,) = world.status["serving"]["classes"]
    assert (serving["class"], serving["backend"], serving["interim"]) == ("l4", "cpu", True)
    assert "ServingInterim" in world.event_reasons()


# event: Jobs | the first engine of a class is built, with `spec.build.interim` | the prepared model, without an
#   engine, until the engine's pods have passed | Ready `ServingInterim`, then Event `InterimEnded`
def test_the_engine_replaces_the_interim_by_the_usual_rollout() -> None:
    world = bridge()
    interim = world.status["serving"]["revision"]
    world.engine_built()
    assert world.status["serving"]["revision"] == interim, "until the engine's pods are ready"
    world.all_available()
    assert ready(world) == ("True", "Serving")
    assert task(world).backend == "tensorrt-rtx"
    assert world.status["summary"]["backend"] == "tensorrt-rtx"
    assert "interim" not in world.status["serving"]["classes"][0]
    assert world.event_reasons().count("InterimEnded") == 1
    world.operator_restarts()
    assert world.event_reasons().count("InterimEnded") == 1


def test_the_engine_is_proved_beside_the_interim_by_a_canary() -> None:
    world = bridge(rollout={"canary": {"replicas": 1}})
    interim = world.status["serving"]["revision"]
    world.engine_built()
    (canary,) = world.canaries()
    assert task_of(canary).backend == "tensorrt-rtx"
    assert task(world).backend == "cpu"
    assert world.status["serving"]["revision"] == interim


def test_nothing_serves_before_the_engine_unless_asked_for() -> None:
    world = World().has_gpus().settle().job_succeeds()
    assert world.all("Deployment") == []
    world = building("None")
    assert world.all("Deployment") == []


# which device


def test_an_interim_on_the_cpu_leaves_the_device_to_the_build() -> None:
    world = building(gpus={"aheadOfTime": False})
    (deployment,) = world.serving_deployments()
    pod = deployment["spec"]["template"]["spec"]
    assert "nvidia.com/gpu" not in str([item["resources"] for item in pod["containers"]])
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_an_interim_on_a_device_starts_once_the_build_has_its_own() -> None:
    world = building("CUDA", {"aheadOfTime": False, "backends": BOTH})
    assert world.all("Deployment") == []
    assert "it starts once the build for l4 has its device" in world.message()
    world.misses().unschedulable(NO_DEVICE, "engine")
    assert world.all("Deployment") == []
    assert ready(world) == ("False", "CapacityBlocked")
    world.stage_runs("build", "engine")
    assert (task(world).backend, task(world).engine_key) == ("cuda", None)
    (deployment,) = world.serving_deployments()
    server = deployment["spec"]["template"]["spec"]["containers"][0]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert server["image"] == GPU_IMAGE


def test_an_interim_that_has_begun_goes_on_while_the_next_build_waits_for_a_device() -> None:
    world = building("CUDA", {"aheadOfTime": False, "backends": BOTH})
    world.misses().stage_runs("build", "engine").all_available()
    assert ready(world) == ("True", "ServingInterim")
    world.unschedulable(NO_DEVICE, "engine")
    assert task(world).backend == "cuda"
    assert ready(world) == ("False", "CapacityBlocked")
    assert "CPU would leave its device to the build" in world.message()
    assert world.conditions()["Available"][0] == "True"


def test_pods_without_a_device_do_not_yield_theirs() -> None:
    world = building(gpus={"aheadOfTime": False}, rollout={"strategy": "Recreate"})
    world.all_available().misses().unschedulable(NO_DEVICE, "engine")
    world.settle()
    assert world.replicas() == {"resnet-l4": 1}
    assert ready(world) == ("False", "CapacityBlocked")


def test_an_interim_on_the_only_device_yields_it_to_the_next_build_under_recreate() -> None:
    gpus = {"aheadOfTime": False, "backends": BOTH}
    world = World(build={"interim": "CUDA"}, rollout={"strategy": "Recreate"}).has_gpus(**gpus)
    world.nodes.append(gpu_node("g"))
    world.settle().job_succeeds().misses().stage_runs("build", "engine").all_available()
    assert world.replicas() == {"resnet-l4": 1}
    world.unschedulable(NO_DEVICE, "engine").settle()
    assert world.replicas() == {"resnet-l4": 0}
    world.stage_runs("build", "engine").succeeds("engine", nodes_accelerated=415)
    assert world.replicas() == {"resnet-l4": 1}
    assert task(world).backend == "tensorrt-rtx"


# what cannot be


def test_an_interim_that_a_class_does_not_run_is_refused() -> None:
    world = World(build={"interim": "CUDA"}).has_gpus(backends=["tensorrt-rtx"]).settle()
    assert world.conditions()["Stalled"] == ("True", "BackendNotAllowed")
    assert "the class l4 does not allow the backend cuda; write CPU or None" in world.message()


def test_an_interim_is_refused_also_if_only_a_later_candidate_needs_it() -> None:
    world = World(build={"interim": "CUDA"}, fallback={"policy": "Allow"})
    world.has_gpus(backends=["cpu", "tensorrt-rtx"]).settle()
    assert world.conditions()["Stalled"] == ("True", "BackendNotAllowed")
    assert "the class l4 does not allow the backend cuda" in world.message()


def test_an_interim_without_an_image_is_refused() -> None:
    world = World(build={"interim": "CUDA"}).has_gpus(backends=BOTH)
    images = {name: image for name, image in world.config.images.items() if name != "gpu"}
    world.config = replace(world.config, images=images)
    world.settle()
    assert world.conditions()["Stalled"] == ("True", "BackendNotAllowed")
    assert "images.runtime.gpu" in world.message()


def test_an_interim_that_is_not_needed_any_more_is_not_refused() -> None:
    world = building("CPU").engine_built().all_available()
    assert ready(world) == ("True", "Serving")
    images = {name: image for name, image in world.config.images.items() if name != "cpu"}
    world.config = replace(world.config, images=images)
    world.settle()
    assert ready(world) == ("True", "Serving")


def test_an_interim_with_another_onnx_runtime_than_the_model_is_verified_with_is_reported() -> None:
    world = World(build={"interim": "CPU"}).has_gpus()
    world.images[CPU_IMAGE] = image_facts("cpu", "1.24.1")
    world.settle().job_succeeds()
    assert world.all("Deployment") == []
    assert ready(world) == ("False", "Queued")
    assert (
        "no interim serves on cpu: the model is verified with ONNX Runtime 1.31.1"
        in world.message()
    )
    assert f"but {CPU_IMAGE} has 1.24.1" in world.message()
    world.engine_built().all_available()
    assert ready(world) == ("True", "Serving")


def test_an_interim_in_a_precision_that_the_cpu_lacks_is_reported() -> None:
    world = World(build={"interim": "CPU"}).has_gpus().settle()
    world.job_succeeds(publish_model().model_copy(update={"precision": "FP16"}))
    assert world.all("Deployment") == []
    assert "the prepared model is FP16: backend cpu supports FP32, INT8" in world.message()


def test_an_interim_that_lacks_the_precision_of_the_rest_is_reported() -> None:
    """The API server refuses this spec, unless it is older than the rule."""
    quantization = {"calibration": {"uri": "pvc://a/b"}, "rest": "FP16"}
    world = World(build={"interim": "CPU"}, precision="INT8", quantization=quantization).has_gpus()
    world.settle().job_succeeds(publish_model().model_copy(update={"precision": "INT8"}))
    assert world.all("Deployment") == []
    assert "the prepared model is INT8: backend cpu runs the rest" in world.message()


def test_failing_interim_does_not_stop_the_build() -> None:
    world = building(fallback={"policy": "Allow"}, gpus={"backends": BOTH})
    world.rolling(0, stuck=True).new_pod_fails(Reason.UNSUPPORTED_OPERATOR)
    assert ready(world) == ("False", "Queued")
    assert " on cpu, fails: server!" in world.message()
    assert "rejectedBackends" not in world.status
    assert world.conditions()["Stalled"][0] == "False"
    world.engine_built().all_available()
    assert ready(world) == ("True", "Serving")
    assert task(world).backend == "tensorrt-rtx"


# engines that cannot be


# event: Jobs | the first engine of a class cannot be built, with `spec.build.interim` | the interim | Ready with the
#   build's reason, `Stalled`; `Available`
def test_an_engine_that_cannot_be_built_leaves_the_interim_and_says_so() -> None:
    world = bridge().engine_fails(Reason.BUILD_FAILED)
    assert ready(world) == ("False", "BuildFailed")
    assert world.conditions()["Stalled"] == ("True", "BuildFailed")
    assert "keeps serving" in world.message()
    assert world.conditions()["Available"][0] == "True"
    assert task(world).backend == "cpu"
    assert world.replicas() == {"resnet-l4": 1}
    world.operator_restarts()
    assert ready(world) == ("False", "BuildFailed")


def test_the_next_backend_takes_over_from_the_interim_of_one_that_cannot_be_built() -> None:
    world = bridge(fallback={"policy": "Allow"}, gpus={"backends": BOTH})
    world.engine_fails(Reason.BUILD_FAILED)
    assert task(world).backend == "cpu", "while the next backend is prepared"
    world.job_succeeds(publish_model(key="c" * 64)).all_available()
    assert task(world).backend == "cuda"
    assert world.status["summary"]["backend"] == "cuda"


# fault: Reports | nodes of an interim on a GPU run on the CPU, as if that were the interim | its sidecar
#   proves it like any backend: FallbackActive | at its first verdict
def test_a_fallback_of_the_interim_is_reported_as_one() -> None:
    world = bridge(fallback={"policy": "Allow"})
    assert world.conditions()["FallbackActive"][0] != "True"
    elsewhere = FallbackVerdict(
        active=True, kind="NodeFallback", message="1 of 9 nodes elsewhere", nodes_total=9
    )
    world.sidecars_say(verdict(fallback=elsewhere))
    assert world.conditions()["FallbackActive"][0] == "True"


def test_wrong_answers_of_the_interim_are_reported() -> None:
    world = bridge().sidecars_say(verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED}))
    assert ready(world) == ("False", "ParityFailed")
    assert "its interim" in world.message()


# only until the first engine


def with_a_lost_engine() -> World:
    world = bridge().engine_built().all_available()
    for engine in world.all("InferenceEngine"):
        world.remove("InferenceEngine", engine["metadata"]["name"])
    return world.settle()


def from_cuda_to_an_engine() -> World:
    world = World(backends=["cuda"], build={"interim": "CPU"}).has_gpus(backends=BOTH)
    world.settle().job_succeeds().all_available()
    return world.edit(backends=["tensorrt-rtx"]).job_succeeds(SECOND)


SITUATIONS: Final[dict[str, tuple[Callable[[], World], str, str]]] = {
    "the engine's pods fail": (
        lambda: bridge().engine_built().rolling(1, stuck=True).new_pod_fails(Reason.DRIVER_MISSING),
        "cpu",
        "RolloutFailed",
    ),
    "the engine breaks the promise": (
        lambda: bridge().engine_built(accelerated=100, elsewhere=["det (Det)"]),
        "cpu",
        "NodeFallback",
    ),
    "an update is refused": (
        lambda: bridge().edit(source=OTHER).job_fails(Reason.DIGEST_MISMATCH, "fetch"),
        "cpu",
        "DigestMismatch",
    ),
    "asked for during the build": (
        lambda: World().has_gpus().settle().job_succeeds().edit(build={"interim": "CPU"}),
        "cpu",
        "ServingInterim",
    ),
    "on a device that no build needs": (
        lambda: bridge("CUDA", gpus={"backends": BOTH}),
        "cuda",
        "ServingInterim",
    ),
    "another interim": (
        lambda: bridge("CUDA", gpus={"backends": BOTH}).edit(build={"interim": "CPU"}),
        "cpu",
        "ServingInterim",
    ),
    "at zero": (lambda: bridge().edit(replicas=0), "cpu", "ScaledToZero"),
    "the engine is lost": (with_a_lost_engine, "tensorrt-rtx", "Queued"),
    "from cuda to an engine": (from_cuda_to_an_engine, "cuda", "Queued"),
    "a backend without engines": (
        lambda: World(build={"interim": "CPU"}).settle().job_succeeds(),
        "cpu",
        "Serving",
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_backend_that_serves_meanwhile(situation: str) -> None:
    build, backend, reason = SITUATIONS[situation]
    world = build().all_available()
    assert task(world).backend == backend
    assert ready(world)[1] == reason
    if situation != "at zero":
        assert world.conditions()["Available"][0] == "True"


def test_engine_serves_while_the_next_is_built() -> None:
    world = bridge().engine_built().all_available()
    before = world.status["serving"]["revision"]
    world.edit(source=OTHER).job_succeeds(SECOND)
    assert ready(world) == ("False", "Queued")
    assert world.status["serving"]["revision"] == before
    assert "interim" not in world.message()
    assert task(world).backend == "tensorrt-rtx"


def test_a_changed_spec_moves_the_interim() -> None:
    world = bridge()
    world.edit(source=OTHER).job_succeeds(SECOND).all_available()
    assert ready(world) == ("True", "ServingInterim")
    assert (task(world).backend, task(world).prepared_key) == ("cpu", SECOND.key)
    world.engine_built().all_available()
    assert ready(world) == ("True", "Serving")


def test_an_interim_that_is_asked_for_no_more_serves_until_the_engine_does() -> None:
    world = bridge().edit(build={"interim": "None"})
    assert task(world).backend == "cpu"
    assert ready(world) == ("False", "Queued")
    assert "keeps serving" in world.message()
    world.engine_built().all_available()
    assert ready(world) == ("True", "Serving")


def two(**spec: Any) -> World:
    world = World(build={"interim": "CPU"}, accelerators=[{"class": "l4"}], **spec).has_gpus()
    a10 = l4(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-A10"}, computeCapability="8.6")
    metadata = a10.metadata.model_copy(update={"name": "a10"})
    world.classes.append(a10.model_copy(update={"metadata": metadata}))
    return world.settle().job_succeeds()


def test_a_class_that_is_added_has_an_interim_beside_the_engine_of_the_other() -> None:
    world = two().all_available().engine_built().all_available()
    world.edit(accelerators=[{"class": "l4"}, {"class": "a10"}], replicas=2)
    world.all_available()
    assert backends(world) == {"l4": "tensorrt-rtx", "a10": "cpu"}
    assert ready(world) == ("True", "ServingInterim")
    assert world.status["summary"]["backend"] == "cpu (interim),tensorrt-rtx"
    world.engine_built().all_available()
    assert backends(world) == {"l4": "tensorrt-rtx", "a10": "tensorrt-rtx"}
    assert ready(world) == ("True", "Serving")


def test_no_class_goes_back_to_an_interim_because_another_is_added() -> None:
    world = two().all_available().engine_built().all_available()
    world.edit(accelerators=[{"class": "l4"}, {"class": "a10"}], source=OTHER, replicas=2)
    world.job_succeeds(SECOND)
    assert backends(world) == {"l4": "tensorrt-rtx"}, "the old revision, until l4 has its engine"


def test_a_paused_rollout_starts_no_interim() -> None:
    world = building(rollout={"paused": True})
    assert world.all("Deployment") == []
    assert "waits: spec.rollout.paused is true" in world.message()
