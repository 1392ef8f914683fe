"""A model of which everything is watched, one event at a time, with what each controller and kubelet writes in between.

Requests and watches take time, in which passes overlap with events as on a cluster. `python -m tests.support.watched_models`
shows what queues what, and what each pass sends.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, Self, cast

from enginewright.controller.controllers import ENGINE_WORKERS, MODEL_WORKERS
from enginewright.controller.informer import watches
from enginewright.controller.loop import Controller, LoopMetrics, ReconcileResult
from enginewright.controller.routing import EngineKey, ModelKey
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.resources import Resource
from enginewright.manifests.labels import COMPONENT
from enginewright.observed.pods import JOB_NAME, PodView
from enginewright_contract.report import Published, PublishedEngine, StageReport
from enginewright_contract.verdict import Verdict
from prometheus_client import CollectorRegistry
from typing_extensions import override

from tests.support.copies import copy_json
from tests.support.fake_kube import FakeKube
from tests.support.many_models import ManyModels
from tests.support.plan_objects import (
    KINDS,
    RTX_IMAGE,
    Json,
    gpu_node,
    image_facts,
    make_object,
    publish_engine,
    publish_model,
    verdict,
)
from tests.support.plan_world import CONFIG
from tests.support.simulation import has_node, report_end, runs
from tests.support.virtual_time import run

_REQUEST: Final = 0.004  # seconds
_WATCH: Final = 0.002
_PATIENCE: Final = 200  # writes of others
_SETTLED: Final = 20.0  # after all is played
_WATCHED: Final = {watch.resource.kind for watch in watches(CONFIG.store.claim)}
_SENT: Final[ContextVar[list[str] | None]] = ContextVar("sent", default=None)  # by a pass


class _DistantKube:
    """`KubeApi` whose requests take time and are counted."""

    def __init__(self, kube: FakeKube) -> None:
        self._kube = kube
        self.sent: Counter[str] = Counter()  # verb and kind

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def send(what: Resource | Json, *arguments: Any, **options: Any) -> Any:
            request = f"{verb} {what.kind if isinstance(what, Resource) else what['kind']}"
            self.sent[request] += 1
            if (of_pass := _SENT.get()) is not None:
                of_pass.append(request)
            await asyncio.sleep(_REQUEST / 2)
            response = await getattr(self._kube, verb)(what, *arguments, **options)
            await asyncio.sleep(_REQUEST / 2)
            return response

        return send


class WatchedModel(ManyModels):
    """A model of a class of GPUs whose engine is in the store; its queues are the operator's."""

    _loops: tuple[Controller[ModelKey], Controller[EngineKey]] | None = None

    def __init__(self, pace: float) -> None:
        """Create it in an event loop; `pace`: seconds between two writes of controllers and kubelets."""
        self._pace = pace
        self._queued: list[str] = []
        self.trace: list[str] = []
        super().__init__()
        self.config.images["rtx"] = RTX_IMAGE  # type: ignore[index]  # a dict, of this world alone
        rtx = image_facts("rtx").model_copy(update={"backends": {"tensorrt-rtx": "1.7.1.116"}})
        self.images.facts[RTX_IMAGE] = rtx
        spec = {
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
            "resourceName": "nvidia.com/gpu",
            "computeCapability": "8.9",
            "backends": ["tensorrt-rtx"],
        }
        self.kube.put(make_object("AcceleratorClass", "l4", spec=spec))
        self.kube.put(gpu_node("gpu-1"))
        self.watch()
        self.kube.count_change = self._on_change  # type: ignore[method-assign]  # of this world alone

    @property
    @override
    def api(self) -> KubeApi:
        return cast("KubeApi", self.distant)

    @override
    def restart(self) -> Self:
        self.distant = _DistantKube(self.kube)
        super().restart()
        self.models = replace(self.models, verdicts=self._list_verdicts)
        return self

    async def bring_up(self, name: str) -> Self:
        """Apply a model, and play everything until it is Ready and nothing is queued."""
        async with self._operate():
            self.put(name, accelerators=[{"class": "l4"}], rollout={})
            await self._play_job(await self._wait_for_job("prepare"), publish_model())
            lookup = await self._wait_for_job("engine-lookup")
            key = self.the("InferenceEngine")["spec"]["key"]
            whole = {"nodes_accelerated": 415, "compute_share_elsewhere": 0.0, "elsewhere": ()}
            await self._play_job(lookup, publish_engine(key, **whole))
            deployment = await self._wait_for(lambda: self.all("Deployment"))
            await self._play_deployment(deployment[0], name)
        return self

    async def start_again(self) -> Self:
        """Have another process take over, which queues everything; forget what was counted."""
        self.restart()
        async with self._operate():
            self.router.begin()
        return self

    @asynccontextmanager
    async def _operate(self) -> AsyncIterator[None]:
        """Work on what is queued until that is settled."""
        self.counted: Counter[str] = Counter()  # passes by kind of key
        self.idle: Counter[str] = Counter()  # those of them that sent nothing
        metrics = LoopMetrics(CollectorRegistry())
        models, engines = self._loops = (
            Controller(
                "model", self._pass_model, metrics, workers=MODEL_WORKERS, describe=ModelKey._asdict
            ),
            Controller(
                "engine",
                self._pass_engine,
                metrics,
                workers=ENGINE_WORKERS,
                describe=EngineKey._asdict,
            ),
        )
        models.start()
        engines.start()
        recorder = asyncio.create_task(self.models.shared.recorder.run())
        yield
        await asyncio.sleep(_SETTLED)
        await asyncio.gather(models.stop(1), engines.stop(1))
        recorder.cancel()
        await asyncio.gather(recorder, return_exceptions=True)

    def list_events(self) -> list[str]:
        """Return reasons and messages of the Events, by their names."""
        return [f"{event['reason']}: {event['message']}" for event in self.all("Event")]

    # what the operator sees and does

    def _on_change(self, stored: JsonObject) -> None:
        FakeKube.count_change(self.kube, stored)
        if stored["kind"] in _WATCHED:
            asyncio.get_running_loop().call_later(_WATCH, self._show, copy_json(stored))

    def _show(self, obj: JsonObject) -> None:
        self._queued.clear()
        self.router.event(KINDS[obj["kind"]], obj, deleted=False)
        keys = ", ".join(dict.fromkeys(self._queued)) or "nothing"
        self._say(f"{obj['kind']} {obj['metadata']['name']} queues {keys}")

    @override
    def _add(self, key: ModelKey) -> None:
        self._queued.append("the model")
        if self._loops:
            self._loops[0].add(key)

    @override
    def _add_engine(self, key: EngineKey) -> None:
        self._queued.append("the engine")
        if self._loops:
            self._loops[1].add(key)

    @override
    def _add_lazily(self, key: ModelKey | EngineKey) -> None:
        is_model = isinstance(key, ModelKey)
        self._queued.append("the model, lazily" if is_model else "the engine, lazily")
        if self._loops:
            models, engines = self._loops
            models.add_lazily(key) if isinstance(key, ModelKey) else engines.add_lazily(key)

    async def _pass_model(self, key: ModelKey) -> ReconcileResult:
        return await self._count_pass("model", self.models.reconcile(key))

    async def _pass_engine(self, key: EngineKey) -> ReconcileResult:
        return await self._count_pass("engine", self.engines.reconcile(key))

    async def _count_pass(self, kind: str, work: Awaitable[ReconcileResult]) -> ReconcileResult:
        sent: list[str] = []
        _SENT.set(sent)
        result = await work
        self.counted[kind] += 1
        self.idle[kind] += not sent
        self._say(f"pass of the {kind}: {'; '.join(sent) or 'nothing'}")
        return result

    def _list_verdicts(self, pods: Iterable[PodView]) -> dict[str, Verdict]:
        return {pod.name: self.verdicts[pod.name] for pod in pods if pod.name in self.verdicts}

    def _say(self, line: str) -> None:
        self.trace.append(f"{asyncio.get_running_loop().time():7.3f} {line}")

    # what a cluster does

    async def _wait_for(self, find: Callable[[], list[Json]]) -> list[Json]:
        for _ in range(_PATIENCE):
            if objects := find():
                return objects
            await asyncio.sleep(self._pace)
        raise AssertionError("\n".join(self.trace))

    async def _wait_for_job(self, component: str) -> Json:
        (job,) = await self._wait_for(
            lambda: [
                job
                for job in self.running_jobs()
                if job["metadata"]["labels"][COMPONENT] == component
            ]
        )
        return job

    async def _write(self, obj: Json, **status: Any) -> None:
        """Have a controller or a kubelet write a status, some time after another write."""
        await asyncio.sleep(self._pace)
        self.set_status(obj, {**(obj.get("status") or {}), **status})

    async def _play_job(self, job: Json, result: Published | PublishedEngine) -> None:
        """Have a Job's pod be made, placed and run, and the Job end as its controller ends it, counting the pod first."""
        await asyncio.sleep(self._pace)
        name = job["metadata"]["name"]
        pod = self.add_pod(f"{name}-x2x9k", job, JOB_NAME, {"phase": "Pending"})
        pod["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
        pod["spec"] = {}
        await self._write(job, active=1, ready=0, terminating=0, startTime=self.at())
        pod["spec"] = {"nodeName": "gpu-1"}
        await self._write(pod, conditions=[has_node(self.at())])
        stages = self.stages(name)
        kind = "published" if isinstance(result, Published) else "engine"
        report = StageReport.model_validate({"stage": stages[-1], "ok": True, kind: result})
        ended = [report_end(stage) for stage in stages[:-1]]
        last = [report_end(stages[-1], message=report.termination_message())]
        await self._write(
            pod, phase="Succeeded", initContainerStatuses=ended, containerStatuses=last
        )
        met = {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": self.at()}
        counted = {"succeeded": [pod["metadata"]["uid"]]}
        await self._write(job, active=0, uncountedTerminatedPods=counted, conditions=[met])
        del pod["metadata"]["finalizers"]
        await self._write(pod)
        complete = [met, {**met, "type": "Complete"}]
        await self._write(
            job,
            succeeded=1,
            uncountedTerminatedPods={},
            completionTime=self.at(),
            conditions=complete,
        )

    async def _play_deployment(self, deployment: Json, model: str) -> None:
        """Have a Deployment's one pod be made, placed, ready and verified."""
        name, seen = deployment["metadata"]["name"], deployment["metadata"]["generation"]
        progress = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetCreated"}
        annotations = deployment["metadata"].setdefault("annotations", {})
        annotations["deployment.kubernetes.io/revision"] = "1"
        await self._write(deployment, observedGeneration=seen, conditions=[progress])
        pod = self.add_pod(f"{name}-x2x9k", deployment, "deployment", {"phase": "Pending"})
        pod["spec"] = {}
        lacks = {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable"}
        progress = {**progress, "reason": "ReplicaSetUpdated"}
        made = {"replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1}
        await self._write(deployment, **made, conditions=[lacks, progress])
        pod["spec"] = {"nodeName": "gpu-1"}
        await self._write(pod, conditions=[has_node(self.at())])
        ready = runs(self.at(), ready=True)
        conditions = [*ready.pop("conditions"), has_node(self.at())]
        await self._write(pod, phase="Running", podIP="10.1.0.1", **ready, conditions=conditions)
        has = {**lacks, "status": "True", "reason": "MinimumReplicasAvailable"}
        progress = {**progress, "reason": "NewReplicaSetAvailable"}
        counts = {"readyReplicas": 1, "availableReplicas": 1, "unavailableReplicas": 0}
        await self._write(deployment, **counts, conditions=[has, progress])
        await asyncio.sleep(self._pace)
        self.verdicts[pod["metadata"]["name"]] = verdict("tensorrt-rtx")
        self._add(ModelKey(self.namespace, model))


async def _show(pace: float) -> None:
    world = await WatchedModel(pace).bring_up("resnet")
    print(*world.trace, *world.list_events(), sep="\n")
    print(f"{world.ready('resnet')}; {world.distant.sent.total()} requests: {world.distant.sent}")
    print(f"passes: {world.counted}, of which sent nothing: {world.idle}")


if __name__ == "__main__":
    for seconds in (0.02, 1.0):
        run(_show(seconds))
