"""One InferenceEngine in a simulated cluster, with a test that plays its Jobs."""

from typing import Any, Final, Self

from enginewright.api.inference_engine import InferenceEngine, InferenceEngineStatus
from enginewright.contract.keys import engine_key
from enginewright.contract.report import Progress, PublishedEngine, StageReport
from enginewright.contract.task import LOOKUP_STAGE, EngineRecipe
from enginewright.observed.jobs import job_view
from enginewright.observed.pods import pod_view
from enginewright.plan.engines import BuildFacts, Ended, EnginePlan, plan_engine
from enginewright.plan.types import Config, StoreConfig
from typing_extensions import override

from tests.support.simulation import NAMESPACE, Json, Simulation, statuses, terminated

ENGINE: Final = "tensorrt-l4-0123456789ab"
IMAGE: Final = "registry.example/gpu:1"
PREPARED_KEY: Final = "a" * 64
RESOURCE: Final = "nvidia.com/gpu"

CONFIG: Final = Config(
    namespace="enginewright",
    images={"gpu": IMAGE},
    image_pull_policy="IfNotPresent",
    image_pull_secrets=(),
    store=StoreConfig("enginewright-store", "20Gi", "ReadWriteMany", None),
)


def engine_spec(*, ahead_of_time: bool = False, **build: Any) -> Json:
    """Return the spec of an engine that is built on a device of its class, or without one."""
    recipe = EngineRecipe(
        backend="tensorrt-rtx" if ahead_of_time else "tensorrt",
        backend_version="10.9.0",
        ort_version="1.31.1",
        cuda_major="13",
        accelerator_class="l4",
        compute_capability="8.9",
        ahead_of_time=ahead_of_time,
    )
    return {
        "key": engine_key(PREPARED_KEY, recipe),
        "preparedKey": PREPARED_KEY,
        "class": "l4",
        "backend": recipe.backend,
        "recipe": {
            "backendVersion": recipe.backend_version,
            "ortVersion": recipe.ort_version,
            "cudaMajor": recipe.cuda_major,
            "computeCapability": recipe.compute_capability,
            "aheadOfTime": ahead_of_time,
        },
        "build": {
            "image": IMAGE,
            "timeoutSeconds": 3600,
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
            **({} if ahead_of_time else {"resourceName": RESOURCE}),
            **build,
        },
    }


def published_engine(key: str, **changes: Any) -> PublishedEngine:
    """Return what a Job says of the engine that it made."""
    values: Json = {
        "key": key,
        "sha256": "e" * 64,
        "size_bytes": 3_450_000,
        "build_seconds": 0.512,
        "compute_capabilities": ("8.9",),
        "nodes_total": 415,
        "nodes_accelerated": 412,
        "compute_share_elsewhere": 0.0021,
        "latency_p99": 0.001234,
        "elsewhere": ("volume (Det)",),
    }
    return PublishedEngine(**{**values, **changes})


class EngineWorld(Simulation):
    """The engine, its Jobs and their pods."""

    FAILING_STAGE = "build"

    def __init__(self, *, ahead_of_time: bool = False, **build: Any) -> None:
        super().__init__()
        self.spec = engine_spec(ahead_of_time=ahead_of_time, **build)
        self.progress: dict[str, Progress] = {}
        self.made: list[str] = []  # Jobs, in the order in which they were made
        self.counted: list[Ended] = []
        self.writes = 0
        self.last: EnginePlan | None = None

    # what the operator does

    def facts(self) -> BuildFacts:
        metadata = {
            "name": ENGINE,
            "namespace": NAMESPACE,
            "uid": "engine-1",
            "generation": self.generation,
        }
        return BuildFacts(
            engine=InferenceEngine.model_validate(
                {"metadata": metadata, "spec": self.spec, "status": self.status}
            ),
            config=CONFIG,
            now=self.now,
            jobs=tuple(map(job_view, self.all("Job"))),
            pods=tuple(map(pod_view, self.all("Pod"))),
            progress=dict(self.progress),
        )

    @override
    def pass_once(self) -> bool:
        facts = self.facts()
        self.last = plan_engine(facts)
        before = self.writes
        for wanted in self.last.apply:
            assert wanted["kind"] == "Job"
            if self.apply(wanted):
                self.writes += 1
                self.made.append(wanted["metadata"]["name"])
        for ref in self.last.delete:
            assert (ref.kind, ref.namespace) == ("Job", NAMESPACE)
            self.writes += self.remove("Job", ref.name)
        InferenceEngineStatus.model_validate(self.last.status)
        if self.last.status != self.status:
            self.status = self.last.status
            self.writes += 1
            self.events += self.last.events
        else:
            assert not self.last.events
        if self.last.ended:
            self.counted.append(self.last.ended)
        if self.writes == before:
            assert plan_engine(facts) == self.last, "the same facts give the same plan"
        return self.writes != before

    def build_changes(self, **build: Any) -> Self:
        """Have a model, or somebody, write another spec.build."""
        self.spec = {**self.spec, "build": {**self.spec["build"], **build}}
        self.generation += 1
        return self.settle()

    # what Jobs and kubelets do

    def job_publishes(self, found: PublishedEngine | None) -> Self:
        """End the running Job well; its last stage reports an engine, or none."""
        return self.job_reports(StageReport(stage=self.stages()[-1], ok=True, engine=found))

    def succeeds(self, **changes: Any) -> Self:
        return self.job_publishes(published_engine(self.spec["key"], **changes))

    def misses(self) -> Self:
        """Have the look into the store find nothing."""
        assert self.stages() == (LOOKUP_STAGE,)
        return self.job_publishes(None)

    def is_too_late(self, stage: str = "build") -> Self:
        """Have the kubelet end the pod for its time."""
        killed = terminated(stage, code=137)
        return self.job_pod_becomes(
            phase="Failed", reason="DeadlineExceeded", **statuses(self.stages(), stage, killed)
        )

    def job_is_deleted(self) -> Self:
        self.remove("Job", self.job()["metadata"]["name"])
        return self.settle()
