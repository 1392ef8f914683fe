"""Collections of the stores: gather the facts, plan, list what is needed, execute. No decision is made here.

What is needed is read from the API server when a Job is created, not from the cache: a watch may hang without an error.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any

from enginewright.api.conditions import StatusReason
from enginewright.controller.collection_metrics import CollectionMetrics, collections_of
from enginewright.controller.informer import MANAGED
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.observe import NODE, POD
from enginewright.controller.reconcile import Images
from enginewright.controller.shared import Shared
from enginewright.kube.api import JsonObject
from enginewright.kube.errors import NotFound, Terminating
from enginewright.kube.resources import (
    CLAIMS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    Resource,
)
from enginewright.manifests.labels import STORE_MAX_SIZE
from enginewright.observed.pods import JOB_NAME
from enginewright.plan.store.collection import (
    Blocked,
    CollectionFacts,
    CollectionSteps,
    EndedCollection,
    NamespaceObjects,
    collecting_image,
    collection,
    find_needed_keys,
    plan_collection,
)
from enginewright.plan.types import EventIntent

BLOCKED_RETRY = 600.0  # seconds

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CollectionReconciler:
    """Reconciles one store; its keys are names of namespaces."""

    shared: Shared
    images: Images
    metrics: CollectionMetrics
    since: dict[str, datetime] = field(default_factory=dict)  # by namespace
    # namespaces of which this process has found whether their store is blocked
    looked: set[str] = field(default_factory=set)

    async def reconcile(self, namespace: str) -> ReconcileResult:
        """Do what the store needs now. Raises KubeError."""
        self.since.setdefault(namespace, self.shared.now())
        await self.shared.pods.catch_up(collections_of(self.shared.cache, namespace))
        facts = self._facts(namespace)
        plan = plan_collection(facts)
        wrote = await self._execute(plan)
        # no Job tells a new process that the first one was blocked, until it is due again
        looks = plan.first and (namespace not in self.looked or namespace in self.metrics.blocked)
        if not plan.starts and not looks:
            self.looked.add(namespace)
            self.metrics.blocked.pop(namespace, None)
            return ReconcileResult(
                exists=plan.exists, requeue=wrote, requeue_after=plan.requeue_after
            )
        try:
            result = await self._start(facts, plan)
        except Terminating as error:
            _logger.info("skipped: %s", error.message)
            result = ReconcileResult(exists=False)
        self.looked.add(namespace)
        return result

    def _facts(self, namespace: str) -> CollectionFacts:
        cache, config = self.shared.cache, self.shared.config
        jobs = collections_of(cache, namespace)
        uids = {job.uid for job in jobs}
        by_job = (cache.find(PODS, namespace, JOB_NAME, job.name) for job in jobs)
        pods = cache.views(POD, chain.from_iterable(by_job))
        return CollectionFacts(
            namespace=namespace,
            config=config,
            now=self.shared.now(),
            since=self.since[namespace],
            has_store=self._has_store(namespace),
            image=self.images.facts.get(collecting_image(config)),
            jobs=jobs,
            pods=tuple(pod for pod in pods if pod.owners.get(JOBS.kind) in uids),
            nodes=cache.views(NODE, cache.all(NODES)),
        )

    def _has_store(self, namespace: str) -> bool:
        cache, store = self.shared.cache, self.shared.config.store
        if store.bucket is None:
            return cache.get(CLAIMS, namespace, store.claim) is not None
        kinds = (INFERENCE_MODELS, INFERENCE_ENGINES, CONTROLLER_REVISIONS)
        return any(cache.names(kind, namespace) for kind in kinds)

    async def _execute(self, plan: CollectionSteps) -> bool:
        wrote = False
        for ended in plan.ended:
            if await self.shared.executor.set_metadata(ended.record()):
                wrote = True
                self._report(ended)
        for ref in plan.delete:
            wrote |= await self.shared.executor.delete(ref)
        return wrote

    def _report(self, ended: EndedCollection) -> None:
        self.metrics.count(ended.outcome)
        collected = ended.outcome.collected
        _logger.info("collection: %s", collected.to_json() if collected else ended.outcome.failure)
        job = self.shared.cache.get(JOBS, ended.job.namespace, ended.job.name)
        if ended.event and job:
            self.shared.recorder.record(self._regarding(ended.job.namespace) or job, ended.event)

    async def _start(self, facts: CollectionFacts, plan: CollectionSteps) -> ReconcileResult:
        """Create the Job, or report why it may not begin, even before it is due."""
        namespace, as_of = facts.namespace, self.shared.now()
        annotations = await self._annotations(namespace)
        later = ReconcileResult(requeue_after=plan.requeue_after)
        if annotations is None:
            return ReconcileResult(exists=False) if plan.starts else later
        objects = await self._list(namespace) if plan.starts else self._read_cache(namespace)
        job = collection(
            facts,
            plan.starts or plan.first,
            find_needed_keys(objects),
            as_of,
            annotations.get(STORE_MAX_SIZE),
            await self.shared.bucket_user.uid(),
        )
        if isinstance(job, Blocked):
            return self._block(facts, job)
        if plan.starts:
            await self.shared.executor.apply(job)
        self.metrics.blocked.pop(namespace, None)
        # the end of the Job queues it again
        return ReconcileResult() if plan.starts else later

    def _block(self, facts: CollectionFacts, blocked: Blocked) -> ReconcileResult:
        if self.metrics.blocked.get(facts.namespace) != blocked.message:
            _logger.warning("%s", blocked.message)
        self.metrics.blocked[facts.namespace] = blocked.message
        about: list[Any] = [object_.obj for object_ in blocked.objects]
        event = EventIntent("Warning", StatusReason.COLLECTION_BLOCKED, blocked.message)
        shown = self._regarding(facts.namespace) or self.shared.own_namespace.deployment
        for entry in about or filter(None, (shown,)):
            self.shared.recorder.record(entry, event)
        return ReconcileResult(requeue_after=BLOCKED_RETRY)

    def _regarding(self, namespace: str) -> JsonObject | None:
        """Return the object in the cluster that stands for the store, which a bucket does not have."""
        store = self.shared.config.store
        return None if store.bucket else self.shared.cache.get(CLAIMS, namespace, store.claim)

    async def _list(self, namespace: str) -> NamespaceObjects:
        async def items(resource: Resource, labels: str | None = None) -> tuple[JsonObject, ...]:
            return tuple((await self.shared.api.list(resource, namespace, labels=labels)).items)

        return NamespaceObjects(
            models=await items(INFERENCE_MODELS),
            engines=await items(INFERENCE_ENGINES),
            revisions=await items(CONTROLLER_REVISIONS, MANAGED),
            deployments=await items(DEPLOYMENTS, MANAGED),
            jobs=await items(JOBS, MANAGED),
        )

    def _read_cache(self, namespace: str) -> NamespaceObjects:
        """Return the same from the cache: enough for a report, such as after a start, of all stores at once."""
        cache = self.shared.cache
        return NamespaceObjects(
            models=cache.in_namespace(INFERENCE_MODELS, namespace),
            engines=cache.in_namespace(INFERENCE_ENGINES, namespace),
            revisions=cache.in_namespace(CONTROLLER_REVISIONS, namespace),
            deployments=cache.in_namespace(DEPLOYMENTS, namespace),
            jobs=cache.in_namespace(JOBS, namespace),
        )

    async def _annotations(self, namespace: str) -> Mapping[str, str] | None:
        """Return the namespace's annotations, or None if it is terminating and accepts no Job."""
        try:
            metadata = (await self.shared.api.get(NAMESPACES, None, namespace))["metadata"]
        except NotFound:
            return None
        return None if "deletionTimestamp" in metadata else metadata.get("annotations") or {}
