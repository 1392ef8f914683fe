"""InferenceModels: gather the facts from the cache, plan, execute. No decision is made here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from enginewright_contract.images import ImageFacts
from enginewright_contract.measurements import Measurements
from enginewright_contract.verdict import Verdict

from enginewright.api.inference_model import InferenceModel
from enginewright.controller.apply_plan import apply_plan
from enginewright.controller.comparisons import Comparisons
from enginewright.controller.facts import gather
from enginewright.controller.job_turns import JobTurns
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.observe import JOB
from enginewright.controller.parse import readable
from enginewright.controller.refusals import read_refusals
from enginewright.controller.routing import ModelKey
from enginewright.controller.shared import Shared
from enginewright.controller.single_flight import SingleFlight
from enginewright.kube.errors import Transient
from enginewright.kube.resources import INFERENCE_MODELS, JOBS, PODS
from enginewright.observed.pods import PodView
from enginewright.plan.types import Facts, Plan


class Images(Protocol):
    """What is known of the configured images, by reference."""

    @property
    def facts(self) -> dict[str, ImageFacts]:
        """Return what the probed images hold."""

    def require(self, images: Iterable[str]) -> None:
        """Probe images that are not configured, if they are not known."""

    @property
    def failures(self) -> dict[str, str]:
        """Return why images could not be probed."""


@dataclass(frozen=True)
class ModelReconciler:
    """Reconciles one model."""

    shared: Shared
    images: Images
    plan: Callable[[Facts], Plan]
    flights: SingleFlight
    turns: JobTurns
    verdicts: Callable[[Iterable[PodView]], Mapping[str, Verdict]] = lambda _pods: {}
    silent: Callable[[Iterable[PodView]], frozenset[str]] = lambda _pods: frozenset()
    measured: Callable[[Iterable[PodView]], Mapping[str, Measurements | None]] = lambda _pods: {}
    rolled_back: Callable[[str], None] = lambda _reason: None
    takes_turn: Callable[[ModelKey], bool] = lambda _key: True  # to move to new images and classes
    planned: Callable[[ModelKey], None] = lambda _key: None
    comparisons: Comparisons = field(default_factory=Comparisons)

    async def reconcile(self, key: ModelKey) -> ReconcileResult:
        """Do what the model needs now. Raises KubeError."""
        unsure = False
        try:
            result = await self._reconcile(key)
        except Transient:
            unsure = True
            raise
        else:
            unsure = result.unsure
            return result
        finally:
            self.flights.on_reconciled(key, unsure=unsure)
            self.turns.on_reconciled(key)

    async def _reconcile(self, key: ModelKey) -> ReconcileResult:
        shared, cache = self.shared, self.shared.cache
        observed = cache.get(INFERENCE_MODELS, key.namespace, key.name)
        if observed is None or observed["metadata"].get("deletionTimestamp"):
            # its objects are garbage collected
            self.comparisons.forget(key)
            self.planned(key)
            return ReconcileResult(exists=False)
        model = readable(InferenceModel, observed, shared.recorder)
        if model is None:
            return ReconcileResult()
        jobs = cache.views(JOB, cache.of_model(JOBS, key.namespace, key.name))
        await shared.pods.catch_up(jobs)
        pods = cache.of_model(PODS, key.namespace, key.name)
        jobs = await read_refusals(shared, jobs, pods)
        if model.status.images:
            self.images.require(image.image for image in model.status.images.current)
        facts = gather(
            cache,
            model,
            shared.config,
            shared.now(),
            self.images.facts,
            image_failures=self.images.failures,
            bucket_user=shared.bucket_user.known,
            may_move=self.takes_turn(key),
            jobs=jobs,
            verdicts=self.verdicts,
            silent=self.silent,
            measured=self.measured,
        )

        def decide(facts: Facts) -> Plan:
            """Plan with what other models do now, and note what this one starts before another is planned."""
            plan = self.plan(
                replace(
                    facts,
                    leaders=self.flights.leaders(key),
                    followed=self.flights.find_followed(model),
                    job_limit=self.turns.why_not_now(model),
                )
            )
            if not plan.needs:  # else it is made again
                self.flights.on_planned(key, plan)
                self.turns.on_planned(model, plan)
            return plan

        plan = await self.comparisons.plan(key, decide, facts)
        result = await apply_plan(plan, observed, shared)
        if plan.rolled_back:
            self.rolled_back(plan.rolled_back)
        self.planned(key)
        return result
