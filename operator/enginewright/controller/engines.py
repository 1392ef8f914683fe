"""InferenceEngines: gather the facts from the cache, plan, execute, count. No decision is made here."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from enginewright_contract.report import Progress

from enginewright.api.inference_engine import InferenceEngine
from enginewright.controller.apply_plan import apply_plan
from enginewright.controller.children import of_jobs, of_owner
from enginewright.controller.engine_uses import EngineUses, SettledUsers
from enginewright.controller.job_turns import JobTurns
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.metrics import EngineMetrics
from enginewright.controller.observe import CLAIM, JOB, NODE, POD
from enginewright.controller.parse import readable
from enginewright.controller.references import is_tried_again, preparations, references
from enginewright.controller.refusals import read_refusals
from enginewright.controller.routing import EngineKey
from enginewright.controller.shared import Shared
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import CLAIMS, INFERENCE_ENGINES, JOBS, NODES, PODS
from enginewright.observed.jobs import JobView
from enginewright.plan.engines.build import BuildFacts
from enginewright.plan.engines.engine import plan_engine, users_of
from enginewright.plan.types import EventIntent, ObjectRef


@dataclass(frozen=True)
class EngineReconciler:
    """Reconciles one InferenceEngine; `progress` returns that of a Job's build, by namespace and name."""

    shared: Shared
    metrics: EngineMetrics
    uses: EngineUses
    turns: JobTurns
    progress: Callable[[str, str], Progress | None] = lambda _namespace, _job: None
    settled: SettledUsers = field(default_factory=SettledUsers)

    async def reconcile(self, key: EngineKey) -> ReconcileResult:
        """Do what the engine needs now. Raises KubeError."""
        try:
            return await self._reconcile(key)
        finally:
            self.turns.on_reconciled(key)

    async def _reconcile(self, key: EngineKey) -> ReconcileResult:
        shared, cache = self.shared, self.shared.cache
        observed = cache.get(INFERENCE_ENGINES, key.namespace, key.name)
        if observed is None or observed["metadata"].get("deletionTimestamp"):
            # its Jobs are garbage collected
            self.settled.forget(key)
            return ReconcileResult(exists=False)
        engine = readable(InferenceEngine, observed, shared.recorder)
        if engine is None:
            return ReconcileResult()
        jobs = cache.views(JOB, cache.of_engine(JOBS, key.namespace, key.name))
        await shared.pods.catch_up(jobs)
        pods = cache.of_engine(PODS, key.namespace, key.name)
        jobs = await read_refusals(shared, jobs, pods)
        users = users_of(engine, self.uses.of_namespace(key.namespace))
        users, due_in = self.settled.of(key, users, now := shared.now())
        plan = plan_engine(self._facts(key, engine, jobs, users, now))
        if plan.removed:
            await self._remove(key, observed, plan.removed)
            return ReconcileResult(exists=False)
        self.turns.on_planned(engine, plan)
        result = await apply_plan(plan, observed, shared)
        if plan.ended:
            self.metrics.count(plan.ended)
        later = min(filter(None, (result.requeue_after, due_in)), default=None)
        return replace(result, requeue_after=later)

    def _describe_store(self, namespace: str) -> str:
        cache, store = self.shared.cache, self.shared.config.store
        claim = cache.get(CLAIMS, namespace, store.claim)
        views = cache.views(CLAIM, (claim,) if claim else ())
        return store.describe(namespace, next(iter(views), None))

    async def _remove(self, key: EngineKey, observed: JsonObject, event: EventIntent) -> None:
        ref = ObjectRef(observed["apiVersion"], observed["kind"], *key)
        if await self.shared.executor.delete(ref):
            self.shared.recorder.record(observed, event)
        self.settled.forget(key)

    def _facts(
        self,
        key: EngineKey,
        engine: InferenceEngine,
        labelled: Iterable[JobView],
        users: tuple[str, ...],
        now: datetime,
    ) -> BuildFacts:
        cache = self.shared.cache
        jobs = of_owner(engine.metadata.uid, labelled, INFERENCE_ENGINES)
        pods = cache.views(POD, cache.of_engine(PODS, key.namespace, key.name))
        running = [job.name for job in jobs if not job.ended]
        reported = ((name, self.progress(key.namespace, name)) for name in running)
        return BuildFacts(
            engine=engine,
            config=self.shared.config,
            now=now,
            nodes=cache.views(NODE, cache.all(NODES)),
            jobs=jobs,
            pods=of_jobs(jobs, pods),
            progress={name: progress for name, progress in reported if progress},
            references=tuple(references(cache, key).values()),
            users=users,
            prepared=preparations(cache, key),
            tried_again=is_tried_again(cache, key.namespace, engine),
            job_limit=self.turns.why_not_now(engine),
            store=self._describe_store(key.namespace),
        )
