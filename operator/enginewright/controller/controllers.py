"""The controllers, one a kind of key: what each reconciles with, and which queues a change reaches."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry

from enginewright.api.conditions import StatusReason
from enginewright.controller.bucket_user import BucketUser
from enginewright.controller.cache import ObjectCache
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.classes import ClassReconciler
from enginewright.controller.collection import CollectionReconciler
from enginewright.controller.collection_metrics import CollectionMetrics, StoreCollector
from enginewright.controller.engine_uses import EngineUses
from enginewright.controller.engines import EngineReconciler
from enginewright.controller.events import EventRecorder
from enginewright.controller.execute import Executor
from enginewright.controller.fleet import Fleet, FleetCollector
from enginewright.controller.images import ImageReconciler
from enginewright.controller.job_turns import JobTurns
from enginewright.controller.loop import Controller, Key, LoopMetrics, ReconcileResult
from enginewright.controller.metrics import EngineMetrics, ModelCollector, RolloutMetrics
from enginewright.controller.operator_namespace import OperatorNamespace
from enginewright.controller.proposals import KEY as PROPOSALS
from enginewright.controller.proposals import ProposalReconciler
from enginewright.controller.reconcile import ModelReconciler
from enginewright.controller.routing import EngineKey, ModelKey, Sinks
from enginewright.controller.single_flight import SingleFlight
from enginewright.controller.verdicts import VerdictPoller
from enginewright.kube.client import KubeClient
from enginewright.kube.pod_http import pod_http
from enginewright.plan.plan import plan
from enginewright.plan.types import Config, EventIntent

MODEL_WORKERS: Final = 8  # each has at most one request in progress
ENGINE_WORKERS: Final = 4


@dataclass(frozen=True)
class Shared:
    """What reconcilers have in common: how they see the cluster, and how they change it."""

    config: Config
    client: KubeClient
    cache: ObjectCache
    pods: PodCatchUp
    executor: Executor
    recorder: EventRecorder
    own_namespace: OperatorNamespace
    bucket_user: BucketUser
    registry: CollectorRegistry
    leads: Callable[[], bool]


class Controllers:
    """One controller a kind of key, with the images, verdicts and turns that several of them need.

    `images_changed` is called when facts of images have changed, on which models and collections depend.
    """

    def __init__(self, shared: Shared, images_changed: Callable[[], None]) -> None:
        self._shared = shared
        self._loops = LoopMetrics(shared.registry)
        self.images = ImageReconciler(
            shared.client,
            shared.cache,
            shared.pods,
            shared.executor,
            shared.config,
            shared.own_namespace,
            changed=images_changed,
            queue=self._image_required,
        )
        fleet = Fleet(
            shared.cache,
            shared.config.images,
            shared.config.fleet,
            queue=self._model_changed,
            stopped=self._fleet_stopped,
        )
        self._verdicts = VerdictPoller(
            shared.cache,
            pod_http(),
            shared.registry,
            changed=self._model_changed,
            engine_changed=self._engine_changed,
            write=shared.client.apply,
        )
        turns = JobTurns(
            shared.cache,
            shared.config.job_limits,
            model=self._model_changed,
            engine=lambda key: self._engine_changed(*key),
        )
        self._models = self._model_controller(fleet, turns)
        self._engines = self._engine_controller(turns)
        classes = ClassReconciler(shared.cache, shared.executor, shared.config.product_labels)
        self._classes = self._controller("acceleratorclass", classes.reconcile, _name)
        self._probes = self._controller("image", self.images.reconcile, _name)
        proposals = ProposalReconciler(
            shared.client, shared.cache, shared.config, shared.own_namespace
        )
        self._proposals = self._controller("classproposals", proposals.reconcile, lambda _key: {})
        self._collections = self._collection_controller()
        self._of_namespaces = (self._models, self._engines, self._collections, self._probes)
        self._of_cluster = (self._classes, self._proposals)
        ModelCollector(shared.cache, shared.registry, leads=shared.leads)
        FleetCollector(fleet, shared.registry, leads=shared.leads)

    def sinks(self) -> Sinks:
        """Return the queues."""
        return Sinks(
            model=self._models.add,
            engine=self._engines.add,
            accelerator_class=self._classes.add,
            image=self._probes.add,
            proposals=lambda: self._proposals.add(PROPOSALS),
            collection=self._collections.add,
        )

    def start(self) -> None:
        """Start those of objects with a namespace, and polling; probe all images."""
        for controller in self._of_namespaces:
            controller.start()
        self._verdicts.start()
        for key in self.images.keys:
            self._probes.add(key)

    def start_of_cluster(self) -> None:
        """Start those of cluster-scoped objects, which one release manages."""
        for controller in self._of_cluster:
            controller.start()

    async def stop(self, grace: float) -> bool:
        """Stop polling and all controllers; return whether no work in progress was cancelled."""
        await self._verdicts.stop()
        every = (*self._of_namespaces, *self._of_cluster)
        return all(await asyncio.gather(*(each.stop(grace) for each in every)))

    def problems(self) -> list[str]:
        """Return why they are not healthy."""
        every = (*self._of_namespaces, *self._of_cluster, self._verdicts)
        return [problem for each in every if (problem := each.problem())]

    def _model_controller(self, fleet: Fleet, turns: JobTurns) -> Controller[ModelKey]:
        shared = self._shared
        models = ModelReconciler(
            shared.pods,
            shared.cache,
            shared.executor,
            shared.recorder,
            self.images,
            shared.config,
            plan,
            SingleFlight(shared.cache, queue=self._model_changed),
            turns,
            shared.bucket_user,
            verdicts=self._verdicts.verdicts_of,
            silent=self._verdicts.silent,
            measured=self._verdicts.measurements.measured,
            rolled_back=RolloutMetrics(shared.registry).count,
            takes_turn=fleet.takes_turn,
            planned=fleet.planned,
        )
        return self._controller(
            "inferencemodel", models.reconcile, ModelKey._asdict, workers=MODEL_WORKERS
        )

    def _engine_controller(self, turns: JobTurns) -> Controller[EngineKey]:
        shared = self._shared
        engines = EngineReconciler(
            shared.pods,
            shared.cache,
            shared.executor,
            shared.recorder,
            EngineMetrics(shared.registry),
            shared.config,
            EngineUses(shared.cache, self._engine_changed),
            turns,
            progress=self._verdicts.progress_of,
        )
        return self._controller(
            "inferenceengine", engines.reconcile, EngineKey._asdict, workers=ENGINE_WORKERS
        )

    def _collection_controller(self) -> Controller[str]:
        shared = self._shared
        metrics = CollectionMetrics(shared.registry)
        StoreCollector(shared.cache, metrics, shared.registry, leads=shared.leads)
        collections = CollectionReconciler(
            shared.client,
            shared.pods,
            shared.cache,
            shared.executor,
            shared.recorder,
            self.images,
            metrics,
            shared.config,
            shared.own_namespace,
            shared.bucket_user,
        )
        return self._controller(
            "collection", collections.reconcile, lambda namespace: {"namespace": namespace}
        )

    def _controller(
        self,
        name: str,
        reconcile: Callable[[Key], Awaitable[ReconcileResult]],
        describe: Callable[[Key], dict[str, str]],
        workers: int = 1,
    ) -> Controller[Key]:
        return Controller(name, reconcile, self._loops, workers=workers, describe=describe)

    def _model_changed(self, key: ModelKey) -> None:
        self._models.add(key)

    def _engine_changed(self, namespace: str, name: str) -> None:
        self._engines.add(EngineKey(namespace, name))

    def _image_required(self, key: str) -> None:
        self._probes.add(key)

    def _fleet_stopped(self, message: str) -> None:
        if deployment := self._shared.own_namespace.deployment:
            stopped = EventIntent("Warning", StatusReason.FLEET_STOPPED, message)
            self._shared.recorder.record(deployment, stopped)


def _name(key: str) -> dict[str, str]:
    return {"name": key}
