"""The operator without its informer: everything wired together, started and stopped in order."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from enginewright.controller.bucket_user import BucketUser
from enginewright.controller.cache import ObjectCache
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.controllers import Controllers
from enginewright.controller.events import EventRecorder
from enginewright.controller.execute import Executor
from enginewright.controller.health import HealthServer
from enginewright.controller.informer import RETRY, Informer, watches
from enginewright.controller.leadership import Leadership
from enginewright.controller.routing import Router
from enginewright.controller.settings import OperatorSettings
from enginewright.controller.shared import Shared, utc_now
from enginewright.kube.api import JsonObject
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import load_connection
from enginewright.kube.errors import KubeError
from enginewright.kube.metrics import RestMetrics
from enginewright.kube.resources import Resource

GRACE: Final = 0.7  # seconds for work in progress when the process stops
EVENTS_GRACE: Final = 0.2  # seconds for Events that are not written yet

_logger = logging.getLogger(__name__)


class OperatorApplication:
    """Created inside a running event loop; `lost` is called when leadership is lost, and must end the process."""

    def __init__(self, settings: OperatorSettings, lost: Callable[[str], None]) -> None:
        disable_created_metrics()  # an unused second series for each counter
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._leadership = Leadership(settings, registry, lost)
        self._client = KubeClient(
            load_connection, RestMetrics(registry), may_write=self._leadership.may_write
        )
        self._recorder = EventRecorder(self._client, clock=time.monotonic, now=utc_now)
        cache = ObjectCache()
        shared = Shared(
            config=settings.config,
            api=self._client,
            cache=cache,
            pods=PodCatchUp(self._client, cache),
            executor=Executor(self._client, cache, written=self._queue_after_write),
            recorder=self._recorder,
            own_namespace=self._leadership.own_namespace,
            bucket_user=BucketUser(self._client, settings.config),
            now=utc_now,
        )
        self._bucket_user = shared.bucket_user
        self._controllers = Controllers(
            shared,
            registry,
            images_changed=self._images_changed,
            leads=self._leadership.release.may_act,
        )
        self.router = Router(cache, self._controllers.sinks(), settings.config.store)
        self.informer = Informer(
            self._client,
            self.router,
            watches(settings.config.store.claim),
            namespaces=settings.namespaces,
        )
        self._health = HealthServer(
            settings.http_port,
            alive=self._why_not_alive,
            ready=self._why_not_ready,
            registry=registry,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    async def start(self) -> None:
        """Return when everything can be listed and this process is a candidate for leadership."""
        await self._health.start()
        await self.informer.check()
        await _until_success(self._leadership.own_namespace.load)
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
        ended = await self._controllers.stop(GRACE)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._recorder.drain(), EVENTS_GRACE)
        if ended:  # else the Lease expires: cancelled requests may still be executed
            await self._leadership.hand_over()

    async def stop_serving(self) -> None:
        """Close the probes' and Prometheus' connections."""
        await self._health.stop()

    async def stop(self) -> None:
        """End what is still running, after `stop_acting`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        await self._leadership.close()
        _logger.info("stopped")

    async def _lead(self) -> None:
        """Start everything that writes, once this process leads."""
        await self._leadership.release.leading.wait()
        await self.informer.begin()
        self._run(self.informer.relist_forever(), "relist")
        await _until_success(self._controllers.images.load)
        await _until_success(self._bucket_user.load)
        self._run(self._recorder.run(), "events")
        self._controllers.start()
        self.router.begin()
        if classes := self._leadership.classes:
            self._run(classes.run(), "classes election")
            await classes.leading.wait()
        self._controllers.start_of_cluster()
        self.router.begin()
        await asyncio.Event().wait()  # a task that has ended fails the liveness probe

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def _queue_after_write(self, resource: Resource, obj: JsonObject) -> None:
        self.router.on_written(resource, obj)  # which needs the queues

    def _images_changed(self) -> None:
        self.router.all_models()
        self.router.all_collections()  # a due one waits for its image

    def _why_not_alive(self) -> str | None:
        exited = (f"the task {task.get_name()} has exited" for task in self._tasks if task.done())
        return "; ".join([*self._controllers.problems(), *exited]) or None

    def _why_not_ready(self) -> str | None:
        """Return why it is not ready; a standby replica is ready, because another one leads."""
        if not self.informer.checked:
            return (
                f"not every kind can be listed: {self.informer.problem or 'nothing is listed yet'}"
            )
        if self._leadership.refusal is not None:
            return self._leadership.refusal
        if not self._leadership.release.leading.is_set():
            return None
        if not self.informer.synced:
            return f"the initial listing is not complete: {self.informer.problem or 'it goes on'}"
        if not self._controllers.images.loaded:
            return "the facts of the images are not loaded yet"
        return self.informer.problem  # it acts on what it saw before


async def _until_success(call: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await call()
        except KubeError as error:
            _logger.warning("%s; retrying", error.message)
            await asyncio.sleep(RETRY)
