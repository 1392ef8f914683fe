"""The controllers over the API server in memory, as one process of the operator has them."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

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
from enginewright.controller.images import ImageReconciler
from enginewright.controller.job_turns import JobTurns
from enginewright.controller.metrics import EngineMetrics
from enginewright.controller.operator_namespace import OperatorNamespace
from enginewright.controller.proposals import ProposalReconciler
from enginewright.controller.reconcile import ModelReconciler
from enginewright.controller.routing import EngineKey
from enginewright.controller.shared import Shared, utc_now
from enginewright.controller.single_flight import SingleFlight
from enginewright.kube.resources import resource_of
from enginewright.plan.plan import plan
from enginewright.plan.types import Config, Facts, Plan
from prometheus_client import CollectorRegistry
from typing_extensions import override

from tests.support.fake_kube import at_once
from tests.support.listings import show
from tests.support.plan_objects import KINDS, NAMESPACE, Json
from tests.support.plan_world import CONFIG
from tests.support.simulation import Simulation


class World(Simulation):
    """All reconcilers over one cache; `deployment` is the operator's own, `plan` decides on models.

    `settle` has the watch show everything and passes over the InferenceEngines; what a test puts into `kube` itself the
    watch has not shown yet.
    """

    def __init__(
        self, namespace: str = NAMESPACE, config: Config = CONFIG, deployment: str | None = None
    ) -> None:
        super().__init__(namespace)
        self.config, self.deployment = config, deployment
        self.registry = CollectorRegistry()
        self.metrics = EngineMetrics(self.registry)
        self.plan: Callable[[Facts], Plan] = plan
        self.seen: list[Facts] = []  # that models were planned from
        self.images_changed = 0
        self.images_required: list[str] = []  # keys
        self.used: list[str] = []  # engines whose users may have changed
        self.restart()

    def restart(self) -> None:
        """Restart the process: its memory is lost, lists return the existing objects."""
        kube, cache, config = self.kube, ObjectCache(), self.config
        self.cache = cache
        self.executor = Executor(kube, cache)
        self.home = OperatorNamespace(kube, config.namespace, self.deployment)
        self.bucket_user = BucketUser(kube, config)
        self.recorder = EventRecorder(kube, clock=time.monotonic, now=utc_now)
        shared = Shared(
            config=config,
            api=kube,
            cache=cache,
            pods=PodCatchUp(kube, cache),
            executor=self.executor,
            recorder=self.recorder,
            own_namespace=self.home,
            bucket_user=self.bucket_user,
            now=lambda: self.now,
        )
        self.images = ImageReconciler(
            shared, changed=self._image_changed, queue=self.images_required.append
        )
        turns = JobTurns(cache, config.job_limits)
        self.proposals = ProposalReconciler(shared)
        self.classes = ClassReconciler(shared)
        self.engines = EngineReconciler(
            shared,
            self.metrics,
            EngineUses(cache, lambda _namespace, name: self.used.append(name)),
            turns,
            progress=lambda at, job: self.progress.get(job) if at == self.namespace else None,
        )
        self.stores = CollectorRegistry()
        collection_metrics = CollectionMetrics(self.stores)
        StoreCollector(cache, collection_metrics, self.stores, leads=lambda: True)
        self.collections = CollectionReconciler(shared, self.images, collection_metrics)
        self.models = ModelReconciler(
            shared,
            self.images,
            self._make_plan,
            SingleFlight(cache, now=lambda: self.now),
            turns,
        )
        self.watch()

    def _image_changed(self) -> None:
        self.images_changed += 1

    def _make_plan(self, facts: Facts) -> Plan:
        self.seen.append(facts)
        return self.plan(facts)

    def watch(self) -> None:
        """Deliver all existing objects, and deletions, to the watch."""
        for resource in KINDS.values():
            show(self.cache, resource, self.kube.listing(resource))

    @override
    def pass_once(self) -> bool:
        self.watch()
        names = [entry["metadata"]["name"] for entry in self.all("InferenceEngine")]
        keys = [EngineKey(self.namespace, name) for name in names]
        return any(at_once(self.engines.reconcile(key)).requeue for key in keys)

    def put(self, obj: Mapping[str, Any]) -> Json:
        """Replace `obj` as another client, and deliver it to the watch."""
        stored = self.kube.put(obj)
        self.cache.observe(resource_of(obj["apiVersion"], obj["kind"]), stored)
        return stored

    async def events(self) -> list[str]:
        """Return the reasons of all Events so far."""
        writer = asyncio.create_task(self.recorder.run())
        await asyncio.wait_for(self.recorder.drain(), 5)
        writer.cancel()
        return [
            object_["reason"]
            for object_ in self.kube.objects.values()
            if object_["kind"] == "Event"
        ]

    def count(self, name: str, **labels: str) -> float:
        """Return a metric of the operator; 0 where it has no such series."""
        return self.registry.get_sample_value(name, labels) or 0
