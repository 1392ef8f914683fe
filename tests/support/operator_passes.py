"""The operator's own listings, plans and writes for one model, one pass after the other, under any clock.

There are no queues, no leader and no polls in time: a test decides when the operator acts.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from enginewright.controller.bucket_user import BucketUser
from enginewright.controller.cache import ObjectCache
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.events import EventRecorder
from enginewright.controller.execute import Executor
from enginewright.controller.informer import Informer, watches
from enginewright.controller.job_turns import JobTurns
from enginewright.controller.measured import MeasurementPolls
from enginewright.controller.observe import DEPLOYMENT, POD
from enginewright.controller.operator_namespace import OperatorNamespace
from enginewright.controller.poll_targets import poll_target
from enginewright.controller.reconcile import ModelReconciler
from enginewright.controller.routing import ModelKey, Router, Sinks
from enginewright.controller.shared import Shared
from enginewright.controller.single_flight import SingleFlight
from enginewright.kube.api import KubeApi
from enginewright.kube.pod_http import NoAnswer, PodAddress
from enginewright.kube.resources import DEPLOYMENTS, PODS
from enginewright.observed.pods import PodView
from enginewright.plan.plan import plan
from enginewright_contract.images import ImageFacts
from enginewright_contract.measurements import Measurements
from enginewright_contract.verdict import Verdict

from tests.support.plan_objects import CPU_IMAGE, image_facts, verdict
from tests.support.plan_world import CONFIG

PASSES: Final = 20  # in which a plan must come to rest


class _Images:
    """What all configured images contain."""

    facts: Final[dict[str, ImageFacts]] = {CPU_IMAGE: image_facts("cpu")}
    failures: Final[dict[str, str]] = {}

    def require(self, images: object) -> None:
        pass


@dataclass
class Sidecars:
    """What the sidecars respond: `PodHttp`."""

    measured: dict[str, Measurements] = field(default_factory=dict)  # by pod; absent: it starts

    async def get(self, pod: PodAddress, path: str, query: str = "") -> bytes:  # noqa: ARG002 - PodHttp has them
        if pod.name not in self.measured:
            raise NoAnswer
        return self.measured[pod.name].to_json().encode()

    async def close(self) -> None:
        pass


class OperatorPasses:
    """One process of the operator, for one model, all of whose images are known: all that is lost when it is killed."""

    def __init__(
        self, api: KubeApi, key: ModelKey, sidecars: Sidecars, now: Callable[[], datetime]
    ) -> None:
        self._key = key
        self._sidecars = sidecars
        self._due = False
        self._polled: set[str] = set()  # uids of pods
        self._cache = ObjectCache()
        self.router = Router(
            self._cache,
            Sinks(
                model=self._queue,
                engine=lambda _key: None,
                accelerator_class=lambda _name: None,
                image=lambda _key: None,
                proposals=lambda: None,
                collection=lambda _namespace: None,
            ),
        )
        self._informer = Informer(
            api,
            self.router,
            watches(CONFIG.store.claim),
            namespaces=frozenset({key.namespace}),
        )
        self._measured = MeasurementPolls(self._cache, sidecars)
        self._recorder = EventRecorder(api, clock=lambda: now().timestamp(), now=now)
        shared = Shared(
            config=CONFIG,
            api=api,
            cache=self._cache,
            pods=PodCatchUp(api, self._cache),
            executor=Executor(api, self._cache, written=self.router.on_written),
            recorder=self._recorder,
            own_namespace=OperatorNamespace(api, CONFIG.namespace, None),
            bucket_user=BucketUser(api, CONFIG),
            now=now,
        )
        self._models = ModelReconciler(
            shared,
            _Images(),
            plan,
            SingleFlight(self._cache, queue=self._queue, now=now),
            JobTurns(self._cache, CONFIG.job_limits),
            verdicts=self._verdicts,
            measured=self._measured.get_measurements,
        )

    async def start(self) -> None:
        """List everything, and pass before any sidecar has been polled."""
        await self._informer.list_all()
        self.router.begin()
        await self.settle()

    async def poll(self) -> None:
        """Poll the sidecars, and reconcile."""
        deployments = self._cache.views(DEPLOYMENT, self._cache.all(DEPLOYMENTS))
        pods = self._cache.views(POD, self._cache.all(PODS))
        self._measured.compare(deployments, pods)
        for pod in pods:
            if (target := poll_target(pod)) and pod.name in self._sidecars.measured:
                self._polled.add(pod.uid)
                if self._measured.concerns(pod):
                    await self._measured.poll(target.address, pod)
        self._due = True
        await self.settle()

    async def settle(self) -> None:
        """Reconcile until nothing changes any more."""
        for _ in range(PASSES):
            if not self._due:
                return
            self._due = False
            result = await self._models.reconcile(self._key)
            self._due |= result.requeue
            await self._write_events()
        raise AssertionError(f"no rest after {PASSES} passes")

    async def _write_events(self) -> None:
        writer = asyncio.create_task(self._recorder.run())
        drained = asyncio.create_task(self._recorder.drain())
        ended, _ = await asyncio.wait({writer, drained}, return_when=asyncio.FIRST_COMPLETED)
        for task in (writer, drained):
            task.cancel()
        await asyncio.gather(writer, drained, return_exceptions=True)
        if writer in ended:
            writer.result()  # it was killed

    def _verdicts(self, pods: Iterable[PodView]) -> dict[str, Verdict]:
        return {pod.name: verdict() for pod in pods if pod.uid in self._polled}

    def _queue(self, key: ModelKey) -> None:
        self._due |= key == self._key
