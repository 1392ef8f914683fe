"""The operator without its informer: everything wired together, started and stopped in order."""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from enginewright.controller.cache import Cache
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.classes import ClassReconciler
from enginewright.controller.engines import EngineReconciler
from enginewright.controller.events import EventRecorder
from enginewright.controller.execute import Executor
from enginewright.controller.health import HealthServer
from enginewright.controller.images import ImageReconciler
from enginewright.controller.informer import Informer, watches
from enginewright.controller.loop import Controller, LoopMetrics
from enginewright.controller.metrics import EngineMetrics, ModelCollector
from enginewright.controller.proposals import KEY as PROPOSALS
from enginewright.controller.proposals import ProposalReconciler
from enginewright.controller.reconcile import ModelReconciler
from enginewright.controller.routing import EngineKey, ModelKey, Router, Sinks
from enginewright.controller.settings import Settings
from enginewright.controller.verdicts import VerdictPoller
from enginewright.kube.api import JsonObject
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import load_connection
from enginewright.kube.metrics import RestMetrics
from enginewright.kube.pod_http import pod_http
from enginewright.kube.resources import Resource
from enginewright.plan.plan import plan

MODEL_WORKERS: Final = 8  # each holds at most one request; the event loop is one
ENGINE_WORKERS: Final = 4
GRACE: Final = 1.0  # seconds for work under way when we are told to stop

_logger = logging.getLogger(__name__)


class Application:
    """Made inside a running event loop; `router` is what the informer feeds."""

    def __init__(self, settings: Settings) -> None:
        disable_created_metrics()  # a second series for each counter that nothing reads
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        loops = LoopMetrics(registry)
        self._client = KubeClient(load_connection, RestMetrics(registry))
        cache = Cache()
        executor = Executor(self._client, cache, written=self._written)
        pods = PodCatchUp(self._client, cache)
        self._recorder = EventRecorder(self._client)
        self.watches = watches(settings.config.store.claim)
        self._images = ImageReconciler(
            self._client, cache, pods, executor, settings.config, changed=self._all_models
        )
        self._verdicts = VerdictPoller(
            cache,
            pod_http(),
            registry,
            changed=self._model_changed,
            engine_changed=self._engine_changed,
            write=self._client.apply,
        )
        models = ModelReconciler(
            pods,
            cache,
            executor,
            self._recorder,
            self._images,
            settings.config,
            plan,
            verdicts=self._verdicts.verdicts_of,
            silent=self._verdicts.silent,
        )
        self._models: Controller[ModelKey] = Controller(
            "inferencemodel",
            models.reconcile,
            loops,
            workers=MODEL_WORKERS,
            describe=lambda key: {"namespace": key.namespace, "name": key.name},
        )
        engines = EngineReconciler(
            pods,
            cache,
            executor,
            self._recorder,
            EngineMetrics(registry),
            settings.config,
            progress=self._verdicts.progress_of,
        )
        self._engines: Controller[EngineKey] = Controller(
            "inferenceengine",
            engines.reconcile,
            loops,
            workers=ENGINE_WORKERS,
            describe=lambda key: {"namespace": key.namespace, "name": key.name},
        )
        self._classes: Controller[str] = Controller(
            "acceleratorclass",
            ClassReconciler(cache, executor).reconcile,
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
            ProposalReconciler(self._client, cache, settings.config).reconcile,
            loops,
            workers=1,
            describe=lambda _key: {},
        )
        self._controllers = (
            self._models,
            self._engines,
            self._classes,
            self._probes,
            self._proposals,
        )
        self.router = Router(
            cache,
            Sinks(
                model=self._models.queue.add,
                engine=self._engines.queue.add,
                accelerator_class=self._classes.queue.add,
                image=self._probes.queue.add,
                proposals=lambda: self._proposals.queue.add(PROPOSALS),
            ),
        )
        self._informer = Informer(self._client, self.router, self.watches)
        ModelCollector(cache, registry)
        self._health = HealthServer(
            settings.http_port,
            alive=self._why_not_alive,
            ready=self._why_not_ready,
            registry=registry,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Return when everything is listed and the workers run; says what it waits for."""
        await self._health.start()
        await self._informer.first_listing()
        await self._images.load()
        for key in self._images.keys:
            self._probes.queue.add(key)
        for controller in self._controllers:
            controller.start()
        self._verdicts.start()
        self._tasks = [
            asyncio.create_task(self._recorder.run(), name="events"),
            asyncio.create_task(self._informer.relist_forever(), name="relist"),
        ]
        _logger.info("started")

    async def stop_serving(self) -> None:
        """Close the probes' and Prometheus' connections."""
        await self._health.stop()

    async def stop(self) -> None:
        """Take nothing more, let end what is under way, tell what is to be told, close."""
        await self._verdicts.stop()
        await asyncio.gather(*(controller.stop(GRACE) for controller in self._controllers))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._recorder.drain(), GRACE / 2)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        _logger.info("stopped")

    def _written(self, resource: Resource, obj: JsonObject) -> None:
        self.router.written(resource, obj)

    def _model_changed(self, key: ModelKey) -> None:
        self._models.queue.add(key)

    def _engine_changed(self, namespace: str, name: str) -> None:
        self._engines.queue.add(EngineKey(namespace, name))

    def _all_models(self) -> None:
        self.router.all_models()

    def _why_not_alive(self) -> str | None:
        troubles = [trouble for one in self._controllers if (trouble := one.trouble())]
        troubles += filter(None, (self._verdicts.trouble(),))
        troubles += [f"the task {task.get_name()} has ended" for task in self._tasks if task.done()]
        return "; ".join(troubles) or None

    def _why_not_ready(self) -> str | None:
        if not self._informer.synced:
            return "not everything is listed yet"
        return None if self._images.loaded else "what the images hold is not loaded yet"
