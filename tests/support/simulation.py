"""A cluster in memory: how Job and Deployment controllers, kubelet and scheduler act on the operator's objects.

Only for unit tests; the same behaviour is tested on real kubelets in tests/e2e.
"""

import abc
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Self

from enginewright.kube.errors import Transient
from enginewright.manifests.labels import CANARY, CLASS, COMPONENT, REVISION, SERVE, TRACK
from enginewright.observed.deployments import deployment_view
from enginewright.observed.pods import JOB_NAME, pod_view
from enginewright_contract.measurements import LatencySeries, Measurements
from enginewright_contract.reasons import ExitCode, Reason, Repeats, exit_code
from enginewright_contract.report import Finding, Progress, Published, PublishedEngine, StageReport
from enginewright_contract.verdict import Verdict

from tests.support.fake_kube import START, FakeKube, Key, timestamp
from tests.support.plan_objects import (
    KINDS,
    NAMESPACE,
    Json,
    make_object,
    publish_engine,
    publish_model,
    verdict,
)

TIMEOUT: Final = 20  # passes in which a plan must come to rest
# the scheduler's, where all devices of a class are taken
NO_DEVICE: Final = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector."
# progressDeadlineSeconds of Deployments, unless a test sets it
PROGRESS_DEADLINE: Final = timedelta(minutes=10)
PERMANENT: Final = [item for item in Reason if exit_code(item) is ExitCode.PERMANENT]
RARELY_PASSING: Final = [item for item in Reason if item.facets.repeats is Repeats.MOSTLY]
LACKING_ROOM: Final = [item for item in Reason if item.facets.repeats is Repeats.UNTIL_ROOM]
PASSING: Final = [item for item in Reason if item.facets.repeats is Repeats.NO]

_FAILING_STAGE: Final = {"prepare": "validate", "engine": "build", "engine-lookup": "lookup"}


class Simulation(abc.ABC):
    """An API server, what happens in one of its namespaces, and time.

    Methods that play a Job's part take `of`: its component, or its name.
    """

    jobs_meant = ""  # component of the Jobs that are meant where a test names none; empty: any

    def __init__(self, namespace: str = NAMESPACE) -> None:
        self.now = START
        self.namespace = namespace
        self.kube = FakeKube(self.clock)
        # polled by the operator, and lost when it restarts
        self.verdicts: dict[str, Verdict] = {}  # by pod
        self.progress: dict[str, Progress] = {}  # by Job
        self.measurements: dict[str, Measurements | None] = {}  # by pod
        self.proxy = ""  # container that a mesh adds to Jobs' pods and that never ends; empty: none

    def clock(self) -> datetime:
        """Return the present; a copy of the simulation has its own, as it would not with a lambda."""
        return self.now

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
            except Transient:
                continue
        raise AssertionError(f"no rest after {TIMEOUT} passes")

    def later(self, **duration: float) -> Self:
        self.now += timedelta(**duration)
        self._time_out()
        self._end_superseded()
        return self.settle()

    # what there is

    def all(self, kind: str) -> list[Json]:
        return self.kube.all(kind)

    def the(self, kind: str) -> Json:
        """Return the one object of a kind."""
        (only,) = self.all(kind)
        return only

    def find(self, kind: str, name: str) -> Json | None:
        return self.kube.objects.get(self._key(kind, name))

    def get(self, kind: str, name: str) -> Json:
        """Return an object, as it is kept."""
        obj = self.find(kind, name)
        assert obj, f"no {kind} {name}"
        return obj

    def running_jobs(self) -> list[Json]:
        """Return the Jobs that have not ended."""
        return [job for job in self.all("Job") if not _has_ended(job)]

    def job(self, of: str = "") -> Json:
        """Return the Job that has not ended."""
        name = of or self.jobs_meant
        (running,) = [
            job
            for job in self.running_jobs()
            if name in ("", job["metadata"]["name"], job["metadata"]["labels"][COMPONENT])
        ]
        return running

    def stages(self, of: str = "") -> tuple[str, ...]:
        """Return the stages of the Job that runs."""
        spec = self.job(of)["spec"]["template"]["spec"]
        return tuple(item["name"] for item in (*spec["initContainers"], *spec["containers"]))

    def task(self, of: str = "") -> str:
        """Return the task of the Job that runs, as JSON."""
        (container,) = self.job(of)["spec"]["template"]["spec"]["containers"]
        (variable,) = container["env"]
        return str(variable["value"])

    def pods_of(self, label: str, owner: str) -> list[Json]:
        return [pod for pod in self.all("Pod") if pod["metadata"]["labels"].get(label) == owner]

    def serving_deployments(self) -> list[Json]:
        return [entry for entry in self.all("Deployment") if deployment_view(entry).is_serving]

    def canaries(self) -> list[Json]:
        return [entry for entry in self.all("Deployment") if deployment_view(entry).is_canary]

    def trials(self) -> list[Json]:
        return [entry for entry in self.all("Deployment") if deployment_view(entry).is_trial]

    def replicas(self) -> dict[str, int]:
        """Return how many pods each Deployment is to have."""
        return {
            entry["metadata"]["name"]: entry["spec"]["replicas"] for entry in self.all("Deployment")
        }

    # what Jobs and their pods do

    def job_pod(self, *, of: str = "", placed: bool = True, **status: Any) -> Json:
        """Have a pod of the running Job observed: the one that runs, else a new one."""
        job = self.job(of)
        name = job["metadata"]["name"]
        mine = self.pods_of(JOB_NAME, name)
        if mine and mine[-1]["status"]["phase"] not in ("Succeeded", "Failed"):
            pod = mine[-1]
        else:
            pod = self.add_pod(f"{name}-{len(mine):05}", job, JOB_NAME, {})
        pod["spec"] = {"nodeName": "node-1"} if placed else {}
        if placed:
            since = pod_view(pod).scheduled_at or timestamp(self.now)
            status = {"conditions": [has_node(since)], **status}
        status = {"phase": "Pending", **status}
        return self.set_status(pod, beside_proxy(status, self.proxy) if self.proxy else status)

    def job_pod_becomes(self, *, of: str = "", placed: bool = True, **status: Any) -> Self:
        self.job_pod(of=of, placed=placed, **status)
        return self.settle()

    def unschedulable(self, message: str, of: str = "") -> Self:
        return self.job_pod_becomes(of=of, placed=False, conditions=[unschedulable(message)])

    def stage_runs(self, stage: str, of: str = "") -> Self:
        return self.job_pod_becomes(of=of, **statuses(self.stages(of), stage))

    def job_reports(self, report: StageReport, of: str = "") -> Self:
        """Have a stage of the running Job be its last one and report, which completes the Job unless a proxy runs on."""
        last = report_end(report.stage, message=report.termination_message())
        ended = statuses(self.stages(of), report.stage, last)
        pod = self.job_pod(of=of, phase="Succeeded", **ended)
        return self.job_ends("Complete", of) if pod_view(pod).finished else self.settle()

    def job_succeeds(self, result: Published | None = None, of: str = "") -> Self:
        """End the running prepare Job well."""
        report = StageReport(stage="publish", ok=True, published=result or publish_model())
        return self.job_reports(report, of)

    def job_publishes(self, engine: PublishedEngine | None, of: str = "") -> Self:
        """End the running Job of an engine well; its last stage reports an engine, or none."""
        return self.job_reports(StageReport(stage=self.stages(of)[-1], ok=True, engine=engine), of)

    def succeeds(self, of: str = "", **changes: Any) -> Self:
        """Have the running Job of an engine find or build it."""
        (owner,) = self.job(of)["metadata"]["ownerReferences"]
        key = self.get("InferenceEngine", owner["name"])["spec"]["key"]
        return self.job_publishes(publish_engine(key, **changes), of)

    def misses(self, of: str = "engine-lookup") -> Self:
        """Have the look into the store find nothing."""
        return self.job_publishes(None, of)

    def pod_fails(self, reason: Reason, stage: str = "", message: str = "", of: str = "") -> Self:
        """Let a pod of the running Job fail; Kubernetes' rules decide whether the Job continues."""
        stage = stage or self._failing_stage(of)
        failure = Finding(reason=reason, cause=message or f"{stage}!", remedy="")
        report = StageReport(stage=stage, ok=False, failure=failure)
        last = report_end(stage, code=int(exit_code(reason)), message=report.termination_message())
        return self.job_pod_becomes(of=of, phase="Failed", **statuses(self.stages(of), stage, last))

    def job_fails(self, reason: Reason, stage: str = "", message: str = "", of: str = "") -> Self:
        """End the running Job for a reason that a stage reports."""
        name = self.job(of)["metadata"]["name"]
        self.pod_fails(reason, stage, message, name)
        if self.find("Job", name) and any(
            pod_view(pod).finished for pod in self.pods_of(JOB_NAME, name)
        ):
            self.job_ends("Failed", name, reason="PodFailurePolicy")
        return self

    def is_too_late(self, stage: str = "", of: str = "") -> Self:
        """Have the kubelet end the Job's pod for its time."""
        stage = stage or self._failing_stage(of)
        last = report_end(stage, code=137)
        ended = statuses(self.stages(of), stage, last)
        return self.job_pod_becomes(of=of, phase="Failed", reason="DeadlineExceeded", **ended)

    def _failing_stage(self, of: str) -> str:
        return _FAILING_STAGE[self.job(of)["metadata"]["labels"][COMPONENT]]

    def job_ends(self, kind: str, of: str = "", **condition: str) -> Self:
        job = self.find("Job", of) or self.job(of)
        pods = self.pods_of(JOB_NAME, job["metadata"]["name"])
        phases = Counter(pod["status"]["phase"] for pod in pods)
        since = {"lastTransitionTime": timestamp(self.now)}
        ended = {
            "conditions": [{"type": kind, "status": "True", **since, **condition}],
            "succeeded": phases["Succeeded"],
            "failed": phases["Failed"],
            **({"completionTime": timestamp(self.now)} if kind == "Complete" else {}),
        }
        self.set_status(job, ended)
        return self.settle()

    def job_pods_are_refused(self, why: str, of: str = "") -> Self:
        """Have the API server refuse the running Job's pod, of which the Job controller writes an Event alone."""
        job = self.job(of)
        name = job["metadata"]["name"]
        regarding = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        event = make_object(
            "Event",
            f"{name}.{len(self.all('Event'))}",
            self.namespace,
            reason="FailedCreate",
            involvedObject=regarding,
            lastTimestamp=timestamp(self.now),
            message=f'Error creating: pods "{name}-x2x9k" is forbidden: {why}',
        )
        self.kube.put(event)
        return self

    def job_is_deleted(self, of: str = "") -> Self:
        self.remove("Job", self.job(of)["metadata"]["name"])
        return self.settle()

    def jobs_are_cleaned_away(self) -> Self:
        """Have the time to live of all ended Jobs run out."""
        for job in filter(_has_ended, self.all("Job")):
            self.remove("Job", job["metadata"]["name"])
        return self.settle()

    # what Deployments and their pods do

    def observe(self, **status: Any) -> Self:
        """Have the Deployment controller see every Deployment, with that status."""
        for deployment in self.serving_deployments():
            self._set_counts(deployment, **{"replicas": deployment["spec"]["replicas"], **status})
        return self.settle()

    def partly_available(self, name: str, available: int) -> Self:
        """Have a Deployment's pods be all of its latest template, some of them available."""
        self._replace_pods(name, available)
        return self.settle()

    def _replace_pods(self, name: str, available: int, **status: Any) -> None:
        deployment = self.get("Deployment", name)
        replicas = deployment["spec"]["replicas"]
        for pod in self.pods_of("deployment", name):
            self.remove("Pod", pod["metadata"]["name"])
        for index in range(replicas):
            self.serving_pod(name, index=index, ready=index < available)
        self._set_counts(
            deployment,
            replicas=replicas,
            updatedReplicas=replicas,
            readyReplicas=available,
            availableReplicas=available,
            **status,
        )

    def all_available(self) -> Self:
        """Have every Deployment come to its end: all pods new, all available."""
        if self._end_superseded():
            self.settle()
        for deployment in self.serving_deployments():
            self.complete(deployment["metadata"]["name"])
        return self.settle()

    def canary_available(self) -> Self:
        """Have all pods of the canary be ready, as their sidecars' proofs allow."""
        for deployment in self.canaries():
            self.complete(deployment["metadata"]["name"])
        return self.settle()

    def canary_unschedulable(self, message: str = NO_DEVICE) -> Self:
        """Have no node take a pod of the canary."""
        for deployment in self.canaries():
            self._set_counts(deployment, replicas=1, updatedReplicas=1, unavailableReplicas=1)
            self.waiting_pod(deployment["metadata"]["name"], index=0, message=message)
        return self.settle()

    def update_unschedulable(self) -> Self:
        """Have no node take a new pod of any Deployment that serves, beside the pods that it has."""
        for deployment in self.serving_deployments():
            seen = deployment_view(deployment)
            index = 90 + seen.pods
            self._set_counts(
                deployment,
                replicas=seen.pods + 1,
                updatedReplicas=1,
                readyReplicas=seen.ready_pods,
                availableReplicas=seen.available,
                unavailableReplicas=1,
            )
            self.waiting_pod(deployment["metadata"]["name"], index=index)
        return self.settle()

    def pods_are_refused(self, message: str) -> Self:
        """Have the API server refuse all pods of the canary."""
        refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
        since = timestamp(self.now)
        for deployment in self.canaries():
            condition = {**refused, "message": message, "lastTransitionTime": since}
            self._set_counts(deployment, unavailableReplicas=1, conditions=[condition])
        return self.settle()

    def waiting_pod(self, deployment: str, *, index: int = 90, message: str = NO_DEVICE) -> Json:
        """Have no node take a pod of a Deployment; returns the pod, as it is kept."""
        status = {"conditions": [unschedulable(message)]}
        pod = self.serving_pod(deployment, index=index, status=status)
        pod["spec"], pod["status"]["phase"] = {}, "Pending"
        return pod

    def waiting_pods(self) -> list[Json]:
        """Return the pods of Deployments that no node takes."""
        serving = (pod for pod in self.all("Pod") if "deployment" in pod["metadata"]["labels"])
        return [pod for pod in serving if pod_view(pod).unschedulable]

    def nodes_take_pods(self) -> Self:
        """Have the waiting pods of Deployments be bound to a node, as once an autoscaler has added one."""
        for pod in self.waiting_pods():
            pod["spec"] = {"nodeName": "node-1"}
            node = has_node(timestamp(self.now))
            starting = runs(timestamp(self.now), ready=False)
            conditions = [*starting["conditions"], node]
            self.set_status(pod, {"phase": "Running", **starting, "conditions": conditions})
        return self.settle()

    def canary_pods(self) -> list[Json]:
        return [pod for pod in self.all("Pod") if pod["metadata"]["labels"].get(TRACK) == CANARY]

    def complete(self, name: str) -> None:
        conditions = [
            {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
        ]
        replicas = self.get("Deployment", name)["spec"]["replicas"]
        self._replace_pods(name, replicas, conditions=conditions)

    def autoscale(self, **counts: int) -> Self:
        """Have an autoscaler scale the Deployments of these classes, as far as it may."""
        for deployment in self.serving_deployments():
            count = counts.get(deployment["metadata"]["labels"][CLASS])
            if count and self.find("HorizontalPodAutoscaler", deployment["metadata"]["name"]):
                self.set_scale(deployment["metadata"]["name"], count)
        return self.settle()

    def set_scale(self, name: str, count: int) -> None:
        """Have another client set a Deployment's count."""
        deployment = self.get("Deployment", name)
        self.kube.put({**deployment, "spec": {**deployment["spec"], "replicas": count}})

    def rolling(self, available: int, *, stuck: bool = False) -> Self:
        """Have every Deployment be in the middle: `available` old pods, one new, not ready, for too long if `stuck`."""
        since = timestamp(self.now - PROGRESS_DEADLINE if stuck else self.now)
        for deployment in self.serving_deployments():
            pod = self.serving_pod(deployment["metadata"]["name"], index=90, ready=False)
            if stuck:
                starting = runs(since, ready=False)
                starting["conditions"].append(has_node(since))
                self.set_status(pod, {**pod["status"], **starting})
            progress = ("False", "ProgressDeadlineExceeded") if stuck else ("True", "Progressing")
            self._set_counts(
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
        """Let a pod of the desired revision crash repeatedly, on each class."""
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
        status = report_crash(container, reason, timestamp(self.now), message, restarts)
        pod = self.serving_pod(deployment, index=index, status=status)
        pod["spec"] = {"nodeName": node}

    def has_restarted(self, pod: Json, container: str, *, ago: timedelta) -> None:
        """Have a container of a pod that runs have crashed several times, the last time so long ago."""
        ended, began = self.now - ago, self.now - ago - timedelta(minutes=1)
        last = {
            "exitCode": 137,
            "reason": "OOMKilled",
            "startedAt": timestamp(began),
            "finishedAt": timestamp(ended),
        }
        restarted = {
            "name": container,
            "restartCount": 7,
            "state": {"running": {}},
            "lastState": {"terminated": last},
        }
        kept = pod["status"].get("containerStatuses", [])
        others = [item for item in kept if item["name"] != container]
        self.set_status(pod, {**pod["status"], "containerStatuses": [*others, restarted]})

    def serving_pod(
        self, deployment: str, *, index: int = 0, ready: bool = False, status: Json | None = None
    ) -> Json:
        reported = status or runs(timestamp(self.now), ready=ready)
        name, owner = f"{deployment}-{index:05}", self.get("Deployment", deployment)
        conditions = reported.get("conditions", [])
        if not any(condition["type"] == "PodScheduled" for condition in conditions):
            before = self.find("Pod", name)
            since = pod_view(before).scheduled_at if before else ""
            node = has_node(since or timestamp(self.now))
            reported = {**reported, "conditions": [*conditions, node]}
        if ready:
            self.verdicts[name] = verdict()
            self.measures(name)
        elif not self.find("Pod", name):
            self.verdicts.pop(name, None)  # it was that of another pod with this name
        running = {"phase": "Running", "podIP": f"10.1.0.{index + 1}"}
        return self.add_pod(name, owner, "deployment", {**running, **reported})

    def measures(self, pod: str, ratio: float = 1.0, **changes: Any) -> None:
        """Have a pod's sidecar have measured enough; `ratio`: how much slower than others it is."""
        self.measurements[pod] = measurements(self.now.timestamp(), ratio, **changes)

    def sidecars_say(self, said: Verdict) -> Self:
        """Set the same verdict for the sidecars of all serving pods."""
        for pod in self.all("Pod"):
            if pod["metadata"]["labels"].get(COMPONENT) == SERVE:
                self.verdicts[pod["metadata"]["name"]] = said
        return self.settle()

    # what its controllers do

    def _end_superseded(self) -> bool:
        """Have the Deployment controller end unready pods of earlier templates, as far as its strategy allows; return whether any."""
        ended = False
        for deployment in self.serving_deployments():
            name, spec = deployment["metadata"]["name"], deployment["spec"]
            pods = [pod_view(pod) for pod in self.pods_of("deployment", name)]
            if not pods:
                continue
            revision = spec["template"]["metadata"]["labels"][REVISION]
            new = [pod for pod in pods if pod.label(REVISION) == revision]
            surplus = len(pods) - spec["replicas"] - sum(not pod.ready for pod in new)
            ends = len(pods) if spec["strategy"]["type"] == "Recreate" else max(0, surplus)
            for pod in [pod for pod in pods if pod not in new and not pod.ready][:ends]:
                self.remove("Pod", pod.name)
                ended = True
        return ended

    def _time_out(self) -> None:
        """Have the Deployment controller give up on rollouts without progress, whatever their pods wait for."""
        for deployment in self.all("Deployment"):
            status = deployment.get("status") or {}
            progress = [
                item for item in status.get("conditions", ()) if item["type"] == "Progressing"
            ]
            pods = map(pod_view, self.pods_of("deployment", deployment["metadata"]["name"]))
            waits = any(
                not pod.ready
                and datetime.fromisoformat(pod.created) + PROGRESS_DEADLINE <= self.now
                for pod in pods
            )
            if waits and not any(item["reason"] == "NewReplicaSetAvailable" for item in progress):
                others = [item for item in status.get("conditions", ()) if item not in progress]
                gave_up = {"status": "False", "reason": "ProgressDeadlineExceeded"}
                conditions = [*others, {"type": "Progressing", **gave_up}]
                self.set_status(deployment, {**status, "conditions": conditions})

    def set_status(self, obj: Json, status: Json) -> Json:
        """Have a controller or a kubelet write a status; returns the object, as it is kept."""
        obj["status"] = status
        self.kube.count_change(obj)
        return obj

    def _set_counts(self, deployment: Json, **status: Any) -> None:
        seen = {"observedGeneration": deployment["metadata"]["generation"]}
        self.set_status(deployment, {**seen, **status})

    def remove(self, kind: str, name: str) -> None:
        """Delete an object with all that it owns."""
        self.kube.remove(*self._key(kind, name))

    def _key(self, kind: str, name: str) -> Key:
        return kind, self.namespace if KINDS[kind].namespaced else "", name

    def add_pod(self, name: str, owner: Json, label: str, status: Json) -> Json:
        """Have a pod of a Job or a Deployment on a node; returns it as it is kept."""
        labels = owner["spec"]["template"]["metadata"]["labels"]
        pod = make_object(
            "Pod", name, self.namespace, owner, {**labels, label: owner["metadata"]["name"]}
        )
        self.kube.put({**pod, "spec": {"nodeName": "node-1"}, "status": status})
        return self.get("Pod", name)


def runs(at: str, *, ready: bool) -> Json:
    """Return the status of a serving pod whose readiness has changed at a time."""
    return {
        "initContainerStatuses": [{"name": "sidecar", "state": {"running": {}}}],
        "containerStatuses": [{"name": "server", "ready": ready, "state": {"running": {}}}],
        "conditions": [
            {
                "type": "Ready",
                "status": "True" if ready else "False",
                "lastTransitionTime": at,
            }
        ],
    }


def report_crash(
    container: str, reason: Reason, at: str, message: str = "", restarts: int = 2
) -> Json:
    """Return the status of a serving pod of which a container has crashed, as often before."""
    failure = Finding(reason=reason, cause=message or f"{container}!", remedy="")
    report = StageReport(stage=container, ok=False, failure=failure)
    ended = {
        "exitCode": int(exit_code(reason)),
        "message": report.termination_message(),
        "finishedAt": at,
    }
    state = {
        "name": container,
        "ready": False,
        "restartCount": restarts,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
    }
    kind = "containerStatuses" if container == "server" else "initContainerStatuses"
    return {kind: [state]}


def measurements(now: float, ratio: float = 1.0, **changes: Any) -> Measurements:
    """Return what the sidecar of a pod that has run long enough has measured."""
    start = now - 4000
    windows = tuple(
        (start + 10 * index, ratio * (0.0100 + 0.0001 * (index % 7))) for index in range(400)
    )
    series = LatencySeries(source="golden", name="s", count=4000, windows=windows)
    values: Json = {"model": "resnet", "revision": "", "since": start, "latencies": (series,)}
    return Measurements(**{**values, **changes})


def unschedulable(message: str) -> Json:
    """Return the scheduler's condition of a pod that no node takes."""
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }


def has_node(since: str) -> Json:
    """Return the condition of a pod that has its node since then."""
    return {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}


def report_end(stage: str, *, code: int = 0, message: str = "", reason: str = "") -> Json:
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
    every = [report_end(before) for before in stages[:position]]
    every.append(last or {"name": stage, "state": {"running": {}}})
    waiting = {"waiting": {"reason": "PodInitializing"}}
    every += [{"name": after, "state": waiting} for after in stages[position + 1 :]]
    return {"initContainerStatuses": every[:-1], "containerStatuses": every[-1:]}


def beside_proxy(status: Json, proxy: str) -> Json:
    """Return the status of a Job's pod in which a proxy is a container beside the last stage.

    It starts with that, runs on after it, and is killed where the kubelet ends the pod for its time.
    """
    last = status.get("containerStatuses") or []
    began = any("waiting" not in item["state"] for item in last)
    state: Json = {"running": {}} if began else {"waiting": {"reason": "PodInitializing"}}
    phase = status["phase"]
    if status.get("reason") == "DeadlineExceeded" and began:
        state = {"terminated": {"exitCode": 137, "reason": "Error"}}
    elif began and phase in ("Succeeded", "Failed"):
        phase = "Running"
    own = {"name": proxy, "ready": began, "state": state}
    return {**status, "phase": phase, "containerStatuses": [own, *last]}


def _has_ended(job: Mapping[str, Any]) -> bool:
    return any(
        item["type"] in ("Complete", "Failed") and item["status"] == "True"
        for item in (job.get("status") or {}).get("conditions") or ()
    )
