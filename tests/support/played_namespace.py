"""A namespace of a real API server that has no controllers and no nodes: a test plays them, step by step.

Job and Deployment controllers, garbage collector, kubelets and sidecars; at a time that the test sets.
"""

import abc
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from enginewright.controller.cache import ObjectCache
from enginewright.controller.observe import DEPLOYMENT, JOB, POD, Kind, Viewed
from enginewright.kube.api import JsonObject
from enginewright.kube.client import KubeClient
from enginewright.kube.resources import (
    DEPLOYMENTS,
    INFERENCE_MODELS,
    JOBS,
    PODS,
    Resource,
    resource_of,
)
from enginewright.manifests.labels import MODEL, REVISION
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import JOB_NAME, PodView
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Published, StageReport
from enginewright_contract.task import PREPARE_STAGES

from tests.support.fake_kube import timestamp
from tests.support.operator_passes import Sidecars
from tests.support.plan_objects import Json, make_object
from tests.support.simulation import (
    has_node,
    measurements,
    report_crash,
    report_end,
    runs,
    statuses,
)

_MERGE: Final = "application/merge-patch+json"


class PlayingClient(KubeClient):
    """What others than the operator write besides."""

    async def make_namespace(self, name: str) -> None:
        """Make a namespace in which there may be pods."""
        metadata = {"name": name}
        await self._request("POST", "/api/v1/namespaces", body={"metadata": metadata})
        path = f"/api/v1/namespaces/{name}/serviceaccounts"
        await self._request("POST", path, body={"metadata": {"name": "default"}})

    async def set_status(
        self, resource: Resource, namespace: str, name: str, status: Json
    ) -> JsonObject:
        path = resource.path(namespace, name, "status")
        return await self._request("PATCH", path, body={"status": status}, content_type=_MERGE)

    async def empty(self, namespace: str) -> None:
        """Delete what operators of other tests would work on or poll."""
        for resource in (INFERENCE_MODELS, PODS):
            await self._request("DELETE", resource.path(namespace))


class PlayedNamespace(abc.ABC):
    """Everything in it but the operator."""

    def __init__(self, client: PlayingClient, name: str) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.client = client
        self.name = name
        self.seen = ObjectCache()  # all that the API server has
        self.sidecars = Sidecars()
        self._pods_made = 0

    @abc.abstractmethod
    def on_write(self, resource: Resource, obj: JsonObject, deleted: bool) -> None:
        """Take note of a write of others than the operator."""

    @abc.abstractmethod
    def publish_model(self, job: Json) -> Published:
        """Return what a prepare Job makes."""

    @abc.abstractmethod
    def crashes(self, pod: PodView, deployment: DeploymentView) -> bool:
        """Return whether a pod crashes instead of becoming ready."""

    async def step(self) -> None:
        """Have everybody take one step."""
        for job in self.views(JOB):
            if not job.ended:
                await self._run(job.name)
        await self._collect()
        for deployment in self.views(DEPLOYMENT):
            await self._roll(deployment)

    def measures(self, pod: PodView, ratio: float = 1.0) -> None:
        """Have a pod's sidecar have measured enough; `ratio`: how much slower than others it is."""
        model, revision = pod.label(MODEL), pod.label(REVISION)
        self.sidecars.measured[pod.name] = measurements(
            self.now.timestamp(), ratio, model=model, revision=revision
        )

    # controllers and kubelets

    async def _run(self, name: str) -> None:
        """Have a prepare Job run and succeed."""
        job = self.get(JOBS, name)
        report = StageReport(stage=PREPARE_STAGES[-1], ok=True, published=self.publish_model(job))
        last = report_end(report.stage, message=report.termination_message())
        ended = statuses(PREPARE_STAGES, report.stage, last)
        await self._pod(f"{name}-0", job, {JOB_NAME: name})
        await self._set_status(PODS, f"{name}-0", {"phase": "Succeeded", **ended})
        at = timestamp(self.now)
        conditions = [
            {"type": item, "status": "True", "reason": "Test", "lastTransitionTime": at}
            for item in ("SuccessCriteriaMet", "Complete")
        ]
        # the API server requires the first condition before the second
        await self._set_status(JOBS, name, {"startTime": at, "conditions": conditions[:1]})
        done = {"conditions": conditions, "completionTime": at, "succeeded": 1}
        await self._set_status(JOBS, name, done)

    async def _collect(self) -> None:
        """Delete the pods of deleted owners."""
        owners = {
            observed_object.uid for observed_object in (*self.views(JOB), *self.views(DEPLOYMENT))
        }
        for pod in self.views(POD):
            if not owners & set(pod.owners.values()):
                await self._delete(pod)

    async def _roll(self, deployment: DeploymentView) -> None:
        """Have a Deployment take one step of a rolling update, with one pod more than desired."""
        before = self._pods_of(deployment)
        ours = [view for view in before if view.label(REVISION) == deployment.revision]
        for view in ours:
            if not view.ready:
                await self._start(view, deployment)
        pods = self._pods_of(deployment)
        spare = sum(pod.ready for pod in pods) - deployment.desired
        others = [pod for pod in pods if pod.label(REVISION) != deployment.revision]
        for view in sorted(others, key=lambda pod_view: pod_view.ready):
            if not view.ready or spare > 0:
                spare -= view.ready
                await self._delete(view)
        room = deployment.desired + 1 - len(self._pods_of(deployment))
        for _ in range(min(deployment.desired - len(ours), room)):
            self._pods_made += 1
            owner = self.get(DEPLOYMENTS, deployment.name)
            await self._pod(f"{deployment.name}-{self._pods_made}", owner)
        await self._count(deployment)

    async def _start(self, pod: PodView, deployment: DeploymentView) -> None:
        """Have a pod become ready, or crash."""
        at = timestamp(self.now)
        if self.crashes(pod, deployment):
            status = report_crash("server", Reason.BACKEND_CRASHED, at)
        else:
            self.measures(pod)
            number = pod.name.rpartition("-")[2]
            status = {"phase": "Running", "podIP": f"10.1.0.{number}", **runs(at, ready=True)}
        await self._set_status(PODS, pod.name, status)

    async def _count(self, deployment: DeploymentView) -> None:
        """Have a Deployment's status be that of its pods."""
        pods = self._pods_of(deployment)
        ready = sum(pod.ready for pod in pods)
        live = self.get(DEPLOYMENTS, deployment.name)
        status = {
            "observedGeneration": live["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": sum(pod.label(REVISION) == deployment.revision for pod in pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        if status.items() - (live.get("status") or {}).items():
            await self._set_status(DEPLOYMENTS, deployment.name, status)

    async def _pod(self, name: str, owner: Json, labels: Mapping[str, str] | None = None) -> None:
        """Create a pod, which no kubelet runs or ends."""
        every = {**owner["spec"]["template"]["metadata"]["labels"], **(labels or {})}
        spec = {
            "containers": [{"name": "server", "image": "example.com/server"}],
            "nodeName": "node-1",
            "terminationGracePeriodSeconds": 0,
        }
        await self.create(make_object("Pod", name, self.name, owner, every, spec=spec))
        # as the kubelet does, at this test's time, which is not that of the API server
        conditions = [has_node(timestamp(self.now))]
        await self._set_status(PODS, name, {"phase": "Pending", "conditions": conditions})

    # writes

    async def create(self, obj: Json) -> None:
        self._note(await self.client.create(obj))

    async def edit(self, resource: Resource, name: str, changes: Json) -> None:
        """Merge `changes` into an object, as a user."""
        self._note(await self.client.patch(resource, self.name, name, changes, manager="kubectl"))

    async def _set_status(self, resource: Resource, name: str, status: Json) -> None:
        self._note(await self.client.set_status(resource, self.name, name, status))

    async def _delete(self, pod: PodView) -> None:
        await self.client.delete(PODS, self.name, pod.name, uid=pod.uid)
        self.sidecars.measured.pop(pod.name, None)
        self._note(self.get(PODS, pod.name), deleted=True)

    def _note(self, obj: JsonObject, *, deleted: bool = False) -> None:
        resource = resource_of(obj["apiVersion"], obj["kind"])
        self.seen.observe(resource, obj, deleted=deleted)
        self.on_write(resource, obj, deleted)

    # what there is

    def views(self, kind: Kind[Viewed]) -> tuple[Viewed, ...]:
        return self.seen.views(kind, self.seen.all(kind.resource))

    def get(self, resource: Resource, name: str) -> JsonObject:
        obj = self.seen.get(resource, self.name, name)
        assert obj, f"no {resource.kind} {name}"
        return obj

    def _pods_of(self, deployment: DeploymentView) -> list[PodView]:
        return [view for view in self.views(POD) if deployment.uid in view.owners.values()]
