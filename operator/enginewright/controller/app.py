"""The operator without its informer: everything wired together, started and stopped in order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

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
from enginewright.controller.health import HealthServer
from enginewright.controller.images import ImageReconciler
from enginewright.controller.informer import RETRY, Informer, watches
from enginewright.controller.job_turns import JobTurns
from enginewright.controller.leadership import Leadership
from enginewright.controller.loop import Controller, LoopMetrics
from enginewright.controller.metrics import EngineMetrics, ModelCollector, RolloutMetrics
from enginewright.controller.proposals import KEY as PROPOSALS
from enginewright.controller.proposals import ProposalReconciler
from enginewright.controller.reconcile import ModelReconciler
from enginewright.controller.routing import EngineKey, ModelKey, Router, Sinks
from enginewright.controller.settings import OperatorSettings
from enginewright.controller.single_flight import SingleFlight
from enginewright.controller.verdicts import VerdictPoller
from enginewright.kube.api import JsonObject
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import load_connection
from enginewright.kube.errors import KubeError
from enginewright.kube.metrics import RestMetrics
from enginewright.kube.pod_http import pod_http
from enginewright.kube.resources import Resource
from enginewright.plan.plan import plan
from enginewright.plan.types import EventIntent

MODEL_WORKERS: Final = 8  # each has at most one request in progress
ENGINE_WORKERS: Final = 4
GRACE: Final = 0.7  # seconds for work in progress when the process stops
EVENTS_GRACE: Final = 0.2  # seconds for Events that are not written yet

_logger = logging.getLogger(__name__)


class OperatorApplication:
    """Created inside a running event loop; the informer passes events to `router`.

    `lost` is called when this process has lost leadership; it must end the process.
    """

    def __init__(self, settings: OperatorSettings, lost: Callable[[str], None]) -> None:
        disable_created_metrics()  # an unused second series for each counter
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        loops = LoopMetrics(registry)
        self._leadership = Leadership(settings, registry, lost)
        self._client = KubeClient(
            load_connection, RestMetrics(registry), may_write=self._leadership.may_write
        )
        cache = ObjectCache()
        self._bucket_user = BucketUser(self._client, settings.config)
        executor = Executor(self._client, cache, written=self._written)
        pods = PodCatchUp(self._client, cache)
        self._recorder = EventRecorder(self._client)
        self._images = ImageReconciler(
            self._client,
            cache,
            pods,
            executor,
            settings.config,
            self._leadership.own_namespace,
            changed=self._images_changed,
            queue=self._image_required,
        )
        fleet = Fleet(
            cache,
            settings.config.images,
            settings.config.fleet,
            queue=self._model_changed,
            stopped=self._fleet_stopped,
        )
        self._verdicts = VerdictPoller(
            cache,
            pod_http(),
            registry,
            changed=self._model_changed,
            engine_changed=self._engine_changed,
            write=self._client.apply,
        )
        turns = JobTurns(
            cache,
            settings.config.job_limits,
            model=self._model_changed,
            engine=lambda key: self._engine_changed(*key),
        )
        models = ModelReconciler(
            pods,
            cache,
            executor,
            self._recorder,
            self._images,
            settings.config,
            plan,
            SingleFlight(cache, queue=self._model_changed),
            turns,
            self._bucket_user,
            verdicts=self._verdicts.verdicts_of,
            silent=self._verdicts.silent,
            measured=self._verdicts.measurements.measured,
            rolled_back=RolloutMetrics(registry).count,
            takes_turn=fleet.takes_turn,
            planned=fleet.planned,
        )
        self._models: Controller[ModelKey] = Controller(
            "inferencemodel",
            models.reconcile,
            loops,
            workers=MODEL_WORKERS,
            describe=lambda key: key._asdict(),
        )
        engines = EngineReconciler(
            pods,
            cache,
            executor,
            self._recorder,
            EngineMetrics(registry),
            settings.config,
            EngineUses(cache, self._engine_changed),
            turns,
            progress=self._verdicts.progress_of,
        )
        self._engines: Controller[EngineKey] = Controller(
            "inferenceengine",
            engines.reconcile,
            loops,
            workers=ENGINE_WORKERS,
            describe=lambda key: key._asdict(),
        )
        self._classes: Controller[str] = Controller(
            "acceleratorclass",
            ClassReconciler(cache, executor, settings.config.product_labels).reconcile,
            loops,
            workers=1,
            describe=lambda name: {"name": name},
        )
        self._probes: Controller[str] = Controller(
            "image",
            self._images.reconcile,
            loops,
            workers=1,
            describe=lambda key: {"name": key},
        )
        self._proposals: Controller[str] = Controller(
            "classproposals",
            ProposalReconciler(
                self._client, cache, settings.config, self._leadership.own_namespace
            ).reconcile,
            loops,
            workers=1,
            describe=lambda _key: {},
        )
        collection_metrics = CollectionMetrics(registry)
        self._collections: Controller[str] = Controller(
            "collection",
            CollectionReconciler(
                self._client,
                pods,
                cache,
                executor,
                self._recorder,
                self._images,
                collection_metrics,
                settings.config,
                self._leadership.own_namespace,
                self._bucket_user,
            ).reconcile,
            loops,
            workers=1,
            describe=lambda namespace: {"namespace": namespace},
        )
        self._controllers = (
            self._models,
            self._engines,
            self._collections,
            self._classes,
            self._probes,
            self._proposals,
        )
        self.router = Router(
            cache,
            Sinks(
                model=self._models.add,
                engine=self._engines.add,
                accelerator_class=self._classes.add,
                image=self._probes.add,
                proposals=lambda: self._proposals.add(PROPOSALS),
                collection=self._collections.add,
            ),
        )
        self.informer = Informer(
            self._client,
            self.router,
            watches(settings.config.store.claim),
            namespaces=settings.namespaces,
        )
        ModelCollector(cache, registry, leads=self._leadership.release.may_act)
        StoreCollector(
            cache,
            collection_metrics,
            registry,
            leads=self._leadership.release.may_act,
        )
        FleetCollector(fleet, registry, leads=self._leadership.release.may_act)
        self._health = HealthServer(
            settings.http_port,
            alive=self._why_not_alive,
            ready=self._why_not_ready,
            registry=registry,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    async def start(self) -> None:
        """Return when everything is listed and this process is a candidate for leadership."""
        await self._health.start()
        await self.informer.first_listing()
        await _until_success(self._leadership.own_namespace.load)
        self._run(self.informer.relist_forever(), "relist")
        self._run(self._leadership.notices.run(), "notices")
        self._run(self._leadership.release.run(), "election")
        self._run(self._lead(), "leading")
        _logger.info("started")

    async def stop_acting(self) -> None:
        """Accept no more work, let work in progress end, write pending Events, release the Lease."""
        if self._stopped:
            return
        self._stopped = True
        for task in self._tasks:
            if task.get_name() in ("leading", "election", "classes election"):
                task.cancel()
        await self._verdicts.stop()
        ended = await asyncio.gather(*(each.stop(GRACE) for each in self._controllers))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._recorder.drain(), EVENTS_GRACE)
        if all(ended):  # else the Lease expires: cancelled requests may still be executed
            await self._leadership.hand_over()

    async def stop_serving(self) -> None:
        """Close the probes' and Prometheus' connections."""
        await self._health.stop()

    async def stop(self) -> None:
        """End whatever is left, after `stop_acting`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        await self._leadership.close()
        _logger.info("stopped")

    async def _lead(self) -> None:
        """Start everything that writes, once this process leads."""
        await self._leadership.release.leading.wait()
        await self.informer.list_all()
        await _until_success(self._images.load)
        await _until_success(self._bucket_user.load)
        self._run(self._recorder.run(), "events")
        for controller in (self._models, self._engines, self._collections, self._probes):
            controller.start()
        self._verdicts.start()
        for key in self._images.keys:
            self._probes.add(key)
        self.router.begin()
        if classes := self._leadership.classes:
            self._run(classes.run(), "classes election")
            await classes.leading.wait()
        for controller in (self._classes, self._proposals):
            controller.start()
        self.router.begin()
        await asyncio.Event().wait()  # a task that has ended fails the liveness probe

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def _written(self, resource: Resource, obj: JsonObject) -> None:
        self.router.written(resource, obj)

    def _model_changed(self, key: ModelKey) -> None:
        self._models.add(key)

    def _image_required(self, key: str) -> None:
        self._probes.add(key)

    def _fleet_stopped(self, message: str) -> None:
        if deployment := self._leadership.own_namespace.deployment:
            stopped = EventIntent("Warning", StatusReason.FLEET_STOPPED, message)
            self._recorder.record(deployment, stopped)

    def _engine_changed(self, namespace: str, name: str) -> None:
        self._engines.add(EngineKey(namespace, name))

    def _images_changed(self) -> None:
        self.router.all_models()
        self.router.all_collections()  # a due one waits for its image

    def _why_not_alive(self) -> str | None:
        problems = [problem for one in self._controllers if (problem := one.problem())]
        problems += filter(None, (self._verdicts.problem(),))
        problems += [
            f"the task {task.get_name()} has exited" for task in self._tasks if task.done()
        ]
        return "; ".join(problems) or None

    def _why_not_ready(self) -> str | None:
        """Return why not; a standby replica is ready, since another one leads."""
        if not self.informer.synced:
            return "the initial listing is not complete"
        if self._leadership.refusal is not None:
            return self._leadership.refusal
        if self._leadership.release.leading.is_set() and not self._images.loaded:
            return "the facts of the images are not loaded yet"
        return None


async def _until_success(call: Callable[[], Awaitable[None]]) -> None:
    """Repeat a request until it succeeds."""
    while True:
        try:
            return await call()
        except KubeError as error:
            _logger.warning("%s; retrying", error.message)
            await asyncio.sleep(RETRY)
