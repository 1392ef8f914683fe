"""A model that is updated in a namespace of a real API server, under a clock of the test.

The operator's part is its own code: listings, plan, execution. Users, Job and Deployment controllers, kubelets and
sidecars are played, one step of each per tick; what they write reaches the operator as from its watches.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from enginewright.contract.reasons import Reason
from enginewright.contract.report import StageReport
from enginewright.contract.task import PREPARE_STAGES
from enginewright.controller.cache import ObjectCache
from enginewright.controller.observe import DEPLOYMENT, JOB, POD, Kind, Viewed
from enginewright.controller.routing import ModelKey
from enginewright.kube.api import JsonObject
from enginewright.kube.client import KubeClient
from enginewright.kube.resources import (
    CLAIMS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    HORIZONTAL_POD_AUTOSCALERS,
    INFERENCE_MODELS,
    JOBS,
    PODS,
    SERVICES,
    Resource,
    resource_of,
)
from enginewright.manifests.labels import CANARY, COMPONENT, REVISION, SERVE, TRACK
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import JOB_NAME, PodView

from tests.support.differences import comparable
from tests.support.fake_kube import timestamp
from tests.support.operator_passes import OperatorPasses, Sidecars
from tests.support.plan_objects import OTHER, SECOND, Json, made, published
from tests.support.simulation import crashed, measurements, runs, statuses, terminated
from tests.support.stopping import Killed, StoppingApi

MODEL: Final = "resnet"
REPLICAS: Final = 2
HOLD: Final = timedelta(minutes=1)
TICK: Final = timedelta(seconds=20)
LONG: Final = timedelta(minutes=5)  # a tick after one in which nothing happened
LIMIT: Final = 60  # ticks in which a rollout must end
FIRST: Final[Json] = {"uri": "https://models.example/resnet.onnx"}
_CONTENT: Final = {FIRST["uri"]: published(), OTHER["uri"]: SECOND}
_KEPT: Final = (
    CLAIMS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    HORIZONTAL_POD_AUTOSCALERS,
    INFERENCE_MODELS,
    JOBS,
    SERVICES,
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


@dataclass(frozen=True)
class Update:
    """What becomes of the pods of the second revision."""

    slow: bool = False  # under requests
    crashes: bool = False  # those that replace others


@dataclass(frozen=True)
class Ended:
    """How it ended."""

    log: list[str]  # the operator's writes during the update
    ready: str  # reason of the condition
    carried: list[str]  # revisions of the serving Deployment, in time: old | new
    end: Json  # what the API server has


class LiveRollout:
    """A model that serves, and is updated; the operator may be killed, and is started again a tick later."""

    def __init__(self, client: PlayingClient, namespace: str, update: Update) -> None:
        self._now = datetime.now(UTC).replace(microsecond=0)
        self._stopping = StoppingApi(client, watched=self._written)
        self._client = client
        self._namespace = namespace
        self._update = update
        self._key = ModelKey(namespace, MODEL)
        self._seen = ObjectCache()  # all that the API server has
        self._sidecars = Sidecars()
        self._process: OperatorPasses | None = None
        self._pods_made = 0
        self._serves = False  # all wanted pods, from now on
        self._again = False  # a new process is killed at its second write
        self._carried: list[str] = []  # old | new: revisions of the serving Deployment, in time
        self._first_ready: datetime | None = None  # of the second revision's canary

    async def run(
        self, stop: int | None = None, *, applied: bool = True, again: bool = False
    ) -> Ended:
        """Run it to its end, and remove what other tests would find.

        Args:
            stop: number of the operator's write at which it is killed, from 0; None: at none.
            applied: that write is stored, but its response is not seen.
            again: each further process is killed at its second write.
        """
        await self._client.make_namespace(self._namespace)
        try:
            await self._bring_up()
            self._stopping.left, self._stopping.applied = stop, applied
            self._again = again
            await self._patch({"spec": {"source": OTHER}})
            await self._until_nothing_happens()
            return await self._end()
        finally:
            await self._client.empty(self._namespace)

    async def _until_nothing_happens(self) -> None:
        idle = 0
        for _ in range(LIMIT):
            before = len(self._stopping.log)
            await self._tick(LONG if idle else TICK)
            still = len(self._stopping.log) == before and self._process is not None
            idle = idle + 1 if still else 0
            if idle > 1:
                return
        raise AssertionError(f"no end after {LIMIT} ticks: {self.status}")

    async def _bring_up(self) -> None:
        """Have the first revision serve."""
        rollout = {"canary": {"replicas": 1, "hold": f"{HOLD.seconds}s"}}
        spec = {"source": FIRST, "replicas": REPLICAS, "rollout": rollout}
        await self._create(made("InferenceModel", MODEL, self._namespace, spec=spec))
        await self._start()
        for _ in range(LIMIT):
            if self._condition("Ready") == "True":
                self._serves = True
                self._stopping.log.clear()
                return
            await self._tick()
        raise AssertionError(f"it does not serve: {self.status}")

    async def _end(self) -> Ended:
        found = {}
        for resource in _KEPT:
            for each in (await self._client.list(resource, self._namespace)).items:
                found[f"{resource.kind} {each['metadata']['name']}"] = comparable(each)
        text = json.dumps(found).replace(self._namespace, "NAMESPACE")
        conditions = {each["type"]: each["reason"] for each in self.status["conditions"]}
        log, carried = self._stopping.log, self._carried
        return Ended(log, conditions["Ready"], carried, json.loads(text))

    @property
    def status(self) -> Json:
        model = self._seen.get(INFERENCE_MODELS, *self._key)
        assert model
        status: Json = model.get("status") or {}
        return status

    # the operator

    async def _start(self) -> None:
        self._process = OperatorPasses(self._stopping, self._key, self._sidecars, lambda: self._now)
        await self._process.start()

    async def _operate(self) -> None:
        try:
            if self._process is not None:
                await self._process.poll()
            else:
                await self._start()
        except Killed:
            self._process = None
            if self._again:
                self._stopping.left = 1

    def _written(self, resource: Resource, obj: JsonObject, deleted: bool) -> None:
        self._seen.observe(resource, obj, deleted=deleted)
        self._check()

    # everybody else

    async def _tick(self, duration: timedelta = TICK) -> None:
        for job in self._views(JOB):
            if not job.ended:
                await self._run(job.name)
        await self._collect()
        for deployment in self._views(DEPLOYMENT):
            await self._step(deployment)
        self._now += duration
        await self._operate()

    async def _run(self, name: str) -> None:
        """Have a prepare Job run and succeed."""
        job = self._get(JOBS, name)
        uri = next(each for each in _CONTENT if each in str(job["spec"]))
        report = StageReport(stage=PREPARE_STAGES[-1], ok=True, published=_CONTENT[uri])
        last = terminated(report.stage, message=report.termination_message())
        ended = statuses(PREPARE_STAGES, report.stage, last)
        await self._pod(f"{name}-0", job, {JOB_NAME: name})
        await self._set_status(PODS, f"{name}-0", {"phase": "Succeeded", **ended})
        at = timestamp(self._now)
        conditions = [
            {"type": each, "status": "True", "reason": "Test", "lastTransitionTime": at}
            for each in ("SuccessCriteriaMet", "Complete")
        ]
        # the API server requires the first condition before the second
        await self._set_status(JOBS, name, {"startTime": at, "conditions": conditions[:1]})
        done = {"conditions": conditions, "completionTime": at, "succeeded": 1}
        await self._set_status(JOBS, name, done)

    async def _collect(self) -> None:
        """Delete the pods of deleted owners, as the garbage collector does."""
        owners = {each.uid for each in (*self._views(JOB), *self._views(DEPLOYMENT))}
        for pod in self._views(POD):
            if not owners & set(pod.owners.values()):
                await self._delete_pod(pod)

    async def _step(self, deployment: DeploymentView) -> None:
        """Have a Deployment's controller and its pods take one step of a rolling update."""
        pods = self._pods_of(deployment)
        ours = [each for each in pods if each.label(REVISION) == deployment.revision]
        for each in ours:
            if not each.ready:
                await self._becomes_ready(each, deployment)
            elif self._update.slow and deployment.is_canary and each.label(COMPONENT) == SERVE:
                self._measures(each, ratio=300)
        pods = self._pods_of(deployment)
        ours = [each for each in pods if each.label(REVISION) == deployment.revision]
        others = [each for each in pods if each not in ours]
        spare = sum(each.ready for each in pods) - deployment.desired
        for each in sorted(others, key=lambda each: each.ready):
            if not each.ready or spare > 0:
                spare -= each.ready
                await self._delete_pod(each)
        pods = self._pods_of(deployment)
        missing = deployment.desired - len(ours)
        for _ in range(min(missing, deployment.desired + 1 - len(pods))):
            self._pods_made += 1
            owner = self._get(DEPLOYMENTS, deployment.name)
            await self._pod(f"{deployment.name}-{self._pods_made}", owner)
        await self._count(deployment)

    async def _becomes_ready(self, pod: PodView, deployment: DeploymentView) -> None:
        second = self._is_second(pod.label(REVISION))
        if second and self._update.crashes and not deployment.is_canary:
            status = crashed("server", Reason.BACKEND_CRASHED, timestamp(self._now))
            await self._set_status(PODS, pod.name, status)
            return
        self._measures(pod)
        if second and deployment.is_canary:
            self._first_ready = self._first_ready or self._now
        running = {"phase": "Running", "podIP": f"10.1.0.{pod.name.rpartition('-')[2]}"}
        status = {**running, **runs(timestamp(self._now), ready=True)}
        await self._set_status(PODS, pod.name, status)

    def _measures(self, pod: PodView, ratio: float = 1.0) -> None:
        self._sidecars.measured[pod.name] = measurements(
            self._now.timestamp(), ratio, model=MODEL, revision=pod.label(REVISION)
        )

    async def _count(self, deployment: DeploymentView) -> None:
        pods = self._pods_of(deployment)
        ready = sum(each.ready for each in pods)
        live = self._get(DEPLOYMENTS, deployment.name)
        status = {
            "observedGeneration": live["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": sum(each.label(REVISION) == deployment.revision for each in pods),
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
        await self._create(made("Pod", name, self._namespace, owner, every, spec=spec))

    # writes, which the operator's watches deliver

    async def _create(self, obj: Json) -> None:
        self._happened(await self._client.create(obj))

    async def _patch(self, changes: Json) -> None:
        model = await self._client.patch(INFERENCE_MODELS, *self._key, changes, manager="kubectl")
        self._happened(model)

    async def _set_status(self, resource: Resource, name: str, status: Json) -> None:
        self._happened(await self._client.set_status(resource, self._namespace, name, status))

    async def _delete_pod(self, pod: PodView) -> None:
        await self._client.delete(PODS, self._namespace, pod.name, uid=pod.uid)
        self._sidecars.measured.pop(pod.name, None)
        self._happened(self._get(PODS, pod.name), deleted=True)

    def _happened(self, obj: JsonObject, *, deleted: bool = False) -> None:
        resource = resource_of(obj["apiVersion"], obj["kind"])
        self._written(resource, obj, deleted)
        if self._process is not None:
            self._process.router.event(resource, obj, deleted=deleted)

    # what must never be

    def _check(self) -> None:
        """Check, after each write, that clients are served, and by nothing that has not shown that it may."""
        if not self._serves:
            return
        for deployment in self._views(DEPLOYMENT):
            if deployment.is_serving:
                assert deployment.desired >= REPLICAS, "serving pods are taken away"
                second = self._is_second(deployment.revision)
                if (age := "new" if second else "old") not in self._carried[-1:]:
                    self._carried.append(age)
                if second:
                    assert not self._update.slow, "what was measured to be slow is promoted"
                    assert self._first_ready
                    assert self._now >= self._first_ready + HOLD, "promoted before its hold ended"
        service = self._get(SERVICES, MODEL)
        selector = service["spec"]["selector"].items()
        behind = [each for each in self._views(POD) if selector <= each.labels.items()]
        lasting = [each for each in behind if each.label(TRACK) != CANARY]
        assert sum(each.ready for each in lasting) >= REPLICAS, "too few ready endpoints"
        assert lasting == behind or self._first_ready, "an unproven canary gets requests"

    # what there is

    def _views(self, kind: Kind[Viewed]) -> tuple[Viewed, ...]:
        return self._seen.views(kind, self._seen.all(kind.resource))

    def _get(self, resource: Resource, name: str) -> JsonObject:
        found = self._seen.get(resource, self._namespace, name)
        assert found, f"no {resource.kind} {name}"
        return found

    def _pods_of(self, deployment: DeploymentView) -> list[PodView]:
        return [each for each in self._views(POD) if deployment.uid in each.owners.values()]

    def _is_second(self, revision: str) -> bool:
        stored = self._seen.get(CONTROLLER_REVISIONS, self._namespace, f"{MODEL}-{revision}")
        return stored is not None and SECOND.key in str(stored["data"])

    def _condition(self, kind: str) -> str:
        known = self.status.get("conditions") or ()
        return next((str(each["status"]) for each in known if each["type"] == kind), "")
