"""What tests of the operator run in: an API server and the operator are real, the test plays the rest of a cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from enginewright_contract.images import ImageFacts
from enginewright_contract.signature import PublishedSignature, TensorText
from enginewright_contract.task import (
    ENGINE_STAGES,
    LOOKUP_STAGE,
    PREPARE_STAGES,
    TASK_VARIABLE,
)
from typing_extensions import override

from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.operator_process import OperatorProcess, chart_kubeconfig
from tests.support.plan_objects import ENGINE, engine_spec, make_object, publish_engine

Stages = dict[str, dict[str, Any]]  # reports by stage
Object = dict[str, Any]

MODEL: Final = "m"
RTX_IMAGE: Final = "example.com/enginewright/rtx:1"
GPU_IMAGE: Final = "example.com/enginewright/gpu:1"
DIGEST: Final = "ab" * 32
FACTS: Final[dict[str, dict[str, Any]]] = {  # of images, by variant
    "cpu": {"backends": {"cpu": "1.31.1"}},
    "rtx": {"backends": {"tensorrt-rtx": "1.7.1.116"}, "cuda_major": "13"},
    "gpu": {
        "backends": {"tensorrt": "10.16.1.11", "cuda": "13.0", "cpu": "1.31.1"},
        "cuda_major": "13",
    },
}
SIGNATURE: Final = PublishedSignature.of(
    [TensorText("x", "FP32", ("1..32", "3")), TensorText("flag", "BOOL", ())],
    [TensorText("y", "FP32", ("-1", "10"))],
)
PUBLISHED: Final = {
    "key": "cd" * 32,
    "model_digest": DIGEST,
    "opset": 17,
    "ir_version": 8,
    "nodes": 415,
    "size_bytes": 1000,
    "signature": SIGNATURE.model_dump(mode="json"),
}
GOOD: Final[Stages] = {stage: {"ok": True} for stage in PREPARE_STAGES} | {
    "publish": {"ok": True, "published": PUBLISHED}
}
REFUSED: Final[Stages] = {
    "fetch": {"ok": True},
    "validate": {
        "ok": False,
        "reason": "OpsetUnsupported",
        "message": "the model has opset 28, the runtime image supports 26; export with opset 26",
    },
}
UNJUDGED: Final[Stages] = {stage: {"ok": True} for stage in PREPARE_STAGES[:4]} | {
    "quantize": {
        "ok": False,
        "reason": "ParityUnknown",
        "message": "2 of 84 indices of axis 1 (4, 7) of output 'dets' do not vary enough for INT8",
    },
}
NOTHING: Final[Stages] = {LOOKUP_STAGE: {"ok": True}}
WHOLE: Final = {"nodes_total": 415, "nodes_accelerated": 415, "elsewhere": ()}


def model(name: str = MODEL, uri: str = "https://example.com/m.onnx", **source: str) -> Object:
    return make_object("InferenceModel", name, spec={"source": {"uri": uri, **source}})


def accelerator_class(name: str = "cpu", **selector: str) -> Object:
    spec = {"nodeSelector": selector or {"kubernetes.io/os": "linux"}, "backends": ["cpu"]}
    return make_object("AcceleratorClass", name, spec=spec)


def engine_found(key: str) -> Stages:
    """Return the result of a lookup that finds the engine in the store."""
    engine = publish_engine(key, cached=True).model_dump(mode="json")
    return {LOOKUP_STAGE: {"ok": True, "engine": engine}}


def engine_built(key: str, **changes: Any) -> Stages:
    """Return the results of a successful build's stages."""
    engine = publish_engine(key, **changes).model_dump(mode="json")
    good: Stages = {stage: {"ok": True} for stage in ENGINE_STAGES}
    return {**good, ENGINE_STAGES[-1]: {"ok": True, "engine": engine}}


def task_of(container: Object) -> str:
    """Return the task of a container as JSON."""
    (task,) = (item["value"] for item in container["env"] if item["name"] == TASK_VARIABLE)
    return str(task)


def wait_engine_pass(operator: OperatorProcess, passes: int) -> None:
    """Wait until the operator has made more than `passes` passes over engines, and is idle."""
    eventually(lambda: operator.engine_passes() > passes, 20, "a pass", interval=0.05)
    operator.wait_quiet()


@dataclass
class Cluster:
    """The operator's namespace, a user's, and the operator's processes."""

    system: Namespace
    user: Namespace
    folder: Path

    def furnish(self) -> None:
        """Remove everything of earlier tests, and set up one node."""
        self.user.delete_all("inferencemodels,inferenceengines", everywhere=True)
        self.user.delete_all("acceleratorclasses,nodes")
        # `plan` reads what any operator of the cluster has asked images
        images = "metadata.name=enginewright-images"
        self.user.delete_all("configmaps", fields=images, everywhere=True)
        # of operators that were killed
        claims = "enginewright.dev/component=claim"
        self.user.delete_all("leases", claims, everywhere=True)
        for namespace in (self.system, self.user):
            played.add_account(namespace)
        played.add_release(self.system)
        played.add_node(self.user, "node-1")

    def operator(
        self,
        *,
        images: dict[str, str] | None = None,
        program: Sequence[str] = (),
        with_chart_rights: bool = False,
        **settings: object,
    ) -> OperatorProcess:
        kubeconfig = self.user.kubeconfig
        if with_chart_rights:
            kubeconfig = chart_kubeconfig(self.system, self.folder)
        return OperatorProcess(
            kubeconfig,
            self.system.name,
            self.folder,
            settings=settings,
            images=images,
            program=program,
        )

    def jobs(self, component: str) -> list[Object]:
        namespace = self.system if component == "probe" else self.user
        return namespace.items("jobs", f"enginewright.dev/component={component}")

    def job(self, component: str, count: int = 1) -> Object:
        """Return the newest Job of a component, once there are `count`."""

        def newest() -> Object | None:
            jobs = self.jobs(component)
            return max(jobs, key=_age) if len(jobs) >= count else None

        job = eventually(newest, 20, f"{count} {component} Jobs", interval=0.1)
        assert job is not None
        return job

    def play(
        self, job: Object, ended: Stages, stages: tuple[str, ...], running: str | None = None
    ) -> None:
        """Run a new pod of a Job with these results, and end the Job with it."""
        pod = played.start_pod(self.user, job)
        played.place_pod(self.user, pod)
        played.run_stages(self.user, pod, ended, running, stages)
        name = job["metadata"]["name"]
        if not all(report["ok"] for report in ended.values()):
            played.fail_job(self.user, name)
        elif len(ended) == len(stages):
            played.complete_job(self.user, name)

    def prepare(self, stages: Stages = GOOD, count: int = 1) -> Object:
        """Run the newest of `count` prepare Jobs to its end, and return it."""
        job = self.job("prepare", count)
        self.play(job, stages, PREPARE_STAGES)
        return job

    def probe_images(self, count: int = 1) -> None:
        """Answer the operator's image probes, once there are `count` of them."""
        self.job("probe", count)
        for job in self.jobs("probe"):
            if job["status"].get("conditions"):
                continue
            image = job["spec"]["template"]["spec"]["containers"][0]["image"]
            variant = image.rpartition("/")[2].partition(":")[0]
            facts = ImageFacts(
                variant=variant,
                ort_distribution="onnxruntime",
                ort_version="1.31.1",
                max_opset=26,
                max_ir_version=13,
                providers=("CPUExecutionProvider",),
                onnx_version="1.23.2",
                runtime_version="0.1.0",
                **FACTS[variant],
            )
            pod = played.start_pod(self.system, job)
            played.end_probe(self.system, pod, facts.to_json())
            played.complete_job(self.system, job["metadata"]["name"])
        eventually(lambda: self.system.get("configmap", "enginewright-images"), 20, interval=0.1)

    def expire_lease(self) -> None:
        """Delete the Lease of a process that was killed, as if it had expired."""
        self.system.delete("lease", "enginewright")

    def kill_after_each(self, steps: Sequence[Callable[[], object]]) -> None:
        """Run each step with a new process, which continues from the killed one's state; the last one writes nothing."""
        for step in steps:
            with self.operator() as operator:
                operator.wait_ready()
                step()
                operator.kill()
            self.expire_lease()
        with self.operator() as operator:
            operator.wait_ready().wait_quiet()
            assert operator.writes() == 0

    def collect_garbage(self) -> None:
        """Delete all Jobs and pods, as the garbage collector or their time to live would."""
        self.user.kubectl("delete", "jobs,pods", "--all", "--force", "--grace-period=0")

    def wait_events(self, kind: str, name: str, *reasons: str) -> str:
        """Wait until an object has Events of all these reasons; return how `kubectl describe` shows its Events."""
        uid = self.user.get(kind, name)["metadata"]["uid"]

        def has_events() -> bool:
            events = self.user.items("events", fields=f"involvedObject.uid={uid}")
            return {*reasons} <= {event["reason"] for event in events}

        eventually(has_events, 20, f"Events {reasons}", interval=0.1)
        text = self.user.kubectl("describe", kind, name).split("Events:")[1]
        assert all(reason in text for reason in reasons)
        return text

    def versions(self) -> dict[str, str]:
        """Return the resource versions of everything that the operator writes."""
        kinds = "inferencemodels,inferenceengines,jobs,deployments,services,controllerrevisions,pdb,pvc,configmaps"
        return {
            f"{namespace.name}/{entry['kind']}/{entry['metadata']['name']}": entry["metadata"][
                "resourceVersion"
            ]
            for namespace in (self.user, self.system)
            for entry in namespace.items(kinds)
        }


class World(Cluster):
    """A cluster with class `cpu`, for model `m`."""

    @override
    def furnish(self) -> None:
        super().furnish()
        self.user.create(accelerator_class())

    def serve(self, name: str = MODEL) -> None:
        """Simulate a model's Deployment until it is available, and wait for Ready."""
        deployment = f"{name}-cpu"
        eventually(lambda: self.user.get("deployment", deployment), 20, interval=0.1)
        played.roll_out(self.user, deployment)
        self.user.wait_condition(name, "Ready", "True", "Serving", 20)

    def wait_event(self, reason: str) -> str:
        return self.wait_events("im", MODEL, reason)

    def bring_up(self, operator: OperatorProcess) -> None:
        """Prepare and serve a model from the start."""
        operator.wait_ready()
        self.user.apply(model())
        self.probe_images()
        self.prepare()
        self.serve()


@dataclass
class EngineWorld(Cluster):
    """A cluster without classes, for one engine."""

    name: str = ENGINE

    @property
    def key(self) -> str:
        return str(self.user.get("ieng", self.name)["spec"]["key"])

    def apply(self, **build: Any) -> None:
        """Apply an engine, as the operator does for a model."""
        self.user.apply(make_object("InferenceEngine", self.name, spec=engine_spec(**build)))

    def look(self, ended: Stages) -> None:
        """End the Job that looks the engine up."""
        self.play(self.job("engine-lookup"), ended, (LOOKUP_STAGE,))

    def end_build(self, ended: Stages, count: int = 1) -> None:
        """End the newest of `count` Jobs that build the engine."""
        self.play(self.job("engine", count), ended, ENGINE_STAGES)

    def follow(self, job: Object) -> None:
        """Take the engine of a Job for the one of this world."""
        self.name = job["metadata"]["labels"]["enginewright.dev/engine"]

    def condition(self, kind: str) -> Object:
        conditions = self.user.get("ieng", self.name).get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})

    def wait(self, status: str, reason: str) -> str:
        """Wait for Ready with this status and reason; return its message."""

        def message() -> str:
            ready = self.condition("Ready")
            is_there = (ready.get("status"), ready.get("reason")) == (status, reason)
            return str(ready["message"]) if is_there else ""

        return eventually(message, 20, f"Ready={status}/{reason}", interval=0.1)

    def wait_message(self, text: str) -> None:
        eventually(lambda: self.condition("Ready").get("message") == text, 20, text, interval=0.1)

    def build(self) -> None:
        """Build an engine from the start."""
        self.apply()
        self.look(NOTHING)
        self.end_build(engine_built(self.key))
        self.wait("True", "Built")


C = TypeVar("C", bound=Cluster)


@contextmanager
def set_up(kind: type[C], new_namespace: Callable[[], Namespace], folder: Path) -> Iterator[C]:
    """Set up a cluster, and delete at the end what a later test's operator would act on."""
    cluster = kind(new_namespace(), new_namespace(), folder)
    cluster.furnish()
    yield cluster
    cluster.user.delete_all("inferencemodels,inferenceengines")
    cluster.user.delete_all("acceleratorclasses")


def _age(job: Object) -> tuple[str, int]:
    return job["metadata"]["creationTimestamp"], int(job["metadata"]["resourceVersion"])
