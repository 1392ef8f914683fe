"""One InferenceEngine in memory, carried out as planned, with a test that plays Jobs and pods.

Only for unit tests of decisions; the same is tested on a real API server in tests/apiserver.
"""

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from enginewright.api.inference_engine import InferenceEngine, InferenceEngineStatus
from enginewright.contract.keys import engine_key
from enginewright.contract.reasons import Reason, exit_code
from enginewright.contract.report import Progress, PublishedEngine, StageReport
from enginewright.contract.task import LOOKUP_STAGE, EngineRecipe
from enginewright.observed.jobs import job_view
from enginewright.observed.pods import pod_view
from enginewright.plan.engines import BuildFacts, Ended, EnginePlan, plan_engine
from enginewright.plan.types import Config, EventIntent, StoreConfig

from tests.support.copies import copied

Json = dict[str, Any]

NAMESPACE: Final = "shop"
ENGINE: Final = "tensorrt-l4-0123456789ab"
IMAGE: Final = "registry.example/gpu:1"
PREPARED_KEY: Final = "a" * 64
RESOURCE: Final = "nvidia.com/gpu"
PATIENCE: Final = 20  # passes in which a plan must come to rest

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


class EngineWorld:
    """The engine, its Jobs and their pods."""

    def __init__(self, *, ahead_of_time: bool = False, **build: Any) -> None:
        self.spec = engine_spec(ahead_of_time=ahead_of_time, **build)
        self.generation = 1
        self.uid = "engine-1"
        self.status: Json = {}
        self.now = datetime(2026, 11, 21, 12, tzinfo=UTC)
        self.jobs: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.progress: dict[str, Progress] = {}
        self.made: list[str] = []  # Jobs, in the order in which they were made
        self.events: list[EventIntent] = []
        self.counted: list[Ended] = []
        self.writes = 0
        self.last: EnginePlan | None = None
        self._numbers = itertools.count(1)

    # what the operator does

    def facts(self) -> BuildFacts:
        metadata = {
            "name": ENGINE,
            "namespace": NAMESPACE,
            "uid": self.uid,
            "generation": self.generation,
        }
        return BuildFacts(
            engine=InferenceEngine.model_validate(
                copied({"metadata": metadata, "spec": self.spec, "status": self.status})
            ),
            config=CONFIG,
            now=self.now,
            jobs=tuple(job_view(copied(self.jobs[name])) for name in sorted(self.jobs)),
            pods=tuple(pod_view(copied(self.pods[name])) for name in sorted(self.pods)),
            progress=dict(self.progress),
        )

    def pass_once(self) -> bool:
        """Plan and carry it out; returns whether anything was written."""
        facts = self.facts()
        self.last = plan_engine(facts)
        assert plan_engine(facts) == self.last, "the same facts give the same plan"
        before = self.writes
        for wanted in self.last.apply:
            self._apply(wanted)
        for ref in self.last.delete:
            assert (ref.kind, ref.namespace) == ("Job", NAMESPACE)
            self.writes += 1
            self.drop(ref.name)
        InferenceEngineStatus.model_validate(self.last.status)
        if self.last.status != self.status:
            self.status = self.last.status
            self.writes += 1
            self.events += self.last.events
        else:
            assert not self.last.events
        if self.last.ended:
            self.counted.append(self.last.ended)
        return self.writes != before

    def settle(self) -> "EngineWorld":
        """Pass until nothing changes any more."""
        for _ in range(PATIENCE):
            if not self.pass_once():
                return self
        raise AssertionError(f"no rest after {PATIENCE} passes: {self.last}")

    def later(self, **duration: float) -> "EngineWorld":
        self.now += timedelta(**duration)
        return self.settle()

    def build_changes(self, **build: Any) -> "EngineWorld":
        """Have a model, or somebody, write another spec.build."""
        self.spec = {**self.spec, "build": {**self.spec["build"], **build}}
        self.generation += 1
        return self.settle()

    # what Jobs and kubelets do

    def running(self) -> Json:
        """Return the one Job that has not ended."""
        (found,) = [job for job in self.jobs.values() if not _ended(job)]
        return found

    def stages(self) -> tuple[str, ...]:
        """Return the stages of the Job that runs."""
        spec = self.running()["spec"]["template"]["spec"]
        return tuple(each["name"] for each in (*spec["initContainers"], *spec["containers"]))

    def pod(self, *, placed: bool = True, **status: Any) -> Json:
        """Have a pod of the running Job observed: the one that runs, else a new one."""
        job = self.running()
        name = job["metadata"]["name"]
        mine = [pod for pod in self.pods.values() if _job_of(pod) == name]
        alive = [pod for pod in mine if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        made = alive[0] if alive else None
        if made is None:
            number = f"{next(self._numbers):05}"
            made = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{number}",
                    "namespace": NAMESPACE,
                    "uid": f"pod-{number}",
                    "labels": {
                        **job["spec"]["template"]["metadata"]["labels"],
                        "batch.kubernetes.io/job-name": name,
                    },
                    "creationTimestamp": f"2026-11-21T12:{number}",
                },
            }
            self.pods[made["metadata"]["name"]] = made
        made["spec"] = {"nodeName": "node-1"} if placed else {}
        made["status"] = {"phase": "Pending", **status}
        return made

    def unschedulable(self, words: str) -> "EngineWorld":
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": words,
        }
        self.pod(placed=False, conditions=[condition])
        return self.settle()

    def stage_runs(self, stage: str) -> "EngineWorld":
        self.pod(phase="Pending", **_statuses(self.stages(), stage))
        return self.settle()

    def job_says(self, found: PublishedEngine | None) -> "EngineWorld":
        """End the running Job well; its last stage tells of an engine, or of none."""
        stages = self.stages()
        report = StageReport(stage=stages[-1], ok=True, engine=found)
        last = _terminated(stages[-1], message=report.herald())
        self.pod(phase="Succeeded", **_statuses(stages, stages[-1], last))
        return self.job_ends("Complete")

    def succeeds(self, **changes: Any) -> "EngineWorld":
        return self.job_says(published_engine(self.spec["key"], **changes))

    def misses(self) -> "EngineWorld":
        """Have the look into the store find nothing."""
        assert self.stages() == (LOOKUP_STAGE,)
        return self.job_says(None)

    def pod_fails(self, reason: Reason, stage: str = "build", message: str = "") -> "EngineWorld":
        """Have a pod of the running Job fail; whether the Job goes on is Kubernetes' to say."""
        report = StageReport(stage=stage, ok=False, reason=reason, message=message or f"{stage}!")
        last = _terminated(stage, code=int(exit_code(reason)), message=report.herald())
        self.pod(phase="Failed", **_statuses(self.stages(), stage, last))
        return self.settle()

    def fails(self, reason: Reason, stage: str = "build", message: str = "") -> "EngineWorld":
        name = self.running()["metadata"]["name"]
        self.pod_fails(reason, stage, message)
        return self.job_ends("Failed", name) if name in self.jobs else self

    def is_too_late(self, stage: str = "build") -> "EngineWorld":
        """Have the kubelet end the pod for its time."""
        killed = _terminated(stage, code=137)
        self.pod(
            phase="Failed",
            reason="DeadlineExceeded",
            **_statuses(self.stages(), stage, killed),
        )
        return self.settle()

    def job_ends(self, kind: str, name: str | None = None) -> "EngineWorld":
        job = self.jobs[name] if name else self.running()
        job["status"] = {"conditions": [{"type": kind, "status": "True"}]}
        return self.settle()

    def jobs_are_cleaned_away(self) -> "EngineWorld":
        """Have the time to live of all ended Jobs run out."""
        for name in [name for name, job in self.jobs.items() if _ended(job)]:
            self.drop(name)
        return self.settle()

    def job_is_deleted(self) -> "EngineWorld":
        self.drop(self.running()["metadata"]["name"])
        return self.settle()

    # what is told

    def told(self) -> dict[str, tuple[str, str]]:
        """Return status and reason by condition type."""
        return {
            each["type"]: (each["status"], each["reason"]) for each in self.status["conditions"]
        }

    def message(self) -> str:
        found: str = next(
            each["message"] for each in self.status["conditions"] if each["type"] == "Ready"
        )
        return found

    # how it is done

    def _apply(self, wanted: Mapping[str, Any]) -> None:
        metadata = wanted["metadata"]
        assert (wanted["kind"], metadata["namespace"]) == ("Job", NAMESPACE)
        if metadata["name"] in self.jobs:
            return  # as the executor does
        self.writes += 1
        self.made.append(metadata["name"])
        job = copied(dict(wanted))
        job["metadata"]["uid"] = f"job-{next(self._numbers)}"
        self.jobs[metadata["name"]] = job

    def drop(self, job: str) -> None:
        """Delete a Job and its pods."""
        del self.jobs[job]
        for name in [name for name, pod in self.pods.items() if _job_of(pod) == job]:
            del self.pods[name]


def _job_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"])


def _ended(job: Mapping[str, Any]) -> bool:
    return any(
        each["type"] in ("Complete", "Failed") and each["status"] == "True"
        for each in (job.get("status") or {}).get("conditions") or ()
    )


def _terminated(stage: str, *, code: int = 0, message: str = "") -> Json:
    ended = {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "finishedAt": "2026-11-21T12:00:00Z",
        "message": message,
    }
    return {"name": stage, "state": {"terminated": ended}}


def _statuses(stages: Sequence[str], stage: str, last: Json | None = None) -> Json:
    """Return pod status in which the stages before `stage` are done and it runs, or is `last`."""
    position = stages.index(stage)
    every = [_terminated(before) for before in stages[:position]]
    every.append(last or {"name": stage, "state": {"running": {}}})
    waiting = {"waiting": {"reason": "PodInitializing"}}
    every += [{"name": after, "state": waiting} for after in stages[position + 1 :]]
    return {"initContainerStatuses": every[:-1], "containerStatuses": every[-1:]}
