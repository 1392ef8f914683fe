"""A cluster in memory: what API server, Job controller, kubelet and scheduler do to what a plan makes.

Only for unit tests of decisions; the same behaviour is tested on real kubelets in tests/e2e. What the API server would refuse
(a changed selector, Job, ControllerRevision or claim) fails here too.
"""

import abc
import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from enginewright.contract.reasons import SELDOM_PASSES, ExitCode, Reason, exit_code
from enginewright.contract.report import Finding, StageReport

from tests.support.copies import copied

if TYPE_CHECKING:
    from enginewright.plan.types import EventIntent

Json = dict[str, Any]

NAMESPACE: Final = "shop"
JOB_NAME: Final = "batch.kubernetes.io/job-name"
TIMEOUT: Final = 20  # passes in which a plan must come to rest
PERMANENT: Final = [each for each in Reason if exit_code(each) is ExitCode.PERMANENT]
PASSING: Final = [
    each
    for each in Reason
    if exit_code(each) is not ExitCode.PERMANENT and each not in SELDOM_PASSES
]

_IMMUTABLE: Final = {
    "ControllerRevision": ("data",),
    "PersistentVolumeClaim": ("spec",),
    "Deployment": ("spec", "selector"),
}


class Simulation(abc.ABC):
    """Objects by kind and name, time, and the one object whose plan is carried out."""

    FAILING_STAGE: ClassVar[str]  # unless a test names another

    def __init__(self) -> None:
        self.generation = 1
        self.status: Json = {}
        self.now = datetime(2026, 11, 21, 12, tzinfo=UTC)
        self.objects: dict[tuple[str, str], Json] = {}
        self.events: list[EventIntent] = []
        self._numbers = itertools.count(1)

    # what the operator does

    @abc.abstractmethod
    def pass_once(self) -> bool:
        """Plan and carry it out; returns whether anything changed, Events included."""

    def settle(self) -> Self:
        """Pass until nothing changes any more."""
        for _ in range(TIMEOUT):
            if not self.pass_once():
                return self
        raise AssertionError(f"no rest after {TIMEOUT} passes: {self.status}")

    def later(self, **duration: float) -> Self:
        self.now += timedelta(**duration)
        return self.settle()

    # what there is

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

    def stages(self) -> tuple[str, ...]:
        """Return the stages of the Job that runs."""
        spec = self.job()["spec"]["template"]["spec"]
        return tuple(each["name"] for each in (*spec["initContainers"], *spec["containers"]))

    def task(self) -> str:
        """Return the task of the Job that runs, as JSON."""
        (container,) = self.job()["spec"]["template"]["spec"]["containers"]
        (variable,) = container["env"]
        return str(variable["value"])

    def condition(self, kind: str) -> Json:
        found = [each for each in self.status["conditions"] if each["type"] == kind]
        assert found, f"no condition {kind} in {self.status}"
        return dict(found[0])

    def conditions(self) -> dict[str, tuple[str, str]]:
        """Return status and reason by condition type."""
        return {
            each["type"]: (each["status"], each["reason"])
            for each in self.status.get("conditions") or ()
        }

    def message(self) -> str:
        return str(self.condition("Ready")["message"])

    def event_reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    # what Jobs and kubelets do

    def job_pod(self, *, placed: bool = True, **status: Any) -> Json:
        """Have a pod of the running Job observed: the one that runs, else a new one."""
        job = self.job()
        name = job["metadata"]["name"]
        mine = [pod for pod in self.all("Pod") if pod["metadata"]["labels"].get(JOB_NAME) == name]
        if mine and mine[-1]["status"]["phase"] not in ("Succeeded", "Failed"):
            pod = mine[-1]
        else:
            labels = job["spec"]["template"]["metadata"]["labels"]
            pod = self.add_pod(f"{name}-{len(mine):05}", {**labels, JOB_NAME: name}, {})
        pod["spec"] = {"nodeName": "node-1"} if placed else {}
        pod["status"] = {"phase": "Pending", **status}
        return pod

    def job_pod_becomes(self, *, placed: bool = True, **status: Any) -> Self:
        self.job_pod(placed=placed, **status)
        return self.settle()

    def unschedulable(self, message: str) -> Self:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
        return self.job_pod_becomes(placed=False, conditions=[condition])

    def stage_runs(self, stage: str) -> Self:
        return self.job_pod_becomes(**statuses(self.stages(), stage))

    def job_reports(self, report: StageReport) -> Self:
        """End the running Job well, with what its last stage reports."""
        last = terminated(report.stage, message=report.termination_message())
        self.job_pod(phase="Succeeded", **statuses(self.stages(), report.stage, last))
        return self.job_ends("Complete")

    def pod_fails(self, reason: Reason, stage: str = "", message: str = "") -> Self:
        """Have a pod of the running Job fail; whether the Job goes on is Kubernetes' to say."""
        stage = stage or self.FAILING_STAGE
        failure = Finding(reason=reason, cause=message or f"{stage}!", remedy="")
        report = StageReport(stage=stage, ok=False, failure=failure)
        last = terminated(stage, code=int(exit_code(reason)), message=report.termination_message())
        return self.job_pod_becomes(phase="Failed", **statuses(self.stages(), stage, last))

    def job_fails(self, reason: Reason, stage: str = "", message: str = "") -> Self:
        """End the running Job for a reason that a stage reports."""
        name = self.job()["metadata"]["name"]
        self.pod_fails(reason, stage, message)
        if ("Job", name) in self.objects:
            self.job_ends("Failed", name, reason="PodFailurePolicy")
        return self

    def job_ends(self, kind: str, name: str = "", **condition: str) -> Self:
        job = self.objects[("Job", name)] if name else self.job()
        job["status"] = {
            "conditions": [{"type": kind, "status": "True", **condition}],
            **({"completionTime": timestamp(self.now)} if kind == "Complete" else {}),
        }
        return self.settle()

    def jobs_are_cleaned_away(self) -> Self:
        """Have the time to live of all ended Jobs run out."""
        for job in filter(_ended, self.all("Job")):
            self.remove("Job", job["metadata"]["name"])
        return self.settle()

    # what the API server and its controllers do

    def apply(self, wanted: Mapping[str, Any]) -> bool:
        """Apply an object as the executor does; returns whether that changes anything."""
        metadata = wanted["metadata"]
        assert metadata.get("namespace") == NAMESPACE, wanted
        known = self.objects.get((wanted["kind"], metadata["name"]))
        if known is None:
            made = copied(dict(wanted))
            made["metadata"] |= self._identity()
            self.objects[(wanted["kind"], metadata["name"])] = made
            return True
        if wanted["kind"] == "Job":  # the executor leaves a Job that is there alone
            return False
        _refuse_immutable(known, wanted)
        changed = _take(known, wanted, (part for part in wanted if part != "metadata"))
        if "spec" in changed:
            known["metadata"]["generation"] += 1
        owned = {"labels", "annotations", "ownerReferences"} & metadata.keys()
        return bool(changed | _take(known["metadata"], metadata, owned))

    def remove(self, kind: str, name: str) -> bool:
        """Delete an object and, of a Job or Deployment, its pods; returns whether it was there."""
        label = {"Job": JOB_NAME, "Deployment": "deployment"}.get(kind)
        if label:
            self.remove_pods(label, name)
        return self.objects.pop((kind, name), None) is not None

    def remove_pods(self, label: str, value: str) -> None:
        for pod in self.all("Pod"):
            if pod["metadata"]["labels"].get(label) == value:
                del self.objects[("Pod", pod["metadata"]["name"])]

    def add_pod(self, name: str, labels: Mapping[str, str], status: Json) -> Json:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": dict(labels),
                **self._identity(),
            },
            "spec": {"nodeName": "node-1"},
            "status": status,
        }
        self.objects[("Pod", name)] = pod
        return pod

    def _identity(self) -> Json:
        return {
            "uid": f"uid-{next(self._numbers):04}",
            "generation": 1,
            "creationTimestamp": timestamp(self.now),
        }


def timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def terminated(stage: str, *, code: int = 0, message: str = "", reason: str = "") -> Json:
    """Return the status of a container that has ended."""
    ended = {
        "exitCode": code,
        "reason": reason or ("Error" if code else "Completed"),
        "finishedAt": "2026-11-21T12:00:00Z",
    }
    return {"name": stage, "state": {"terminated": {**ended, "message": message}}}


def statuses(stages: Sequence[str], stage: str, last: Json | None = None) -> Json:
    """Return pod status in which the stages before `stage` are done and it runs, or is `last`."""
    position = stages.index(stage)
    every = [terminated(before) for before in stages[:position]]
    every.append(last or {"name": stage, "state": {"running": {}}})
    waiting = {"waiting": {"reason": "PodInitializing"}}
    every += [{"name": after, "state": waiting} for after in stages[position + 1 :]]
    return {"initContainerStatuses": every[:-1], "containerStatuses": every[-1:]}


def _ended(job: Mapping[str, Any]) -> bool:
    return any(
        each["type"] in ("Complete", "Failed") and each["status"] == "True"
        for each in (job.get("status") or {}).get("conditions") or ()
    )


def _refuse_immutable(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    path = _IMMUTABLE.get(wanted["kind"], ())
    old: Any = known
    new: Any = wanted
    for step in path:
        old, new = old[step], new[step]
    assert not path or old == new, f"{wanted['kind']} {'.'.join(path)} is immutable"


def _take(known: Json, wanted: Mapping[str, Any], parts: Iterable[str]) -> set[str]:
    """Have `known` hold those parts of what is wanted; returns the parts that this changes."""
    changed = {part: copied(wanted[part]) for part in parts if known.get(part) != wanted[part]}
    known |= changed
    return set(changed)
