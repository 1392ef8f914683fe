"""InferenceEngines: gather the facts from the cache, plan, execute, count. No decision is made here."""

from collections.abc import Callable
from datetime import UTC, datetime

from enginewright.api.inference_engine import InferenceEngine
from enginewright.contract.report import Progress
from enginewright.controller.cache import Cache
from enginewright.controller.carry_out import carry_out
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.children import of_jobs, of_owner
from enginewright.controller.events import EventRecorder
from enginewright.controller.execute import Executor
from enginewright.controller.loop import Outcome
from enginewright.controller.metrics import EngineMetrics
from enginewright.controller.observe import JOB, POD
from enginewright.controller.parse import readable
from enginewright.controller.routing import EngineKey
from enginewright.kube.resources import INFERENCE_ENGINES, JOBS, PODS
from enginewright.plan.engines import BuildFacts, plan_engine
from enginewright.plan.types import Config


class EngineReconciler:
    """One pass over one InferenceEngine.

    `progress` tells how far the build of a Job is, by namespace and name; None: not known.
    """

    def __init__(
        self,
        pods: PodCatchUp,
        cache: Cache,
        executor: Executor,
        recorder: EventRecorder,
        metrics: EngineMetrics,
        config: Config,
        *,
        progress: Callable[[str, str], Progress | None] = lambda _namespace, _job: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._pods = pods
        self._cache = cache
        self._executor = executor
        self._recorder = recorder
        self._metrics = metrics
        self._config = config
        self._progress = progress
        self._now = now

    async def reconcile(self, key: EngineKey) -> Outcome:
        """Do what the engine needs now. Raises KubeError."""
        observed = self._cache.get(INFERENCE_ENGINES, key.namespace, key.name)
        if observed is None or observed["metadata"].get("deletionTimestamp"):
            return Outcome(exists=False)  # its Jobs are left to Kubernetes' garbage collection
        engine = readable(InferenceEngine, observed, self._recorder)
        if engine is None:
            return Outcome()
        jobs = self._cache.of_engine(JOBS, key.namespace, key.name)
        await self._pods.catch_up(self._cache.views(JOB, jobs))
        plan = plan_engine(self._facts(key, engine))
        again = await carry_out(plan, observed, self._executor, self._recorder)
        if plan.ended:
            self._metrics.count(plan.ended)
        return Outcome(again=again, requeue_after=plan.requeue_after)

    def _facts(self, key: EngineKey, engine: InferenceEngine) -> BuildFacts:
        cache = self._cache
        labelled = cache.views(JOB, cache.of_engine(JOBS, key.namespace, key.name))
        jobs = of_owner(engine.metadata.uid, labelled, INFERENCE_ENGINES)
        pods = cache.views(POD, cache.of_engine(PODS, key.namespace, key.name))
        running = [job.name for job in jobs if not job.ended]
        told = ((name, self._progress(key.namespace, name)) for name in running)
        return BuildFacts(
            engine=engine,
            config=self._config,
            now=self._now(),
            jobs=jobs,
            pods=of_jobs(jobs, pods),
            progress={name: progress for name, progress in told if progress},
        )
