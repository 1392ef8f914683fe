"""A cluster in memory that carries out plans and lets a test play kubelet, Jobs and Deployments.

Only for unit tests of decisions; the same behaviour is tested on real kubelets in tests/e2e. What
the API server would refuse (a changed selector, Job, ControllerRevision or claim) fails here too.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import InferenceModelStatus
from enginewright.contract.execution import Baseline
from enginewright.contract.images import ImageFacts
from enginewright.contract.reasons import Reason, exit_code
from enginewright.contract.report import Published, StageReport
from enginewright.contract.task import PREPARE_STAGES
from enginewright.contract.verdict import Check, CheckVerdict, FallbackVerdict, Verdict
from enginewright.observed.budgets import budget_view
from enginewright.observed.claims import claim_view
from enginewright.observed.deployments import deployment_view
from enginewright.observed.jobs import job_view
from enginewright.observed.nodes import node_view
from enginewright.observed.pods import pod_view
from enginewright.observed.revisions import revision_view
from enginewright.plan.plan import plan
from enginewright.plan.types import Config, EventIntent, Facts, Plan, StoreConfig

from tests.support.copies import copied

Json = dict[str, Any]

NAMESPACE: Final = "shop"
MODEL: Final = "resnet"
CPU_IMAGE: Final = "registry.example/cpu:1"
OPENVINO_IMAGE: Final = "registry.example/openvino:1"
GPU_IMAGE: Final = "registry.example/gpu:1"
RTX_IMAGE: Final = "registry.example/rtx:1"
DIGEST: Final = "d" * 64
PATIENCE: Final = 20  # passes in which a plan must come to rest

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


class World:
    """One model and everything around it."""

    def __init__(self, **spec: Any) -> None:
        self.spec: Json = {"source": {"uri": "https://models.example/resnet.onnx"}, **spec}
        self.annotations: dict[str, str] = {}
        self.generation = 1
        self.status: Json = {}
        self.deleted = False
        self.now = datetime(2026, 11, 21, 12, tzinfo=UTC)
        self.config = Config(
            namespace="enginewright",
            images={"cpu": CPU_IMAGE, "openvino": OPENVINO_IMAGE},
            image_pull_policy="IfNotPresent",
            image_pull_secrets=("registry",),
            store=StoreConfig("enginewright-store", "20Gi", "ReadWriteMany", None),
        )
        self.classes = [accelerator_class("cpu")]
        self.nodes = [node("node-1"), node("node-2")]
        self.images = {
            CPU_IMAGE: image_facts("cpu"),
            OPENVINO_IMAGE: image_facts("openvino", "1.24.1", 25),
        }
        self.image_failures: dict[str, str] = {}
        self.verdicts: dict[str, Verdict] = {}  # by pod; unknown to an operator that has just begun
        self.silent: set[str] = set()  # pods that have not answered for long
        self.objects: dict[tuple[str, str], Json] = {}
        self.events: list[EventIntent] = []
        self.last: Plan | None = None
        self._uids = itertools.count(1)

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
            copied({"metadata": metadata, "spec": self.spec, "status": self.status})
        )
        children: dict[str, list[Any]] = {attribute: [] for attribute, _ in _READ.values()}
        for (kind, _), obj in sorted(self.objects.items()):
            if kind in _READ:
                attribute, view = _READ[kind]
                children[attribute].append(view(copied(obj)))
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
                name: InferenceEngine.model_validate(copied(obj))
                for (kind, name), obj in self.objects.items()
                if kind == "InferenceEngine"
            },
            verdicts=dict(self.verdicts),
            silent=frozenset(self.silent),
            **{attribute: tuple(found) for attribute, found in children.items()},
        )

    def pass_once(self) -> bool:
        """Plan and carry it out; returns whether anything changed, Events included."""
        facts = self.facts()
        self.last = plan(facts)
        assert plan(facts) == self.last, "the same facts give the same plan"
        changed = False
        for wanted in self.last.apply:
            changed |= self._apply(wanted)
        for ref in self.last.delete:
            changed |= self.objects.pop((ref.kind, ref.name), None) is not None
            if ref.kind == "Job":
                self._drop_pods("batch.kubernetes.io/job-name", ref.name)
            if ref.kind == "Deployment":
                self._drop_pods("deployment", ref.name)
        status = _without_nulls(self.last.status)
        InferenceModelStatus.model_validate(status)
        changed |= status != self.status
        self.status = status
        self.events += self.last.events
        return changed or bool(self.last.events)

    def settle(self) -> "World":
        """Pass until nothing changes any more."""
        for _ in range(PATIENCE):
            if not self.pass_once():
                return self
        raise AssertionError(f"no rest after {PATIENCE} passes: {self.last}")

    # what users do

    def edit(self, **spec: Any) -> "World":
        """Change the spec as kubectl would; None removes a field."""
        changed = {k: v for k, v in {**self.spec, **spec}.items() if v is not None}
        if changed != self.spec:
            self.spec = changed
            self.generation += 1
        return self.settle()

    def annotate(self, name: str, value: str | None) -> "World":
        """Set an annotation of the model, which is no change of its spec; None removes it."""
        self.annotations.pop(name, None)
        if value is not None:
            self.annotations[name] = value
        return self.settle()

    def later(self, **duration: float) -> "World":
        self.now += timedelta(**duration)
        return self.settle()

    # what Jobs and kubelets do

    def all(self, kind: str) -> list[Json]:
        return [obj for (each, _), obj in sorted(self.objects.items()) if each == kind]

    def the(self, kind: str) -> Json:
        """Return the one object of a kind."""
        (found,) = self.all(kind)
        return found

    def job(self) -> Json:
        """Return the Job that has not ended."""
        (found,) = [job for job in self.all("Job") if not _ended(job)]
        return found

    def job_pod(self, **status: Any) -> Json:
        """Have a pod of the running Job observed: the one that runs, else a new one."""
        job = self.job()["metadata"]["name"]
        mine = [
            pod
            for pod in self.all("Pod")
            if pod["metadata"]["labels"].get("batch.kubernetes.io/job-name") == job
        ]
        if mine and mine[-1]["status"]["phase"] not in ("Succeeded", "Failed"):
            mine[-1]["status"] = {"phase": "Pending", **status}
            return mine[-1]
        labels = self.job()["spec"]["template"]["metadata"]["labels"]
        return self._pod(
            f"{job}-{len(mine):05}",
            {**labels, "batch.kubernetes.io/job-name": job},
            {"phase": "Pending", **status},
        )

    def stage_runs(self, stage: str) -> "World":
        self.job_pod(**stage_statuses(stage))
        return self.settle()

    def job_succeeds(self, result: Published | None = None) -> "World":
        """End the running Job well."""
        done = {stage: terminated(stage) for stage in PREPARE_STAGES[:-1]}
        report = StageReport(stage="publish", ok=True, published=result or published())
        done["publish"] = terminated("publish", message=report.herald())
        self.job_pod(phase="Succeeded", **_by_kind(done))
        self._end(self.job(), "Complete")
        return self.settle()

    def job_fails(self, reason: Reason, stage: str = "validate", message: str = "") -> "World":
        """End the running Job for a reason that a stage tells."""
        job = self.job()
        self.pod_fails(reason, stage, message)
        self._end(job, "Failed", reason="PodFailurePolicy")
        return self.settle()

    def pod_fails(self, reason: Reason, stage: str = "validate", message: str = "") -> "World":
        """Have a pod of the running Job fail; the Job makes another."""
        report = StageReport(stage=stage, ok=False, reason=reason, message=message or f"{stage}!")
        code = int(exit_code(reason))
        self.job_pod(
            phase="Failed",
            **stage_statuses(stage, terminated(stage, code=code, message=report.herald())),
        )
        return self.settle()

    def job_ends(self, kind: str, **condition: str) -> "World":
        self._end(self.job(), kind, **condition)
        return self.settle()

    def job_is_cleaned_away(self) -> "World":
        """Have the time to live of all ended Jobs run out."""
        for job in self.all("Job"):
            if _ended(job):
                name = job["metadata"]["name"]
                del self.objects[("Job", name)]
                self._drop_pods("batch.kubernetes.io/job-name", name)
        return self.settle()

    # what Deployments do

    def observed(self, **status: Any) -> "World":
        """Have the Deployment controller see every Deployment, with that status."""
        for deployment in self.all("Deployment"):
            wanted = deployment["spec"]["replicas"]
            deployment["status"] = {
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": wanted,
                **status,
            }
        return self.settle()

    def all_available(self) -> "World":
        """Have every Deployment come to its end: all pods new, all available."""
        for deployment in self.all("Deployment"):
            self.complete(deployment["metadata"]["name"])
        return self.settle()

    def complete(self, name: str) -> None:
        deployment = self.objects[("Deployment", name)]
        wanted = deployment["spec"]["replicas"]
        self._drop_pods("deployment", name)
        for index in range(wanted):
            self.serving_pod(name, index=index, ready=True)
        deployment["status"] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": wanted,
            "updatedReplicas": wanted,
            "readyReplicas": wanted,
            "availableReplicas": wanted,
            "conditions": [
                {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
                {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
            ],
        }

    def rolling(self, available: int, *, stuck: bool = False) -> "World":
        """Have every Deployment be in the middle: `available` old pods, one new, not ready."""
        for deployment in self.all("Deployment"):
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

    def new_pod_fails(
        self, reason: Reason, container: str = "server", message: str = ""
    ) -> "World":
        """Have a pod of the wanted revision crash, again and again."""
        for deployment in self.all("Deployment"):
            report = StageReport(
                stage=container, ok=False, reason=reason, message=message or f"{container}!"
            )
            ended = {
                "terminated": {
                    "exitCode": int(exit_code(reason)),
                    "message": report.herald(),
                    "finishedAt": _text(self.now),
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

    def has_gpus(self, **spec: Any) -> "World":
        """Have a class of GPUs in the cluster, and images for it."""
        self.classes = [l4(**spec)]
        self.config = replace(
            self.config, images={**self.config.images, "gpu": GPU_IMAGE, "rtx": RTX_IMAGE}
        )
        rtx = image_facts("rtx").model_copy(update={"backends": {"tensorrt-rtx": "1.7.1.116"}})
        gpu = image_facts("gpu").model_copy(update={"backends": {"cuda": "13"}})
        self.images = {**self.images, RTX_IMAGE: rtx, GPU_IMAGE: gpu}
        return self

    def engine_says(self, reason: str, **status: Any) -> "World":
        """Have the one InferenceEngine say that it is not ready."""
        self.the("InferenceEngine")["status"] = {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "False",
                    "reason": reason,
                    "message": f"{reason}!",
                    "lastTransitionTime": _text(self.now),
                }
            ],
            **status,
        }
        return self.settle()

    def engine_fails(self, reason: Reason, *, lasting: bool = True) -> "World":
        return self.engine_says(
            reason,
            failure={"reason": reason, "message": f"{reason}!", "lasting": lasting},
        )

    def engine_built(self, *, total: int = 105, accelerated: int = 105, **facts: Any) -> "World":
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

    def sidecars_say(self, said: Verdict) -> "World":
        """Have the sidecars of all serving pods say the same."""
        for pod in self.all("Pod"):
            if pod["metadata"]["labels"].get("enginewright.dev/component") == "serve":
                self.verdicts[pod["metadata"]["name"]] = said
        return self.settle()

    def operator_restarts(self) -> "World":
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
        told = status or {
            "initContainerStatuses": [{"name": "sidecar", "state": {"running": {}}}],
            "containerStatuses": [state],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        if ready:
            self.verdicts[f"{deployment}-{index:05}"] = verdict()
        return self._pod(
            f"{deployment}-{index:05}",
            {**labels, "deployment": deployment},
            {"phase": "Running", **told},
        )

    # what is told

    def condition(self, kind: str) -> Json:
        found = [each for each in self.status["conditions"] if each["type"] == kind]
        assert found, f"no condition {kind} in {self.status}"
        return dict(found[0])

    def told(self) -> dict[str, tuple[str, str]]:
        """Return status and reason by condition type."""
        return {
            each["type"]: (each["status"], each["reason"])
            for each in self.status.get("conditions") or ()
        }

    def event_reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    # how it is done

    def _apply(self, wanted: Mapping[str, Any]) -> bool:
        metadata = wanted["metadata"]
        assert metadata.get("namespace") == NAMESPACE, wanted
        key = (wanted["kind"], metadata["name"])
        known = self.objects.get(key)
        if known is None:
            made = copied(dict(wanted))
            made["metadata"] |= {
                "uid": f"uid-{next(self._uids):04}",
                "generation": 1,
                "creationTimestamp": _text(self.now),
            }
            self.objects[key] = made
            return True
        if wanted["kind"] == "Job":  # the executor leaves a Job that is there alone
            return False
        _immutable(known, wanted)
        before = copied(known)
        for part in (name for name in wanted if name != "metadata"):
            known[part] = copied(wanted[part])
        for part in ("labels", "annotations", "ownerReferences"):
            if part in metadata:
                known["metadata"][part] = copied(metadata[part])
        if known.get("spec") != before.get("spec"):
            known["metadata"]["generation"] += 1
        return known != before

    def _pod(self, name: str, labels: Mapping[str, str], status: Json) -> Json:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"uid-{next(self._uids):04}",
                "labels": dict(labels),
                "creationTimestamp": _text(self.now),
            },
            "spec": {"nodeName": "node-1"},
            "status": status,
        }
        self.objects[("Pod", name)] = pod
        return pod

    def _drop_pods(self, label: str, value: str) -> None:
        for pod in self.all("Pod"):
            if pod["metadata"]["labels"].get(label) == value:
                self.verdicts.pop(pod["metadata"]["name"], None)
                del self.objects[("Pod", pod["metadata"]["name"])]

    def _end(self, job: Json, kind: str, **condition: str) -> None:
        job["status"] = {
            "conditions": [{"type": kind, "status": "True", **condition}],
            **({"completionTime": _text(self.now)} if kind == "Complete" else {}),
        }


def terminated(stage: str, *, code: int = 0, message: str = "", reason: str = "") -> Json:
    """Return the status of a container that has ended."""
    ended = {
        "exitCode": code,
        "reason": reason or ("Error" if code else "Completed"),
        "finishedAt": "2026-11-21T12:00:00Z",
    }
    return {"name": stage, "state": {"terminated": {**ended, "message": message}}}


def stage_statuses(stage: str, last: Json | None = None) -> Json:
    """Return pod status in which the stages before `stage` are done and it runs, or is `last`."""
    position = PREPARE_STAGES.index(stage)
    statuses = {before: terminated(before) for before in PREPARE_STAGES[:position]}
    statuses[stage] = last or {"name": stage, "state": {"running": {}}}
    for after in PREPARE_STAGES[position + 1 :]:
        statuses[after] = {
            "name": after,
            "state": {"waiting": {"reason": "PodInitializing"}},
        }
    return _by_kind(statuses)


def _by_kind(statuses: Mapping[str, Json]) -> Json:
    init = [statuses[stage] for stage in PREPARE_STAGES[:-1]]
    return {"initContainerStatuses": init, "containerStatuses": [statuses[PREPARE_STAGES[-1]]]}


def _ended(job: Mapping[str, Any]) -> bool:
    return any(
        each["type"] in ("Complete", "Failed") and each["status"] == "True"
        for each in (job.get("status") or {}).get("conditions") or ()
    )


def _immutable(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse what the API server refuses."""
    fields = {
        "ControllerRevision": ("data",),
        "PersistentVolumeClaim": ("spec",),
        "Deployment": ("spec", "selector"),
    }
    path = fields.get(wanted["kind"])
    if path is None:
        return
    old: Any = known
    new: Any = wanted
    for step in path:
        old, new = old[step], new[step]
    assert old == new, f"{wanted['kind']} {'.'.join(path)} is immutable"


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value
