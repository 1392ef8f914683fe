"""A model that is updated on a real API server by the operator's own passes; everybody else is played.

What others write reaches the operator as from its watches.
"""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from enginewright.controller.observe import DEPLOYMENT, POD
from enginewright.controller.routing import ModelKey
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import (
    CLAIMS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    HORIZONTAL_POD_AUTOSCALERS,
    INFERENCE_MODELS,
    JOBS,
    SERVICES,
    Resource,
)
from enginewright.manifests.labels import CANARY, COMPONENT, REVISION, SERVE, TRACK
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright_contract.report import Published
from typing_extensions import override

from tests.support.differences import comparable
from tests.support.operator_passes import OperatorPasses
from tests.support.plan_objects import OTHER, SECOND, Json, make_object, publish_model
from tests.support.played_namespace import PlayedNamespace, PlayingClient
from tests.support.stopping import Killed, StoppingApi

MODEL: Final = "resnet"
REPLICAS: Final = 2
HOLD: Final = timedelta(minutes=1)
TICK: Final = timedelta(seconds=20)
LONG: Final = timedelta(minutes=5)  # a tick after one in which nothing happened
LIMIT: Final = 60  # ticks in which a rollout must end
FIRST: Final[Json] = {"uri": "https://models.example/resnet.onnx"}
_CONTENT: Final = {FIRST["uri"]: publish_model(), OTHER["uri"]: SECOND}
_KINDS: Final = (
    CLAIMS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    HORIZONTAL_POD_AUTOSCALERS,
    INFERENCE_MODELS,
    JOBS,
    SERVICES,
)


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


class LiveRollout(PlayedNamespace):
    """A model that serves, and is updated; the operator may be killed, and is started again a tick later."""

    def __init__(self, client: PlayingClient, namespace: str, update: Update) -> None:
        super().__init__(client, namespace)
        self._stopping = StoppingApi(client, watched=self._on_written)
        self._update = update
        self._process: OperatorPasses | None = None
        self._serves = False  # all desired pods, from now on
        self._again = False  # a new process is killed at its second write
        self._carried: list[str] = []  # as in Ended
        self._first_ready: datetime | None = None  # a pod of the canary

    async def run(
        self, stop: int | None = None, *, applied: bool = True, again: bool = False
    ) -> Ended:
        """Run it to its end, and remove what other tests would find.

        The operator is killed at write `stop`, which is stored if `applied`, and with `again` each further process at
        its second write.
        """
        await self.client.make_namespace(self.name)
        try:
            await self._bring_up()
            self._stopping.left, self._stopping.applied = stop, applied
            self._again = again
            await self.edit(INFERENCE_MODELS, MODEL, {"spec": {"source": OTHER}})
            await self._until_nothing_happens()
            return await self._end()
        finally:
            await self.client.empty(self.name)

    async def _bring_up(self) -> None:
        """Have the first revision serve."""
        rollout = {"canary": {"replicas": 1, "hold": f"{HOLD.seconds}s"}}
        spec = {"source": FIRST, "replicas": REPLICAS, "rollout": rollout}
        await self.create(make_object("InferenceModel", MODEL, self.name, spec=spec))
        for _ in range(LIMIT):
            await self._tick()
            if ("Ready", "True") in (
                (condition["type"], condition["status"]) for condition in self._conditions
            ):
                self._serves = True
                self._stopping.log.clear()
                return
        raise AssertionError(f"it does not serve: {self._conditions}")

    async def _until_nothing_happens(self) -> None:
        idle = 0
        for _ in range(LIMIT):
            before = len(self._stopping.log)
            await self._tick(LONG if idle else TICK)
            still = len(self._stopping.log) == before and self._process is not None
            idle = idle + 1 if still else 0
            if idle > 1:
                return
        raise AssertionError(f"no end after {LIMIT} ticks, but {self._stopping.log}")

    async def _end(self) -> Ended:
        ends = {}
        for resource in _KINDS:
            for item in (await self.client.list(resource, self.name)).items:
                ends[f"{resource.kind} {item['metadata']['name']}"] = comparable(item)
        end = json.loads(json.dumps(ends).replace(self.name, "NAMESPACE"))
        (ready,) = (
            condition["reason"] for condition in self._conditions if condition["type"] == "Ready"
        )
        return Ended(self._stopping.log, ready, self._carried, end)

    @property
    def _conditions(self) -> list[Json]:
        status = self.get(INFERENCE_MODELS, MODEL).get("status") or {}
        return list(status.get("conditions") or ())

    async def _tick(self, duration: timedelta = TICK) -> None:
        """Have everybody take one step, the operator last."""
        await self.step()
        for pod in self.views(POD):
            serves = pod.label(TRACK) == CANARY and pod.label(COMPONENT) == SERVE
            if self._update.slow and serves and self._is_second(pod.label(REVISION)):
                self.measures(pod, ratio=300)
        self.now += duration
        try:
            if self._process is not None:
                await self._process.poll()
                return
            key = ModelKey(self.name, MODEL)
            self._process = OperatorPasses(self._stopping, key, self.sidecars, lambda: self.now)
            await self._process.start()
        except Killed:
            self._process = None
            if self._again:
                self._stopping.left = 1

    # what others do

    @override
    def on_write(self, resource: Resource, obj: JsonObject, deleted: bool) -> None:
        self._check()
        if self._process is not None:
            self._process.router.event(resource, obj, deleted=deleted)

    @override
    def publish_model(self, job: Json) -> Published:
        return next(content for uri, content in _CONTENT.items() if uri in str(job["spec"]))

    @override
    def crashes(self, pod: PodView, deployment: DeploymentView) -> bool:
        second = self._is_second(pod.label(REVISION))
        return second and self._update.crashes and not deployment.is_canary

    # what must never be

    def _on_written(self, resource: Resource, obj: JsonObject, deleted: bool) -> None:
        """Take note of a write of the operator."""
        self.seen.observe(resource, obj, deleted=deleted)
        self._check()

    def _check(self) -> None:
        """Check, after each write, that clients are served, and by nothing that has not shown that it may."""
        if not self._serves:
            return
        canary = [view for view in self.views(POD) if view.label(TRACK) == CANARY]
        if any(view.ready for view in canary):
            self._first_ready = self._first_ready or self.now
        for deployment in self.views(DEPLOYMENT):
            if deployment.is_serving:
                assert deployment.desired >= REPLICAS, "serving pods are taken away"
                second = self._is_second(deployment.revision)
                if (age := "new" if second else "old") not in self._carried[-1:]:
                    self._carried.append(age)
                if second:
                    assert not self._update.slow, "what was measured to be slow is promoted"
                    assert self._first_ready
                    assert self.now >= self._first_ready + HOLD, "promoted before its hold ended"
        selector = self.get(SERVICES, MODEL)["spec"]["selector"].items()
        behind = [view for view in self.views(POD) if selector <= view.labels.items()]
        lasting = [view for view in behind if view.label(TRACK) != CANARY]
        assert sum(view.ready for view in lasting) >= REPLICAS, "too few ready endpoints"
        assert lasting == behind or self._first_ready, "an unproven canary gets requests"

    def _is_second(self, revision: str) -> bool:
        stored = self.seen.get(CONTROLLER_REVISIONS, self.name, f"{MODEL}-{revision}")
        return stored is not None and SECOND.key in str(stored["data"])
