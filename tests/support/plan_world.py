"""One InferenceModel in a simulated cluster, with a test that plays users, Deployments and sidecars."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Self

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import InferenceModelStatus
from enginewright.contract.execution import Baseline
from enginewright.contract.images import ImageFacts
from enginewright.contract.reasons import Reason, exit_code
from enginewright.contract.report import Finding, Published, StageReport
from enginewright.contract.verdict import Check, CheckVerdict, FallbackVerdict, Verdict
from enginewright.observed.budgets import budget_view
from enginewright.observed.claims import claim_view
from enginewright.observed.deployments import deployment_view
from enginewright.observed.jobs import job_view
from enginewright.observed.nodes import node_view
from enginewright.observed.pods import pod_view
from enginewright.observed.revisions import revision_view
from enginewright.plan.engines_wanted import build_hash
from enginewright.plan.plan import plan
from enginewright.plan.types import Config, Facts, Plan, StoreConfig
from typing_extensions import override

from tests.support.simulation import NAMESPACE, Json, Simulation, timestamp

MODEL: Final = "resnet"
CPU_IMAGE: Final = "registry.example/cpu:1"
OPENVINO_IMAGE: Final = "registry.example/openvino:1"
GPU_IMAGE: Final = "registry.example/gpu:1"
RTX_IMAGE: Final = "registry.example/rtx:1"
DIGEST: Final = "d" * 64

_READ: Final[dict[str, tuple[str, Callable[[Json], Any]]]] = {  # attribute of Facts, and its view
    "Job": ("jobs", job_view),
    "Pod": ("pods", pod_view),
    "Deployment": ("deployments", deployment_view),
    "ControllerRevision": ("revisions", revision_view),
    "PodDisruptionBudget": ("budgets", budget_view),
}


def image_facts(variant: str, ort_version: str = "1.31.1", max_opset: int = 26) -> ImageFacts:
    return ImageFacts(
        variant=variant,
        ort_distribution="onnxruntime",
        ort_version=ort_version,
        max_opset=max_opset,
        max_ir_version=13,
        providers=("CPUExecutionProvider",),
        backends={variant: ort_version},
        onnx_version="1.22.0",
        runtime_version="0.1.0",
    )


def accelerator_class(name: str, *backends: str, **spec: Any) -> AcceleratorClass:
    return AcceleratorClass.model_validate(
        {
            "metadata": {"name": name, "uid": f"class-{name}"},
            "spec": {
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "backends": list(backends or ("cpu",)),
                **spec,
            },
        }
    )


def node(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def l4(**spec: Any) -> AcceleratorClass:
    """Return a class of GPUs for which TensorRT-RTX builds without a device."""
    return accelerator_class(
        "l4",
        "tensorrt-rtx",
        "cuda",
        **{
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
            "resourceName": "nvidia.com/gpu",
            "computeCapability": "8.9",
            "aheadOfTime": True,
            **spec,
        },
    )


def verdict(
    backend: str = "cpu",
    fallback: FallbackVerdict | None = None,
    *,
    failed: Mapping[Check, Reason] | None = None,
    p99: float | None = 0.012,
) -> Verdict:
    """Return what a sidecar says: all is well, but for the checks that failed."""
    wrong = failed or {}
    return Verdict(
        model=MODEL,
        revision="r",
        backend=backend,
        ready=not wrong,
        admitted=not wrong,
        checks=tuple(
            CheckVerdict(
                check=check,
                state="failed" if check in wrong else "ok",
                reason=wrong.get(check),
                message=f"{check}!" if check in wrong else "",
            )
            for check in Check
        ),
        fallback=fallback or FallbackVerdict(active=False, nodes_total=105),
        baseline=None if p99 is None else Baseline(p50=p99 / 2, p90=p99 / 1.5, p99=p99, samples=20),
    )


def published(key: str = "a" * 64, digest: str = DIGEST) -> Published:
    return Published(
        key=key, model_digest=digest, opset=17, ir_version=8, nodes=105, size_bytes=4096
    )


OTHER: Final = {"uri": "https://models.example/other.onnx"}
SECOND: Final = published("b" * 64, "e" * 64)


class World(Simulation):
    """One model and everything around it."""

    FAILING_STAGE = "validate"

    def __init__(self, *classes: str | AcceleratorClass, **spec: Any) -> None:
        """Have these AcceleratorClasses, those given by name of the backend cpu; one cpu if none is given."""
        super().__init__()
        self.spec: Json = {"source": {"uri": "https://models.example/resnet.onnx"}, **spec}
        self.annotations: dict[str, str] = {}
        self.deleted = False
        self.config = Config(
            namespace="enginewright",
            images={"cpu": CPU_IMAGE, "openvino": OPENVINO_IMAGE},
            image_pull_policy="IfNotPresent",
            image_pull_secrets=("registry",),
            store=StoreConfig("enginewright-store", "20Gi", "ReadWriteMany", None),
        )
        self.classes = [
            accelerator_class(each) if isinstance(each, str) else each
            for each in classes or ["cpu"]
        ]
        self.nodes = [node("node-1"), node("node-2")]
        self.images = {
            CPU_IMAGE: image_facts("cpu"),
            OPENVINO_IMAGE: image_facts("openvino", "1.24.1", 25),
        }
        self.image_failures: dict[str, str] = {}
        self.verdicts: dict[str, Verdict] = {}  # by pod; unknown to an operator that has just begun
        self.silent: set[str] = set()  # pods that have not answered for long
        self.last: Plan | None = None

    # what the operator does

    def facts(self) -> Facts:
        """Gather what the controller would."""
        metadata = {
            "name": MODEL,
            "namespace": NAMESPACE,
            "uid": "0b9e6b6e-model",
            "generation": self.generation,
            "annotations": dict(self.annotations),
        }
        if self.deleted:
            metadata["deletionTimestamp"] = "2026-11-21T12:00:00Z"
        model = InferenceModel.model_validate(
            {"metadata": metadata, "spec": self.spec, "status": self.status}
        )
        children: dict[str, list[Any]] = {attribute: [] for attribute, _ in _READ.values()}
        for (kind, _), obj in sorted(self.objects.items()):
            if kind in _READ:
                attribute, view = _READ[kind]
                seen = view(obj)
                is_trial = kind == "Deployment" and seen.is_trial
                children.setdefault("trials" if is_trial else attribute, []).append(seen)
        claim = self.objects.get(("PersistentVolumeClaim", self.config.store.claim))
        return Facts(
            model=model,
            config=self.config,
            now=self.now,
            classes=tuple(sorted(self.classes, key=lambda each: each.metadata.name)),
            nodes=tuple(map(node_view, self.nodes)),
            images=self.images,
            image_failures=self.image_failures,
            store=claim_view(claim) if claim else None,
            engines={
                name: InferenceEngine.model_validate(obj)
                for (kind, name), obj in self.objects.items()
                if kind == "InferenceEngine"
            },
            verdicts=dict(self.verdicts),
            silent=frozenset(self.silent),
            **{attribute: tuple(found) for attribute, found in children.items()},
        )

    @override
    def pass_once(self) -> bool:
        facts = self.facts()
        self.last = plan(facts)
        changed = bool(self.last.events)
        for wanted in self.last.apply:
            changed |= self.apply(wanted)
        for ref in self.last.delete:
            changed |= self.remove(ref.kind, ref.name)
        InferenceModelStatus.model_validate(self.last.status)
        changed |= self.last.status != self.status
        self.status = self.last.status
        self.events += self.last.events
        if not changed:
            assert plan(facts) == self.last, "the same facts give the same plan"
        return changed

    # what users do

    def edit(self, **spec: Any) -> Self:
        """Change the spec as kubectl would; None removes a field."""
        changed = {k: v for k, v in {**self.spec, **spec}.items() if v is not None}
        if changed != self.spec:
            self.spec = changed
            self.generation += 1
        return self.settle()

    def annotate(self, name: str, value: str | None) -> Self:
        """Set an annotation of the model, which is no change of its spec; None removes it."""
        self.annotations.pop(name, None)
        if value is not None:
            self.annotations[name] = value
        return self.settle()

    # what Jobs do

    def job_succeeds(self, result: Published | None = None) -> Self:
        """End the running Job well."""
        return self.job_reports(
            StageReport(stage="publish", ok=True, published=result or published())
        )

    # what Deployments do

    def serving_deployments(self) -> list[Json]:
        return [each for each in self.all("Deployment") if not deployment_view(each).is_trial]

    def replicas(self) -> dict[str, int]:
        """Return how many pods each Deployment is to have."""
        return {
            each["metadata"]["name"]: each["spec"]["replicas"] for each in self.all("Deployment")
        }

    def trials(self) -> list[Json]:
        return [each for each in self.all("Deployment") if deployment_view(each).is_trial]

    def observed(self, **status: Any) -> Self:
        """Have the Deployment controller see every Deployment, with that status."""
        for deployment in self.serving_deployments():
            wanted = deployment["spec"]["replicas"]
            deployment["status"] = {
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": wanted,
                **status,
            }
        return self.settle()

    def partly_available(self, name: str, available: int) -> Self:
        """Have a Deployment's pods be all of its latest template, some of them available."""
        self.count_pods(self.objects[("Deployment", name)], available)
        return self.settle()

    @staticmethod
    def count_pods(deployment: Json, available: int) -> None:
        wanted = deployment["spec"]["replicas"]
        deployment["status"] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": wanted,
            "updatedReplicas": wanted,
            "readyReplicas": available,
            "availableReplicas": available,
        }

    def new_runtime_image(self, image: str = "registry.example/cpu:2") -> None:
        """Have the chart name another image for the backend cpu, which is not probed yet."""
        self.config = replace(self.config, images={**self.config.images, "cpu": image})

    def all_available(self) -> Self:
        """Have every Deployment come to its end: all pods new, all available."""
        for deployment in self.serving_deployments():
            self.complete(deployment["metadata"]["name"])
        return self.settle()

    def complete(self, name: str) -> None:
        deployment = self.objects[("Deployment", name)]
        wanted = deployment["spec"]["replicas"]
        self.remove_pods("deployment", name)
        for index in range(wanted):
            self.serving_pod(name, index=index, ready=True)
        self.count_pods(deployment, wanted)
        deployment["status"]["conditions"] = [
            {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
        ]

    def rolling(self, available: int, *, stuck: bool = False) -> Self:
        """Have every Deployment be in the middle: `available` old pods, one new, not ready."""
        for deployment in self.serving_deployments():
            self.serving_pod(deployment["metadata"]["name"], index=90, ready=False)
            progress = ("False", "ProgressDeadlineExceeded") if stuck else ("True", "Progressing")
            deployment["status"] = {
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": available + 1,
                "updatedReplicas": 1,
                "readyReplicas": available,
                "availableReplicas": available,
                "unavailableReplicas": 1,
                "conditions": [
                    {"type": "Progressing", "status": progress[0], "reason": progress[1]}
                ],
            }
        return self.settle()

    def new_pod_fails(self, reason: Reason, container: str = "server", message: str = "") -> Self:
        """Have a pod of the wanted revision crash, again and again."""
        for deployment in self.serving_deployments():
            report = StageReport(
                stage=container,
                ok=False,
                failure=Finding(reason=reason, cause=message or f"{container}!", remedy=""),
            )
            ended = {
                "terminated": {
                    "exitCode": int(exit_code(reason)),
                    "message": report.termination_message(),
                    "finishedAt": timestamp(self.now),
                }
            }
            state = {
                "name": container,
                "ready": False,
                "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": ended,
            }
            kind = "containerStatuses" if container == "server" else "initContainerStatuses"
            self.serving_pod(deployment["metadata"]["name"], index=90, status={kind: [state]})
        return self.settle()

    # what engine Jobs do

    def has_gpus(self, **spec: Any) -> Self:
        """Have a class of GPUs in the cluster, and images for it."""
        self.classes = [l4(**spec)]
        self.config = replace(
            self.config, images={**self.config.images, "gpu": GPU_IMAGE, "rtx": RTX_IMAGE}
        )
        rtx = image_facts("rtx").model_copy(update={"backends": {"tensorrt-rtx": "1.7.1.116"}})
        gpu = image_facts("gpu").model_copy(update={"backends": {"cuda": "13"}})
        self.images = {**self.images, RTX_IMAGE: rtx, GPU_IMAGE: gpu}
        return self

    def engine_says(self, reason: str, **status: Any) -> Self:
        """Have the one InferenceEngine say that it is not ready."""
        engine = self.the("InferenceEngine")
        engine["status"] = {
            "buildHash": build_hash(InferenceEngine.model_validate(engine).spec.build),
            "conditions": [
                {
                    "type": "Ready",
                    "status": "False",
                    "reason": reason,
                    "message": f"{reason}!",
                    "lastTransitionTime": timestamp(self.now),
                }
            ],
            **status,
        }
        return self.settle()

    def engine_fails(self, reason: Reason, *, lasting: bool = True) -> Self:
        return self.engine_says(
            reason,
            failure={"reason": reason, "message": f"{reason}!", "lasting": lasting},
        )

    def engine_built(self, *, total: int = 105, accelerated: int = 105, **facts: Any) -> Self:
        """Have every InferenceEngine be built."""
        for engine in self.all("InferenceEngine"):
            engine["status"] = {
                "engine": {
                    "sha256": "e" * 64,
                    "sizeBytes": 3_450_000,
                    "buildMilliseconds": 512,
                    "computeCapabilities": ["8.9"],
                    "nodesTotal": total,
                    "nodesAccelerated": accelerated,
                    **facts,
                }
            }
        return self.settle()

    # what sidecars do

    def sidecars_say(self, said: Verdict) -> Self:
        """Have the sidecars of all serving pods say the same."""
        for pod in self.all("Pod"):
            if pod["metadata"]["labels"].get("enginewright.dev/component") == "serve":
                self.verdicts[pod["metadata"]["name"]] = said
        return self.settle()

    def operator_restarts(self) -> Self:
        self.verdicts = {}
        return self.settle()

    def serving_pod(
        self,
        deployment: str,
        *,
        index: int = 0,
        ready: bool = False,
        status: Json | None = None,
    ) -> Json:
        labels = self.objects[("Deployment", deployment)]["spec"]["template"]["metadata"]["labels"]
        state = {"name": "server", "ready": ready, "state": {"running": {}}}
        reported = status or {
            "initContainerStatuses": [{"name": "sidecar", "state": {"running": {}}}],
            "containerStatuses": [state],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        if ready:
            self.verdicts[f"{deployment}-{index:05}"] = verdict()
        return self.add_pod(
            f"{deployment}-{index:05}",
            {**labels, "deployment": deployment},
            {"phase": "Running", **reported},
        )

    @override
    def remove_pods(self, label: str, value: str) -> None:
        super().remove_pods(label, value)
        there = {name for kind, name in self.objects if kind == "Pod"}
        self.verdicts = {name: said for name, said in self.verdicts.items() if name in there}


def serving(**spec: Any) -> World:
    """Return a model that serves, with two replicas unless the spec says otherwise."""
    return World(**{"replicas": 2, **spec}).settle().job_succeeds().all_available()
