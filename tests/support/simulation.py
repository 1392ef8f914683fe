"""A cluster in memory: what API server, Job and Deployment controllers, kubelet and scheduler do to what a plan makes.

Only for unit tests of decisions; the same behaviour is tested on real kubelets in tests/e2e. What the API server would refuse
(a changed selector, Job, ControllerRevision or claim) fails here too.
"""

import abc
import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from enginewright.contract.reasons import SELDOM_PASSES, ExitCode, Reason, exit_code
from enginewright.contract.report import Finding, Progress, StageReport
from enginewright.contract.verdict import Verdict
from enginewright.manifests.labels import COMPONENT, SERVE
from enginewright.observed.deployments import deployment_view
from enginewright.observed.pods import JOB_NAME
from enginewright.plan.types import ObjectRef

from tests.support.copies import copied
from tests.support.plan_objects import NAMESPACE, Json, verdict

TIMEOUT: Final = 20  # passes in which a plan must come to rest
# the scheduler's, where all devices of a class are taken
NO_DEVICE: Final = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector."
PERMANENT: Final = [each for each in Reason if exit_code(each) is ExitCode.PERMANENT]
PASSING: Final = [
    each
    for each in Reason
    if exit_code(each) is not ExitCode.PERMANENT and each not in SELDOM_PASSES
]

_FAILING_STAGE: Final = {"prepare": "validate", "engine": "build", "engine-lookup": "lookup"}
_IMMUTABLE: Final = {
    "ControllerRevision": ("data",),
    "PersistentVolumeClaim": ("spec",),
    "Deployment": ("spec", "selector"),
}


class UnavailableError(Exception):
    """The API server has refused a write of the operator."""


class Simulation(abc.ABC):
    """Objects by kind and name, and time.

    Methods that play a Job's part take `of`: its component, or its name.
    """

    jobs_meant = ""  # component of the Jobs that are meant where a test names none; empty: any

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 12, tzinfo=UTC)
        self.objects: dict[tuple[str, str], Json] = {}
        self.made: list[str] = []  # Jobs, in the order in which they were made
        self.writes = 0  # of the operator
        # writes, after which the API server refuses one, as it may at any time; None: it does not
        self.refused_after: int | None = None
        # what the operator has polled, and forgets when it restarts
        self.verdicts: dict[str, Verdict] = {}  # by pod
        self.progress: dict[str, Progress] = {}  # by Job
        self._numbers = itertools.count(1)

    # what the operator does

    @abc.abstractmethod
    def pass_once(self) -> bool:
        """Plan and carry it out; returns whether anything changed."""

    def settle(self) -> Self:
        """Pass until nothing changes any more."""
        for _ in range(TIMEOUT):
            try:
                if not self.pass_once():
                    return self
            except UnavailableError:
                self.refused_after = None  # it is well again
        raise AssertionError(f"no rest after {TIMEOUT} passes")

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

    def running_jobs(self) -> list[Json]:
        """Return the Jobs that have not ended."""
        return [job for job in self.all("Job") if not _ended(job)]

    def job(self, of: str = "") -> Json:
        """Return the Job that has not ended."""
        wanted = of or self.jobs_meant
        (found,) = [
            job
            for job in self.running_jobs()
            if wanted in ("", job["metadata"]["name"], job["metadata"]["labels"][COMPONENT])
        ]
        return found

    def stages(self, of: str = "") -> tuple[str, ...]:
        """Return the stages of the Job that runs."""
        spec = self.job(of)["spec"]["template"]["spec"]
        return tuple(each["name"] for each in (*spec["initContainers"], *spec["containers"]))

    def task(self, of: str = "") -> str:
        """Return the task of the Job that runs, as JSON."""
        (container,) = self.job(of)["spec"]["template"]["spec"]["containers"]
        (variable,) = container["env"]
        return str(variable["value"])

    def serving_deployments(self) -> list[Json]:
        return [each for each in self.all("Deployment") if not deployment_view(each).is_trial]

    def trials(self) -> list[Json]:
        return [each for each in self.all("Deployment") if deployment_view(each).is_trial]

    def replicas(self) -> dict[str, int]:
        """Return how many pods each Deployment is to have."""
        return {
            each["metadata"]["name"]: each["spec"]["replicas"] for each in self.all("Deployment")
        }

    # what Jobs and their pods do

    def job_pod(self, *, of: str = "", placed: bool = True, **status: Any) -> Json:
        """Have a pod of the running Job observed: the one that runs, else a new one."""
        job = self.job(of)
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

    def job_pod_becomes(self, *, of: str = "", placed: bool = True, **status: Any) -> Self:
        self.job_pod(of=of, placed=placed, **status)
        return self.settle()

    def unschedulable(self, message: str, of: str = "") -> Self:
        return self.job_pod_becomes(of=of, placed=False, conditions=[unschedulable(message)])

    def stage_runs(self, stage: str, of: str = "") -> Self:
        return self.job_pod_becomes(of=of, **statuses(self.stages(of), stage))

    def job_reports(self, report: StageReport, of: str = "") -> Self:
        """End the running Job well, with what its last stage reports."""
        last = terminated(report.stage, message=report.termination_message())
        self.job_pod(of=of, phase="Succeeded", **statuses(self.stages(of), report.stage, last))
        return self.job_ends("Complete", of)

    def pod_fails(self, reason: Reason, stage: str = "", message: str = "", of: str = "") -> Self:
        """Have a pod of the running Job fail; whether the Job goes on is Kubernetes' to say."""
        stage = stage or self._failing_stage(of)
        failure = Finding(reason=reason, cause=message or f"{stage}!", remedy="")
        report = StageReport(stage=stage, ok=False, failure=failure)
        last = terminated(stage, code=int(exit_code(reason)), message=report.termination_message())
        return self.job_pod_becomes(of=of, phase="Failed", **statuses(self.stages(of), stage, last))

    def job_fails(self, reason: Reason, stage: str = "", message: str = "", of: str = "") -> Self:
        """End the running Job for a reason that a stage reports."""
        name = self.job(of)["metadata"]["name"]
        self.pod_fails(reason, stage, message, name)
        if ("Job", name) in self.objects:
            self.job_ends("Failed", name, reason="PodFailurePolicy")
        return self

    def is_too_late(self, stage: str = "", of: str = "") -> Self:
        """Have the kubelet end the Job's pod for its time."""
        stage = stage or self._failing_stage(of)
        last = terminated(stage, code=137)
        ended = statuses(self.stages(of), stage, last)
        return self.job_pod_becomes(of=of, phase="Failed", reason="DeadlineExceeded", **ended)

    def _failing_stage(self, of: str) -> str:
        return _FAILING_STAGE[self.job(of)["metadata"]["labels"][COMPONENT]]

    def job_ends(self, kind: str, of: str = "", **condition: str) -> Self:
        job = self.objects.get(("Job", of)) or self.job(of)
        job["status"] = {
            "conditions": [{"type": kind, "status": "True", **condition}],
            **({"completionTime": timestamp(self.now)} if kind == "Complete" else {}),
        }
        return self.settle()

    def job_is_deleted(self, of: str = "") -> Self:
        self.remove("Job", self.job(of)["metadata"]["name"])
        return self.settle()

    def jobs_are_cleaned_away(self) -> Self:
        """Have the time to live of all ended Jobs run out."""
        for job in filter(_ended, self.all("Job")):
            self.remove("Job", job["metadata"]["name"])
        return self.settle()

    # what Deployments and their pods do

    def observed(self, **status: Any) -> Self:
        """Have the Deployment controller see every Deployment, with that status."""
        for deployment in self.serving_deployments():
            _set_status(deployment, **{"replicas": deployment["spec"]["replicas"], **status})
        return self.settle()

    def partly_available(self, name: str, available: int) -> Self:
        """Have a Deployment's pods be all of its latest template, some of them available."""
        self.count_pods(self.objects[("Deployment", name)], available)
        return self.settle()

    @staticmethod
    def count_pods(deployment: Json, available: int, **status: Any) -> None:
        wanted = deployment["spec"]["replicas"]
        _set_status(
            deployment,
            replicas=wanted,
            updatedReplicas=wanted,
            readyReplicas=available,
            availableReplicas=available,
            **status,
        )

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
        conditions = [
            {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
        ]
        self.count_pods(deployment, wanted, conditions=conditions)

    def rolling(self, available: int, *, stuck: bool = False) -> Self:
        """Have every Deployment be in the middle: `available` old pods, one new, not ready."""
        for deployment in self.serving_deployments():
            self.serving_pod(deployment["metadata"]["name"], index=90, ready=False)
            progress = ("False", "ProgressDeadlineExceeded") if stuck else ("True", "Progressing")
            _set_status(
                deployment,
                replicas=available + 1,
                updatedReplicas=1,
                readyReplicas=available,
                availableReplicas=available,
                unavailableReplicas=1,
                conditions=[{"type": "Progressing", "status": progress[0], "reason": progress[1]}],
            )
        return self.settle()

    def new_pod_fails(self, reason: Reason, container: str = "server", message: str = "") -> Self:
        """Have a pod of the wanted revision crash, again and again, on each class."""
        for deployment in self.serving_deployments():
            self.crash(deployment["metadata"]["name"], reason, container, message)
        return self.settle()

    def crash(
        self,
        deployment: str,
        reason: Reason,
        container: str = "server",
        message: str = "",
        *,
        index: int = 90,
        node: str = "node-1",
        restarts: int = 2,
    ) -> None:
        """Have a container of a pod crash on a node, for which it was restarted that many times before."""
        failure = Finding(reason=reason, cause=message or f"{container}!", remedy="")
        report = StageReport(stage=container, ok=False, failure=failure)
        ended = {
            "exitCode": int(exit_code(reason)),
            "message": report.termination_message(),
            "finishedAt": timestamp(self.now),
        }
        state = {
            "name": container,
            "ready": False,
            "restartCount": restarts,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": ended},
        }
        kind = "containerStatuses" if container == "server" else "initContainerStatuses"
        pod = self.serving_pod(deployment, index=index, status={kind: [state]})
        pod["spec"] = {"nodeName": node}

    def serving_pod(
        self, deployment: str, *, index: int = 0, ready: bool = False, status: Json | None = None
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

    def sidecars_say(self, said: Verdict) -> Self:
        """Have the sidecars of all serving pods say the same."""
        for pod in self.all("Pod"):
            if pod["metadata"]["labels"].get(COMPONENT) == SERVE:
                self.verdicts[pod["metadata"]["name"]] = said
        return self.settle()

    # what the API server does for the operator

    def apply(self, wanted: Mapping[str, Any]) -> None:
        """Apply an object as the executor does: what is as it is wanted is not written."""
        metadata = wanted["metadata"]
        assert metadata.get("namespace") == NAMESPACE, wanted
        known = self.objects.get((wanted["kind"], metadata["name"]))
        if known is None:
            self._write()
            made = copied(dict(wanted))
            made["metadata"] |= self._identity()
            self.objects[(wanted["kind"], metadata["name"])] = made
            self.made += [metadata["name"]] if wanted["kind"] == "Job" else []
            return
        if wanted["kind"] == "Job":  # the executor leaves a Job that is there alone
            return
        _refuse_immutable(known, wanted)
        changed = _changes(known, wanted, wanted.keys() - {"metadata"})
        owned = {"labels", "annotations", "ownerReferences"} & metadata.keys()
        relabelled = _changes(known["metadata"], metadata, owned)
        if changed or relabelled:
            self._write()
            known["metadata"]["generation"] += "spec" in changed
            known |= changed
            known["metadata"] |= relabelled

    def delete(self, ref: ObjectRef) -> None:
        """Delete an object as the executor does."""
        assert ref.namespace == NAMESPACE, ref
        if (ref.kind, ref.name) in self.objects:
            self._write()
            self.remove(ref.kind, ref.name)

    def write_status(self, obj: Json, status: Json) -> None:
        if status != obj.get("status", {}):
            self._write()
            obj["status"] = status

    def _write(self) -> None:
        if self.refused_after is not None:
            if self.refused_after == 0:
                raise UnavailableError
            self.refused_after -= 1
        self.writes += 1

    # what its controllers do

    def remove(self, kind: str, name: str) -> None:
        """Delete an object with all that it owns; of a Job or Deployment its pods too."""
        gone = self.objects.pop((kind, name))
        if label := {"Job": JOB_NAME, "Deployment": "deployment"}.get(kind):
            self.remove_pods(label, name)
        for child, obj in list(self.objects.items()):
            owners = obj["metadata"].get("ownerReferences") or ()
            if any(each["uid"] == gone["metadata"]["uid"] for each in owners):
                self.remove(*child)

    def remove_pods(self, label: str, value: str) -> None:
        for pod in self.all("Pod"):
            if pod["metadata"]["labels"].get(label) == value:
                name = pod["metadata"]["name"]
                del self.objects[("Pod", name)]
                self.verdicts.pop(name, None)

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


def unschedulable(message: str) -> Json:
    """Return the scheduler's condition of a pod that no node takes."""
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }


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


def _set_status(deployment: Json, **status: Any) -> None:
    deployment["status"] = {"observedGeneration": deployment["metadata"]["generation"], **status}


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


def _changes(known: Json, wanted: Mapping[str, Any], parts: Iterable[str]) -> Json:
    """Return copies of those parts of what is wanted that `known` does not hold."""
    return {part: copied(wanted[part]) for part in parts if known.get(part) != wanted[part]}
