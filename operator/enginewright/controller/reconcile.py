"""InferenceModels: gather the facts from the cache, plan, execute. No decision is made here."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_model import InferenceModel
from enginewright.contract.images import ImageFacts
from enginewright.contract.verdict import Verdict
from enginewright.controller.cache import Cache
from enginewright.controller.carry_out import carry_out
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.children import of_jobs, of_owner
from enginewright.controller.engine_lookup import EngineLookup
from enginewright.controller.events import EventRecorder
from enginewright.controller.execute import Executor
from enginewright.controller.loop import Outcome
from enginewright.controller.observe import (
    BUDGET,
    CLAIM,
    DEPLOYMENT,
    JOB,
    NODE,
    POD,
    REVISION,
    Kind,
    Viewed,
)
from enginewright.controller.parse import parsed, readable
from enginewright.controller.routing import ModelKey
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIMS,
    INFERENCE_MODELS,
    JOBS,
    NODES,
)
from enginewright.observed.pods import PodView
from enginewright.plan.types import Config, Facts, Plan


class Images(Protocol):
    """What is known of the configured images, by reference."""

    @property
    def facts(self) -> dict[str, ImageFacts]:
        """Return what the probed images hold."""
        ...

    @property
    def failures(self) -> dict[str, str]:
        """Return why images could not be probed."""
        ...


class ModelReconciler:
    """One pass over one model."""

    def __init__(
        self,
        pods: PodCatchUp,
        cache: Cache,
        executor: Executor,
        recorder: EventRecorder,
        images: Images,
        config: Config,
        plan: Callable[[Facts], Plan],
        *,
        verdicts: Callable[[Iterable[PodView]], Mapping[str, Verdict]] = lambda _pods: {},
        silent: Callable[[Iterable[PodView]], frozenset[str]] = lambda _pods: frozenset(),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._pods = pods
        self._cache = cache
        self._executor = executor
        self._recorder = recorder
        self._images = images
        self._config = config
        self._plan = plan
        self._verdicts = verdicts
        self._silent = silent
        self._now = now

    async def reconcile(self, key: ModelKey) -> Outcome:
        """Do what the model needs now. Raises KubeError."""
        observed = self._cache.get(INFERENCE_MODELS, key.namespace, key.name)
        if observed is None or observed["metadata"].get("deletionTimestamp"):
            return Outcome(exists=False)  # what it owned is left to Kubernetes' garbage collection
        model = readable(InferenceModel, observed, self._recorder)
        if model is None:
            return Outcome()
        jobs = self._cache.of_model(JOBS, key.namespace, key.name)
        await self._pods.catch_up(self._cache.views(JOB, jobs))
        plan = self._plan(self._facts(key, model))
        again = await carry_out(plan, observed, self._executor, self._recorder)
        return Outcome(again=again, requeue_after=plan.requeue_after)

    def _facts(self, key: ModelKey, model: InferenceModel) -> Facts:
        cache = self._cache
        uid = model.metadata.uid

        def labelled(kind: Kind[Viewed]) -> tuple[Viewed, ...]:
            return cache.views(kind, cache.of_model(kind.resource, key.namespace, key.name))

        jobs = of_owner(uid, labelled(JOB))
        pods = of_jobs(jobs, labelled(POD))
        claim = cache.get(CLAIMS, key.namespace, self._config.store.claim)
        return Facts(
            model=model,
            config=self._config,
            now=self._now(),
            classes=tuple(parsed(AcceleratorClass, cache.all(ACCELERATOR_CLASSES))),
            nodes=cache.views(NODE, cache.all(NODES)),
            images=self._images.facts,
            image_failures=self._images.failures,
            store=next(iter(cache.views(CLAIM, (claim,) if claim else ())), None),
            jobs=jobs,
            pods=pods,
            deployments=of_owner(uid, labelled(DEPLOYMENT)),
            budgets=of_owner(uid, labelled(BUDGET)),
            revisions=of_owner(uid, labelled(REVISION)),
            engines=EngineLookup(cache, key.namespace),
            verdicts=self._verdicts(pods),
            silent=self._silent(pods),
        )
