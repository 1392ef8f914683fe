"""Engines with the operator's process on a real API server; scheduler and kubelet are played.

Writes are counted by the operator's own request metrics and, independently, by resource versions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from enginewright_contract.images import ImageFacts
from enginewright_contract.task import (
    ENGINE_STAGES,
    LOOKUP_STAGE,
    TASK_VARIABLE,
    EngineTask,
    ServeTask,
)

from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.operator_process import CPU_IMAGE, OperatorProcess, chart_kubeconfig
from tests.support.plan_objects import ENGINE, engine_spec, made, published_engine

pytestmark = pytest.mark.apiserver

RTX_IMAGE: Final = "example.com/enginewright/rtx:1"
GPU_IMAGE: Final = "example.com/enginewright/gpu:1"
LOOK: Final = (LOOKUP_STAGE,)
NO_DEVICE: Final = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."

Stages = dict[str, dict[str, Any]]
NOTHING: Final[Stages] = {LOOKUP_STAGE: {"ok": True}}
REFUSED: Final[Stages] = {
    "build": {
        "ok": False,
        "reason": "BuildFailed",
        "message": "TensorRT has no operator Det; replace it when exporting",
    }
}
NO_DRIVER: Final[Stages] = {
    "build": {"ok": True},
    "verify": {"ok": False, "reason": "DriverMissing", "message": "libcuda.so.1 is not there"},
}


def found(key: str) -> Stages:
    """Return the result of a lookup that finds the engine in the store."""
    engine = published_engine(key, cached=True).model_dump(mode="json")
    return {LOOKUP_STAGE: {"ok": True, "engine": engine}}


def built(key: str, **changes: Any) -> Stages:
    """Return the results of a successful build's stages."""
    engine = published_engine(key, **changes).model_dump(mode="json")
    good: Stages = {stage: {"ok": True} for stage in ENGINE_STAGES}
    return {**good, ENGINE_STAGES[-1]: {"ok": True, "engine": engine}}


@dataclass
class World:
    """One cluster: the operator's namespace, a user's, and the operator's processes."""

    system: Namespace
    user: Namespace
    folder: Path
    name: str = ENGINE

    def operator(self, **images: str) -> OperatorProcess:
        return OperatorProcess(self.user.kubeconfig, self.system.name, self.folder, images=images)

    @property
    def key(self) -> str:
        return str(self.user.get("ieng", self.name)["spec"]["key"])

    def apply(self, **build: Any) -> None:
        """Apply an engine, like a model's plan."""
        spec = engine_spec(**build)
        self.user.apply(made("InferenceEngine", self.name, spec=spec))

    def jobs(self, component: str) -> list[dict[str, Any]]:
        return self.user.items("jobs", f"enginewright.dev/component={component}")

    def job(self, component: str, count: int = 1) -> dict[str, Any]:
        """Return the newest Job of a kind, once there are `count`."""

        def there() -> dict[str, Any] | None:
            jobs = self.jobs(component)
            newest = max(jobs, key=lambda job: int(job["metadata"]["resourceVersion"]), default={})
            return newest if len(jobs) >= count else None

        job = eventually(there, 20, f"{count} {component} Jobs", interval=0.1)
        assert job is not None
        return job

    def play(
        self,
        job: dict[str, Any],
        ended: Stages,
        stages: tuple[str, ...] = ENGINE_STAGES,
        running: str | None = None,
    ) -> None:
        """Run a new pod of a Job with these results, and end the Job with it."""
        pod = played.start_pod(self.user, job)
        played.place_pod(self.user, pod)
        played.run_stages(self.user, pod, ended, running, stages)
        name = job["metadata"]["name"]
        if not all(termination_message["ok"] for termination_message in ended.values()):
            played.fail_job(self.user, name)
        elif len(ended) == len(stages):
            played.complete_job(self.user, name)

    def look(self, ended: Stages, count: int = 1) -> None:
        self.play(self.job("engine-lookup", count), ended, LOOK)

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = self.user.get("ieng", self.name).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def wait(self, status: str, reason: str) -> str:
        """Wait for Ready with this status and reason; its message."""

        def ready() -> str:
            now = self.condition("Ready")
            return (
                str(now["message"])
                if (now.get("status"), now.get("reason")) == (status, reason)
                else ""
            )

        return eventually(ready, 20, f"Ready={status}/{reason}", interval=0.1)

    def wait_message(self, text: str) -> None:
        eventually(lambda: self.condition("Ready").get("message") == text, 20, text, interval=0.1)

    def build(self) -> None:
        """Build an engine from the start."""
        self.apply()
        self.look(NOTHING)
        self.play(self.job("engine"), built(self.key))
        self.wait("True", "Built")

    def furnish(self) -> None:
        """Set up one node, and remove everything of earlier tests."""
        self.user.delete_all("inferencemodels,inferenceengines", everywhere=True)
        self.user.delete_all("acceleratorclasses,nodes")
        for namespace in (self.system, self.user):
            played.add_account(namespace)
        played.add_node(self.user, "node-1")

    def versions(self) -> dict[str, str]:
        """Return resource versions of everything that the operator writes about engines."""
        return {
            f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
            for each in self.user.items("inferenceengines,jobs")
        }


@pytest.fixture
def world(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[World]:
    world = World(new_namespace(), new_namespace(), tmp_path)
    world.furnish()
    yield world
    world.user.delete_all("inferencemodels,inferenceengines")
    world.user.delete_all("acceleratorclasses")


def test_from_the_look_into_the_store_to_the_engine(world: World) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.apply()
        world.wait("False", "LookingUp")
        assert world.jobs("engine") == [], "no device before somebody has looked"
        world.look(NOTHING)
        job = world.job("engine")
        world.wait("False", "Queued")
        owner = world.user.get("ieng", ENGINE)["metadata"]["uid"]
        assert job["metadata"]["ownerReferences"][0]["uid"] == owner
        spec = job["spec"]["template"]["spec"]
        limits = [each["resources"].get("limits") for each in spec["initContainers"]]
        assert limits == [{"nvidia.com/gpu": "1"}] * 3

        pod = played.start_pod(world.user, job)
        played.place_pod(world.user, pod)
        for number, stage in enumerate(ENGINE_STAGES, start=1):
            ended: Stages = {each: {"ok": True} for each in ENGINE_STAGES[: number - 1]}
            played.run_stages(world.user, pod, ended, stage, ENGINE_STAGES)
            text = f"{stage} ({number}/4)"
            world.wait_message(text)
        played.run_stages(world.user, pod, built(world.key), None, ENGINE_STAGES)
        played.complete_job(world.user, job["metadata"]["name"])
        message = world.wait("True", "Built")
        assert message.startswith("built: 3.5 MB for compute capability 8.9, 412 of 415 nodes")
        assert world.condition("Reconciling")["status"] == "False"

        reasons = {"LookingUp", "Queued", "Building", "Built"}

        def recorded() -> bool:
            engine = f"involvedObject.uid={world.user.get('ieng', ENGINE)['metadata']['uid']}"
            return reasons <= {each["reason"] for each in world.user.items("events", fields=engine)}

        eventually(recorded, 20, "Events", interval=0.1)
        shown = world.user.kubectl("describe", "ieng", ENGINE).split("Events:")[1]
        assert all(each in shown for each in reasons)
        assert operator.total("enginewright_engine_builds_total", result="succeeded") == 1
        assert operator.total("enginewright_engine_cache_total", result="miss") == 1


def test_what_has_not_changed_costs_nothing_also_after_a_restart(world: World) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.build()
        operator.wait_relisted().wait_quiet()
        writes, reads, passes = operator.writes(), operator.reads(), operator.engine_passes()
        # A condition of its own each look, status and Job; each stage is not a write here.
        assert writes <= 16
        world.user.kubectl("annotate", "ieng", ENGINE, "example.com/note=1")
        eventually(lambda: operator.engine_passes() > passes, 20, "a pass", interval=0.05)
        operator.wait_quiet()
        assert (operator.writes(), operator.reads()) == (writes, reads)
    # The time to live of all Jobs runs out.
    world.user.kubectl("delete", "jobs,pods", "--all", "--force", "--grace-period=0")
    versions = world.versions()
    with world.operator() as operator:
        operator.wait_ready()
        eventually(lambda: operator.engine_passes() >= 1, 20, "a pass", interval=0.05)
        operator.wait_quiet()
        assert operator.writes() == 0
        assert world.versions() == versions


def test_what_cannot_be_built_is_remembered_without_job_and_operator(world: World) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.apply()
        world.look(NOTHING)
        world.play(world.job("engine"), REFUSED)
        assert "no operator Det" in world.wait("False", "BuildFailed")
        assert world.condition("Stalled")["status"] == "True"
        operator.wait_quiet()
        assert len(world.jobs("engine")) == 1, "the Job stays, for its log"
        failed = {"result": "failed", "reason": "BuildFailed"}
        assert operator.total("enginewright_engine_builds_total", **failed) == 1
        writes, passes = operator.writes(), operator.engine_passes()
        world.user.kubectl("delete", "jobs,pods", "--all", "--force", "--grace-period=0")
        eventually(lambda: operator.engine_passes() > passes, 20, "a pass", interval=0.05)
        operator.wait_quiet()
        assert operator.writes() == writes
    versions = world.versions()
    with world.operator() as operator:
        operator.wait_ready()
        eventually(lambda: operator.engine_passes() >= 1, 20, "a pass", interval=0.05)
        operator.wait_quiet()
        assert operator.writes() == 0
        assert world.versions() == versions

        world.apply(image="registry.example/gpu:2")  # another build is another chance
        world.look(NOTHING)
        world.play(world.job("engine"), built(world.key))
        world.wait("True", "Built")


def test_an_engine_that_the_store_holds_takes_no_device(world: World) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.apply()
        world.look(found(world.key))
        assert "found in the store" in world.wait("True", "Built")
        operator.wait_quiet()
        assert world.jobs("engine") == []
        assert operator.total("enginewright_engine_cache_total", result="hit") == 1
        assert operator.total("enginewright_engine_builds_total") == 0


def test_a_device_that_is_not_free_is_reported_and_the_build_goes_on_when_one_is(
    world: World,
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
        eventually(lambda: operator.engine_passes() > passes, 20, "a pass", interval=0.05)
        assert operator.writes() == writes
        # A device is free: the pod that waited gets it, and no other Job is made.
        played.place_pod(world.user, pod)
        played.run_stages(world.user, pod, {}, "build", ENGINE_STAGES)
        world.wait("False", "Building")
        played.run_stages(world.user, pod, built(world.key), None, ENGINE_STAGES)
        played.complete_job(world.user, job["metadata"]["name"])
        world.wait("True", "Built")
        assert len(world.jobs("engine")) == 1


def test_what_can_pass_waits_and_says_so(world: World) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.apply()
        world.look(NOTHING)
        world.play(world.job("engine"), NO_DRIVER)
        message = world.wait("False", "DriverMissing")
        assert message.startswith("libcuda.so.1 is not there; retrying")
        operator.wait_quiet()
        assert len(world.jobs("engine")) == 1, "not at once"
        failure = world.user.get("ieng", ENGINE)["status"]["failure"]
        assert failure["stage"] == "verify"


def test_the_operator_may_be_killed_at_any_point(world: World) -> None:
    """Each step starts with a new process, which continues from the killed one's state."""
    steps: list[Callable[[], object]] = [
        lambda: world.job("engine-lookup"),
        lambda: world.look(NOTHING),
        lambda: world.job("engine"),
        lambda: world.play(world.job("engine"), built(world.key)),
        lambda: world.wait("True", "Built"),
    ]
    world.apply()
    for step in steps:
        with world.operator() as operator:
            operator.wait_ready()
            step()
            operator.kill()
        world.system.delete("lease", "enginewright")  # as if it had expired
    with world.operator() as operator:
        operator.wait_ready().wait_quiet()
        assert operator.writes() == 0
    assert len(world.jobs("engine")) == len(world.jobs("engine-lookup")) == 1


def test_a_deleted_engine_waits_for_the_jobs_of_the_earlier_one(world: World) -> None:
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
        # Garbage collection, which nobody does here.
        world.user.kubectl("delete", "jobs,pods", "--all", "--force", "--grace-period=0")

        def made_anew() -> bool:
            jobs = world.jobs("engine-lookup")
            return [job["metadata"]["ownerReferences"][0]["uid"] for job in jobs] == [owner]

        eventually(made_anew, 20, interval=0.1)
        world.look(found(world.key))
        assert "found in the store" in world.wait("True", "Built")
        assert world.jobs("engine") == []


def test_the_charts_rights_are_enough(world: World) -> None:
    limited = chart_kubeconfig(world.system, world.folder)
    with OperatorProcess(limited, world.system.name, world.folder) as operator:
        operator.wait_ready()
        world.build()
        operator.wait_quiet()
        assert operator.total("rest_client_requests_total", code="403") == 0
        assert "level=error" not in operator.log


FACTS: Final = {
    CPU_IMAGE: {"variant": "cpu", "backends": {"cpu": "1.31.1"}},
    RTX_IMAGE: {"variant": "rtx", "backends": {"tensorrt-rtx": "1.7.1.116"}, "cuda_major": "13"},
    GPU_IMAGE: {
        "variant": "gpu",
        "backends": {"tensorrt": "10.16.1.11", "cuda": "13.0", "cpu": "1.31.1"},
        "cuda_major": "13",
    },
}
PREPARED: Final[Stages] = {
    "fetch": {"ok": True},
    "validate": {"ok": True},
    "convert": {"ok": True},
    "golden": {"ok": True},
    "quantize": {"ok": True},
    "publish": {
        "ok": True,
        "published": {
            "key": "cd" * 32,
            "model_digest": "ab" * 32,
            "opset": 17,
            "ir_version": 8,
            "nodes": 415,
            "size_bytes": 1000,
        },
    },
}


def know_images(world: World, count: int = 2) -> None:
    """Answer for the images, as their probes would."""

    def asked() -> list[dict[str, Any]]:
        jobs = world.system.items("jobs", "enginewright.dev/component=probe")
        return jobs if len(jobs) == count else []

    for job in eventually(asked, 20, "probes", interval=0.1):
        image = job["spec"]["template"]["spec"]["containers"][0]["image"]
        facts = ImageFacts.model_validate(
            {
                "ort_distribution": "onnxruntime",
                "ort_version": "1.31.1",
                "max_opset": 26,
                "max_ir_version": 13,
                "providers": ("CPUExecutionProvider",),
                "onnx_version": "1.23.2",
                "runtime_version": "0.1.0",
                **FACTS[image],
            }
        )
        pod = played.start_pod(world.system, job)
        played.end_probe(world.system, pod, facts.to_json())
        played.complete_job(world.system, job["metadata"]["name"])


def model(name: str, **source: str) -> dict[str, Any]:
    return made(
        "InferenceModel",
        name,
        spec={"source": {"uri": f"https://example.com/{name}.onnx", **source}},
    )


def add_models(world: World, *names: str, **source: str) -> None:
    """Apply a class whose engines are built ahead of time, and models that it serves."""
    played.add_gpu_class(world.user)
    world.user.apply(*(model(name, **source) for name in names))


def test_from_a_model_to_its_engine_and_again_when_that_is_deleted(world: World) -> None:
    add_models(world, "m", sha256="ab" * 32)
    with world.operator(rtx=RTX_IMAGE) as operator:
        operator.wait_ready()
        know_images(world)
        world.play(world.job("prepare"), PREPARED, tuple(PREPARED))
        job = world.job("engine")
        assert world.jobs("engine-lookup") == [], "a build that takes no device looks by itself"
        world.name = job["metadata"]["labels"]["enginewright.dev/engine"]
        assert world.name.startswith("tensorrt-rtx-l4-")
        world.user.wait_condition("m", "EnginesReady", "False", "Queued", 20)
        whole = {"nodes_total": 415, "nodes_accelerated": 415, "elsewhere": ()}
        world.play(job, built(world.key, **whole))
        world.user.wait_condition("m", "EnginesReady", "True", "Built", 20)
        deployment = eventually(lambda: world.user.get("deployment", "m-l4"), 20, interval=0.1)
        (server,) = deployment["spec"]["template"]["spec"]["containers"]
        (text,) = [each["value"] for each in server["env"] if each["name"] == TASK_VARIABLE]
        assert ServeTask.model_validate_json(text).engine_key == world.key

        before = world.user.get("ieng", world.name)["metadata"]["uid"]
        world.user.delete("ieng", world.name)

        def made_again() -> bool:
            engines = world.user.items("ieng")
            return [each["metadata"]["uid"] for each in engines] not in ([], [before])

        eventually(made_again, 20, "the engine again", interval=0.1)
        world.user.kubectl("delete", "jobs,pods", "--all", "--force", "--grace-period=0")
        world.play(world.job("engine"), built(world.key, cached=True, **whole))
        assert "found in the store" in world.wait("True", "Built")

        world.user.delete("inferencemodel", "m")
        again = model("again", uri="https://example.com/m.onnx", sha256="ab" * 32)
        world.user.apply(again)
        world.user.wait_condition("again", "EnginesReady", "True", "Built", 20)
        assert world.jobs("prepare") == [], "the InferenceEngine has a record of the preparation"
        status = world.user.get("im", "again")["status"]
        assert status["prepared"]["key"] == "cd" * 32
        assert [each["digest"] for each in status["source"]["pins"]] == ["ab" * 32]


def test_models_that_share_an_engine_are_recorded_by_it_and_build_it_once(world: World) -> None:
    add_models(world, "m", "copy-of-m")

    def users() -> dict[str, Any]:
        return dict(world.user.get("ieng", world.name)["status"].get("users", {}))

    with world.operator(rtx=RTX_IMAGE) as operator:
        operator.wait_ready()
        know_images(world)
        world.job("prepare", count=2)
        for job in world.jobs("prepare"):
            world.play(job, PREPARED, tuple(PREPARED))
        job = world.job("engine")
        world.name = job["metadata"]["labels"]["enginewright.dev/engine"]
        versions = {"backend": "1.7.1.116", "ort": "1.31.1", "cuda": "13"}
        whole = {"nodes_total": 415, "nodes_accelerated": 415, "elsewhere": ()}
        world.play(job, built(world.key, versions=versions, **whole))
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
        operator.wait_relisted().wait_quiet()
        writes, passes = operator.writes(), operator.engine_passes()
        world.user.kubectl("annotate", "ieng", world.name, "example.com/note=1")
        eventually(lambda: operator.engine_passes() > passes, 20, "a pass", interval=0.05)
        operator.wait_quiet()
        assert operator.writes() == writes
        world.user.delete("inferencemodel", "m")
        eventually(lambda: users() == {"count": 1, "models": ["copy-of-m"]}, 30, interval=0.1)


def test_an_interim_serves_until_the_engine_is_built_also_over_a_restart(world: World) -> None:
    played.add_gpu_class(world.user)
    bridged = model("m")
    bridged["spec"] |= {"build": {"interim": "CPU"}, "rollout": {"canary": {"replicas": 0}}}
    world.user.apply(bridged)

    def serves_with(image: str) -> str:
        """Return the name of the Deployment whose server has this image, once there is one."""
        for each in world.user.items("deployments"):
            (server,) = each["spec"]["template"]["spec"]["containers"]
            if server["image"] == image:
                return str(each["metadata"]["name"])
        return ""

    def reason() -> str:
        found = world.user.get("im", "m")["status"]["conditions"]
        return next(str(each["reason"]) for each in found if each["type"] == "Ready")

    with world.operator(rtx=RTX_IMAGE) as operator:
        operator.wait_ready()
        know_images(world)
        world.play(world.job("prepare"), PREPARED, tuple(PREPARED))
        played.roll_out(world.user, eventually(lambda: serves_with(CPU_IMAGE), 20, interval=0.1))
        eventually(lambda: reason() == "ServingInterim", 20, interval=0.1)
        engine = world.job("engine")
        operator.wait_quiet()
        assert operator.total("enginewright_models_interim") == 1
    (serving,) = world.user.get("im", "m")["status"]["serving"]["classes"]
    assert (serving["backend"], serving["interim"]) == ("cpu", True)
    assert "cpu (interim)" in world.user.kubectl("get", "im", "m")
    with world.operator(rtx=RTX_IMAGE) as operator:
        operator.wait_ready().wait_quiet()
        assert operator.writes() == 0
        world.name = engine["metadata"]["labels"]["enginewright.dev/engine"]
        whole = {"nodes_total": 415, "nodes_accelerated": 415, "elsewhere": ()}
        world.play(engine, built(world.key, **whole))
        played.roll_out(world.user, eventually(lambda: serves_with(RTX_IMAGE), 20, interval=0.1))
        eventually(lambda: reason() == "Serving", 20, interval=0.1)
        operator.wait_quiet()
        assert "InterimEnded" in world.user.kubectl("describe", "im", "m")
        assert operator.total("enginewright_models_interim") == 0
        assert "level=error" not in operator.log


def test_the_fastest_backend_of_an_engines_benchmark_serves_also_over_a_restart(
    world: World,
) -> None:
    backends = ["tensorrt", "cuda", "cpu"]
    played.add_gpu_class(world.user, backends=backends, aheadOfTime=False)
    fast = model("m")
    fast["spec"] |= {"build": {"choose": "Fastest"}, "rollout": {"canary": {"replicas": 0}}}
    world.user.apply(fast)
    measured = (
        {"backend": "tensorrt", "shapes": "opt", "p50": 0.003, "p99": 0.004},
        {"backend": "cuda", "shapes": "opt", "p50": 0.0021, "p99": 0.003},
        {"backend": "cpu", "excluded": "ParityFailed: output 'y' differs"},
    )

    def task_of(container: dict[str, Any]) -> str:
        return next(
            str(each["value"]) for each in container["env"] if each["name"] == TASK_VARIABLE
        )

    with world.operator(gpu=GPU_IMAGE) as operator:
        operator.wait_ready()
        know_images(world)
        world.play(world.job("prepare"), PREPARED, tuple(PREPARED))
        world.look(NOTHING)
        job = world.job("engine")
        build = job["spec"]["template"]["spec"]["initContainers"][0]
        task = EngineTask.model_validate_json(task_of(build))
        assert task.benchmark_backends == ("cuda", "cpu")
        world.name = job["metadata"]["labels"]["enginewright.dev/engine"]
        whole = {"nodes_total": 415, "nodes_accelerated": 415, "elsewhere": ()}
        world.play(job, built(world.key, backends=measured, **whole))
        deployment = eventually(lambda: world.user.get("deployment", "m-l4"), 20, interval=0.1)
        (server,) = deployment["spec"]["template"]["spec"]["containers"]
        served = ServeTask.model_validate_json(task_of(server))
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
    with world.operator(gpu=GPU_IMAGE) as operator:
        operator.wait_ready().wait_quiet()
        assert operator.writes() == 0
