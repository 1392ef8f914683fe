"""The controllers, one a kind of key: what each reconciles with, and which queues a change reaches."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from prometheus_client import CollectorRegistry

from enginewright.api.conditions import StatusReason
from enginewright.controller.classes import ClassReconciler
from enginewright.controller.collection import CollectionReconciler
from enginewright.controller.collection_metrics import CollectionMetrics, StoreCollector
from enginewright.controller.engine_uses import EngineUses
from enginewright.controller.engines import EngineReconciler
from enginewright.controller.fleet import Fleet, FleetCollector
from enginewright.controller.images import ImageReconciler
from enginewright.controller.job_turns import JobTurns
from enginewright.controller.loop import Controller, Key, LoopMetrics, ReconcileResult
from enginewright.controller.metrics import EngineMetrics, ModelCollector, RolloutMetrics
from enginewright.controller.proposals import KEY as PROPOSALS
from enginewright.controller.proposals import ProposalReconciler
from enginewright.controller.reconcile import ModelReconciler
from enginewright.controller.routing import EngineKey, ModelKey, Sinks
from enginewright.controller.shared import Shared
from enginewright.controller.single_flight import SingleFlight
from enginewright.controller.verdicts import VerdictPoller
from enginewright.kube.pod_http import pod_http
from enginewright.plan.fleet.inputs import list_installed
from enginewright.plan.plan import plan
from enginewright.plan.types import EventIntent

MODEL_WORKERS: Final = 8  # each has at most one request in progress
ENGINE_WORKERS: Final = 4


class Controllers:
    """One controller a kind of key, with the images, verdicts and turns that several of them need."""

    def __init__(
        self,
        shared: Shared,
        registry: CollectorRegistry,
        *,
        images_changed: Callable[[], None],
        leads: Callable[[], bool],
    ) -> None:
        self._shared = shared
        self._registry = registry
        self._loops = LoopMetrics(registry)
        self.images = ImageReconciler(shared, changed=images_changed, queue=self._add_image)
        fleet = Fleet(
            shared.cache,
            list_installed(shared.config),
            shared.config.fleet,
            queue=self._add_model,
            stopped=self._fleet_stopped,
        )
        self._verdicts = VerdictPoller(
            shared.cache,
            pod_http(),
            registry,
            changed=self._add_model,
            engine_changed=self._add_engine,
            write=shared.api.apply,
            wall=time.time,
        )
        turns = JobTurns(
            shared.cache,
            shared.config.job_limits,
            model=self._add_model,
            engine=lambda key: self._add_engine(*key),
        )
        self._models = self._model_controller(fleet, turns)
        self._engines = self._engine_controller(turns)
        classes = ClassReconciler(shared)
        self._classes = self._controller("acceleratorclass", classes.reconcile, _name)
        self._probes = self._controller("image", self.images.reconcile, _name)
        proposals = ProposalReconciler(shared)
        self._proposals = self._controller("classproposals", proposals.reconcile, lambda _key: {})
        self._collections = self._collection_controller(leads)
        self._of_namespaces = (self._models, self._engines, self._collections, self._probes)
        self._of_cluster = (self._classes, self._proposals)
        ModelCollector(shared.cache, registry, leads=leads)
        FleetCollector(fleet, registry, leads=leads)

    def sinks(self) -> Sinks:
        """Return the queues."""
        return Sinks(
            model=self._models.add,
            engine=self._engines.add,
            accelerator_class=self._classes.add,
            image=self._probes.add,
            proposals=lambda: self._proposals.add(PROPOSALS),
            collection=self._collections.add,
            lazily=self._add_lazily,
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
        return all(await asyncio.gather(*(controller.stop(grace) for controller in every)))

    def problems(self) -> list[str]:
        """Return why they are not healthy."""
        every = (*self._of_namespaces, *self._of_cluster, self._verdicts)
        return [problem for item in every if (problem := item.problem())]

    def _model_controller(self, fleet: Fleet, turns: JobTurns) -> Controller[ModelKey]:
        shared = self._shared
        models = ModelReconciler(
            shared,
            self.images,
            plan,
            SingleFlight(shared.cache, queue=self._add_model, now=shared.now),
            turns,
            verdicts=self._verdicts.verdicts_of,
            silent=self._verdicts.silent,
            measured=self._verdicts.measurements.get_measurements,
            rolled_back=RolloutMetrics(self._registry).count,
            takes_turn=fleet.takes_turn,
            planned=fleet.on_planned,
        )
        return self._controller(
            "inferencemodel", models.reconcile, ModelKey._asdict, workers=MODEL_WORKERS
        )

    def _engine_controller(self, turns: JobTurns) -> Controller[EngineKey]:
        engines = EngineReconciler(
            self._shared,
            EngineMetrics(self._registry),
            EngineUses(self._shared.cache, self._add_engine),
            turns,
            progress=self._verdicts.progress_of,
        )
        return self._controller(
            "inferenceengine", engines.reconcile, EngineKey._asdict, workers=ENGINE_WORKERS
        )

    def _collection_controller(self, leads: Callable[[], bool]) -> Controller[str]:
        metrics = CollectionMetrics(self._registry)
        StoreCollector(self._shared.cache, metrics, self._registry, leads=leads)
        collections = CollectionReconciler(self._shared, self.images, metrics)
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

    def _add_model(self, key: ModelKey) -> None:
        self._models.add(key)

    def _add_engine(self, namespace: str, name: str) -> None:
        self._engines.add(EngineKey(namespace, name))

    def _add_lazily(self, key: ModelKey | EngineKey) -> None:
        if isinstance(key, ModelKey):
            self._models.add_lazily(key)
        else:
            self._engines.add_lazily(key)

    def _add_image(self, key: str) -> None:
        self._probes.add(key)

    def _fleet_stopped(self, message: str) -> None:
        if deployment := self._shared.own_namespace.deployment:
            stopped = EventIntent("Warning", StatusReason.FLEET_STOPPED, message)
            self._shared.recorder.record(deployment, stopped)


def _name(key: str) -> dict[str, str]:
    return {"name": key}
