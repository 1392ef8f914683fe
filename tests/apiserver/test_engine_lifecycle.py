"""Engines with the operator's process on a real API server; scheduler and kubelet are played.

Writes are counted by the operator's own request metrics and, independently, by resource versions.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from enginewright_contract.task import ENGINE_STAGES, PREPARE_STAGES, EngineTask, ServeTask

from tests.apiserver.world import (
    DIGEST,
    GOOD,
    GPU_IMAGE,
    NOTHING,
    PUBLISHED,
    RTX_IMAGE,
    WHOLE,
    EngineWorld,
    Stages,
    engine_built,
    engine_found,
    model,
    set_up,
    task_of,
    wait_engine_pass,
)
from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.operator_process import CPU_IMAGE
from tests.support.plan_objects import ENGINE

pytestmark = pytest.mark.apiserver

NO_DEVICE: Final = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
RTX: Final = {"rtx": RTX_IMAGE}
REFUSED: Final[Stages] = {
    "build": {
        "ok": False,
        "reason": "BuildFailed",
        "message": "TensorRT has no operator Det; replace it when exporting",
    }
}


@pytest.fixture
def world(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[EngineWorld]:
    with set_up(EngineWorld, new_namespace, tmp_path) as world:
        yield world


def test_from_the_look_into_the_store_to_the_engine(world: EngineWorld) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.apply()
        world.wait("False", "LookingUp")
        assert world.jobs("engine") == [], "no device before the lookup has ended"
        world.look(NOTHING)
        job = world.job("engine")
        world.wait("False", "Queued")
        owner = world.user.get("ieng", ENGINE)["metadata"]["uid"]
        assert job["metadata"]["ownerReferences"][0]["uid"] == owner
        spec = job["spec"]["template"]["spec"]
        limits = [item["resources"].get("limits") for item in spec["initContainers"]]
        assert limits == [{"nvidia.com/gpu": "1"}] * 3

        pod = played.start_pod(world.user, job)
        played.place_pod(world.user, pod)
        for number, stage in enumerate(ENGINE_STAGES, start=1):
            ended: Stages = {
                engine_stage: {"ok": True} for engine_stage in ENGINE_STAGES[: number - 1]
            }
            played.run_stages(world.user, pod, ended, stage, ENGINE_STAGES)
            world.wait_message(f"{stage} ({number}/4)")
        played.run_stages(world.user, pod, engine_built(world.key), None, ENGINE_STAGES)
        played.complete_job(world.user, job["metadata"]["name"])
        message = world.wait("True", "Built")
        assert message.startswith("built: 3.5 MB for compute capability 8.9, 412 of 415 nodes")
        assert world.condition("Reconciling")["status"] == "False"

        world.wait_events("ieng", ENGINE, "Built")
        assert operator.total("enginewright_engine_builds_total", result="succeeded") == 1
        assert operator.total("enginewright_engine_cache_total", result="miss") == 1


def test_an_unchanged_engine_costs_nothing_even_after_a_restart(world: EngineWorld) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.build()
        operator.wait_quiet()
        writes, reads, passes = operator.writes(), operator.reads(), operator.engine_passes()
        assert writes <= 16
        world.user.kubectl("annotate", "ieng", ENGINE, "example.com/note=1")
        wait_engine_pass(operator, passes)
        assert (operator.writes(), operator.reads()) == (writes, reads)
    # the time to live of all Jobs runs out
    world.collect_garbage()
    versions = world.versions()
    with world.operator() as operator:
        operator.wait_ready()
        wait_engine_pass(operator, 0)
        assert operator.writes() == 0
        assert world.versions() == versions


def test_a_failed_build_is_remembered_without_job_and_operator(world: EngineWorld) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.apply()
        world.look(NOTHING)
        world.end_build(REFUSED)
        assert "no operator Det" in world.wait("False", "BuildFailed")
        assert world.condition("Stalled")["status"] == "True"
        operator.wait_quiet()
        assert len(world.jobs("engine")) == 1, "the Job stays, for its log"
        failed = {"result": "failed", "reason": "BuildFailed"}
        assert operator.total("enginewright_engine_builds_total", **failed) == 1
        writes, passes = operator.writes(), operator.engine_passes()
        world.collect_garbage()
        wait_engine_pass(operator, passes)
        assert operator.writes() == writes
    versions = world.versions()
    with world.operator() as operator:
        operator.wait_ready()
        wait_engine_pass(operator, 0)
        assert operator.writes() == 0
        assert world.versions() == versions

        world.apply(image="registry.example/gpu:2")  # another build is another chance
        world.look(NOTHING)
        world.end_build(engine_built(world.key))
        world.wait("True", "Built")


def test_a_device_that_is_not_free_is_reported_and_the_build_goes_on_when_one_is(
    world: EngineWorld,
) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.apply()
        world.look(NOTHING)
        job = world.job("engine")
        pod = played.start_pod(world.user, job)
        played.refuse_pod(world.user, pod, NO_DEVICE)
        message = world.wait("False", "CapacityBlocked")
        assert "no nvidia.com/gpu is free: Insufficient nvidia.com/gpu" in message
        assert "free a device of this class" in message
        assert world.condition("Reconciling")["status"] == "True"
        assert world.condition("Stalled")["status"] == "False"
        operator.wait_quiet()
        writes = operator.writes()
        tail = " preemption: 0/1 nodes are available: 1 No preemption victims found."
        passes = operator.engine_passes()
        played.refuse_pod(world.user, pod, NO_DEVICE + tail)
        wait_engine_pass(operator, passes)
        assert operator.writes() == writes
        # a device is free: the waiting pod gets it, and no other Job is created
        played.place_pod(world.user, pod)
        played.run_stages(world.user, pod, {}, "build", ENGINE_STAGES)
        world.wait("False", "Building")
        played.run_stages(world.user, pod, engine_built(world.key), None, ENGINE_STAGES)
        played.complete_job(world.user, job["metadata"]["name"])
        world.wait("True", "Built")
        assert len(world.jobs("engine")) == 1


def test_a_deleted_engine_waits_for_the_jobs_of_the_earlier_one(world: EngineWorld) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.build()
        world.user.delete("ieng", ENGINE)
        world.apply()
        world.wait("False", "LookingUp")
        operator.wait_quiet(0.5)
        owner = world.user.get("ieng", ENGINE)["metadata"]["uid"]
        look = world.job("engine-lookup")
        assert look["metadata"]["ownerReferences"][0]["uid"] != owner
        world.collect_garbage()

        def has_new_job() -> bool:
            jobs = world.jobs("engine-lookup")
            return [job["metadata"]["ownerReferences"][0]["uid"] for job in jobs] == [owner]

        eventually(has_new_job, 20, interval=0.1)
        world.look(engine_found(world.key))
        assert "found in the store" in world.wait("True", "Built")
        assert world.jobs("engine") == []


def test_the_charts_rights_are_enough(world: EngineWorld) -> None:
    with world.operator(with_chart_rights=True) as operator:
        operator.wait_ready()
        world.build()
        operator.wait_quiet()
        assert operator.total("rest_client_requests_total", code="403") == 0
        assert "level=error" not in operator.log


def server_of(deployment: dict[str, Any]) -> dict[str, Any]:
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(server)


def test_from_a_model_to_its_engine_and_again_when_that_is_deleted(world: EngineWorld) -> None:
    played.add_gpu_class(world.user)
    world.user.apply(model(sha256=DIGEST))
    with world.operator(images=RTX) as operator:
        operator.wait_ready()
        world.probe_images(2)
        world.prepare()
        job = world.job("engine")
        assert world.jobs("engine-lookup") == [], "a build that takes no device looks by itself"
        world.follow(job)
        assert world.name.startswith("tensorrt-rtx-l4-")
        world.user.wait_condition("m", "EnginesReady", "False", "Queued", 20)
        world.end_build(engine_built(world.key, **WHOLE))
        world.user.wait_condition("m", "EnginesReady", "True", "Built", 20)
        deployment = eventually(lambda: world.user.get("deployment", "m-l4"), 20, interval=0.1)
        task = ServeTask.model_validate_json(task_of(server_of(deployment)))
        assert task.engine_key == world.key

        before = world.user.get("ieng", world.name)["metadata"]["uid"]
        world.user.delete("ieng", world.name)

        def has_new_engine() -> bool:
            engines = world.user.items("ieng")
            return [engine["metadata"]["uid"] for engine in engines] not in ([], [before])

        eventually(has_new_engine, 20, "the engine again", interval=0.1)
        world.collect_garbage()
        world.end_build(engine_built(world.key, cached=True, **WHOLE))
        assert "found in the store" in world.wait("True", "Built")

        world.user.delete("inferencemodel", "m")
        world.user.apply(model("again", sha256=DIGEST))
        world.user.wait_condition("again", "EnginesReady", "True", "Built", 20)
        assert world.jobs("prepare") == [], "the InferenceEngine has a record of the preparation"
        status = world.user.get("im", "again")["status"]
        assert status["prepared"]["key"] == PUBLISHED["key"]
        assert [item["digest"] for item in status["source"]["pins"]] == [DIGEST]


def test_models_that_share_an_engine_are_recorded_by_it_and_build_it_once(
    world: EngineWorld,
) -> None:
    played.add_gpu_class(world.user)
    # two sources: of one source they would share the preparation
    world.user.apply(model(), model("copy-of-m", "https://example.com/copy.onnx"))

    def users() -> dict[str, Any]:
        return dict(world.user.get("ieng", world.name)["status"].get("users", {}))

    with world.operator(images=RTX) as operator:
        operator.wait_ready()
        world.probe_images(2)
        world.job("prepare", count=2)
        for job in world.jobs("prepare"):
            world.play(job, GOOD, PREPARE_STAGES)
        job = world.job("engine")
        world.follow(job)
        versions = {"backend": "1.7.1.116", "ort": "1.31.1", "cuda": "13"}
        world.end_build(engine_built(world.key, versions=versions, **WHOLE))
        world.wait("True", "Built")
        both = {"count": 2, "models": ["copy-of-m", "m"]}
        eventually(lambda: users() == both, 30, "two users", interval=0.1)
        for name in ("m", "copy-of-m"):
            world.user.wait_condition(name, "EnginesReady", "True", "Built", 20)
        assert len(world.jobs("engine")) == 1
        status = world.user.get("ieng", world.name)["status"]
        assert status["versions"] == versions
        assert status["lastUsed"]
        header, row = world.user.kubectl("get", "ieng", "-o", "wide").splitlines()
        assert header.split()[-3:] == ["USERS", "LAST", "USED"]
        assert row.split()[-2] == "2"
        operator.wait_quiet()
        writes, passes = operator.writes(), operator.engine_passes()
        world.user.kubectl("annotate", "ieng", world.name, "example.com/note=1")
        wait_engine_pass(operator, passes)
        assert operator.writes() == writes
        world.user.delete("inferencemodel", "m")
        eventually(lambda: users() == {"count": 1, "models": ["copy-of-m"]}, 30, interval=0.1)


def test_an_interim_serves_until_the_engine_is_built_also_over_a_restart(
    world: EngineWorld,
) -> None:
    played.add_gpu_class(world.user)
    bridged = model()
    bridged["spec"] |= {"build": {"interim": "CPU"}, "rollout": {"canary": {"replicas": 0}}}
    world.user.apply(bridged)

    def serves_with(image: str) -> str:
        """Return the name of the Deployment whose server has this image, once there is one."""
        for entry in world.user.items("deployments"):
            if server_of(entry)["image"] == image:
                return str(entry["metadata"]["name"])
        return ""

    def reason() -> str:
        return str(world.user.condition("m", "Ready")["reason"])

    with world.operator(images=RTX) as operator:
        operator.wait_ready()
        world.probe_images(2)
        world.prepare()
        played.roll_out(world.user, eventually(lambda: serves_with(CPU_IMAGE), 20, interval=0.1))
        eventually(lambda: reason() == "ServingInterim", 20, interval=0.1)
        engine = world.job("engine")
        operator.wait_quiet()
        assert operator.total("enginewright_models_interim") == 1
    (serving,) = world.user.get("im", "m")["status"]["serving"]["classes"]
    assert (serving["backend"], serving["interim"]) == ("cpu", True)
    assert "cpu (interim)" in world.user.kubectl("get", "im", "m")
    with world.operator(images=RTX) as operator:
        operator.wait_ready().wait_quiet()
        assert operator.writes() == 0
        world.follow(engine)
        world.end_build(engine_built(world.key, **WHOLE))
        played.roll_out(world.user, eventually(lambda: serves_with(RTX_IMAGE), 20, interval=0.1))
        eventually(lambda: reason() == "Serving", 20, interval=0.1)
        operator.wait_quiet()
        assert "InterimEnded" in world.user.kubectl("describe", "im", "m")
        assert operator.total("enginewright_models_interim") == 0
        assert "level=error" not in operator.log


def test_the_fastest_backend_of_an_engines_benchmark_serves_also_over_a_restart(
    world: EngineWorld,
) -> None:
    backends = ["tensorrt", "cuda", "cpu"]
    played.add_gpu_class(world.user, backends=backends, aheadOfTime=False)
    fast = model()
    fast["spec"] |= {"build": {"choose": "Fastest"}, "rollout": {"canary": {"replicas": 0}}}
    world.user.apply(fast)
    measured = (
        {"backend": "tensorrt", "shapes": "opt", "p50": 0.003, "p99": 0.004},
        {"backend": "cuda", "shapes": "opt", "p50": 0.0021, "p99": 0.003},
        {"backend": "cpu", "excluded": "ParityFailed: output 'y' differs"},
    )

    with world.operator(images={"gpu": GPU_IMAGE}) as operator:
        operator.wait_ready()
        world.probe_images(2)
        world.prepare()
        world.look(NOTHING)
        job = world.job("engine")
        build = job["spec"]["template"]["spec"]["initContainers"][0]
        task = EngineTask.model_validate_json(task_of(build))
        assert task.benchmark_backends == ("cuda", "cpu")
        world.follow(job)
        world.end_build(engine_built(world.key, backends=measured, **WHOLE))
        deployment = eventually(lambda: world.user.get("deployment", "m-l4"), 20, interval=0.1)
        served = ServeTask.model_validate_json(task_of(server_of(deployment)))
        assert (served.backend, served.engine_key) == ("cuda", None)
        played.roll_out(world.user, "m-l4")
        world.user.wait_condition("m", "Ready", "True", "Serving", 20)
        operator.wait_quiet()
        status = world.user.get("im", "m")["status"]
        why = "cuda: 2.1 ms, tensorrt: 3 ms"
        assert status["choices"] == [
            {
                "class": "l4",
                "backend": "cuda",
                "engineBackend": "tensorrt",
                "message": f"{why}; cpu cannot serve: ParityFailed: output 'y' differs",
            }
        ]
        assert why in world.user.kubectl("get", "im", "m", "-o", "wide")
        assert "BackendChosen" in world.user.kubectl("describe", "im", "m")
        assert "level=error" not in operator.log
    with world.operator(images={"gpu": GPU_IMAGE}) as operator:
        operator.wait_ready().wait_quiet()
        assert operator.writes() == 0
