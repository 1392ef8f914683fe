"""Gives models and InferenceEngines their turns to create a Job, where the administrator limits how many run.

What runs is read from the cache. In memory are those that wait, who ask again after a restart, and Jobs that are
being created.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.controller.cache import ObjectCache
from enginewright.controller.routing import EngineKey, ModelKey
from enginewright.kube.resources import INFERENCE_ENGINES, INFERENCE_MODELS, JOBS
from enginewright.manifests.labels import COMPONENT
from enginewright.observed.jobs import job_view
from enginewright.plan.fleet.turns import JobOwner, turns
from enginewright.plan.types import JobLimits, Plan

_COUNTED: Final = frozenset({"prepare", "engine-lookup", "engine"})  # components of Jobs
_Key: TypeAlias = tuple[str, str, str]  # kind, namespace, name


class JobTurns:
    """The turns of all models and InferenceEngines in the cache, which must still be empty."""

    def __init__(
        self,
        cache: ObjectCache,
        limits: JobLimits,
        *,
        model: Callable[[ModelKey], None] = lambda _key: None,
        engine: Callable[[EngineKey], None] = lambda _key: None,
    ) -> None:
        """Create it; `model` and `engine` plan one again."""
        self._limits = limits
        self._queue_model = model
        self._queue_engine = engine
        self._waiting: dict[_Key, JobOwner] = {}
        self._running: dict[tuple[str, str], None] = {}  # namespaces and names of Jobs
        self._starts: dict[_Key, list[tuple[str, str]]] = {}  # Jobs that are being created
        self._planned: set[_Key] = set()  # in the reconcile in progress
        if limits.total or limits.per_namespace:
            cache.listen(JOBS, self._job_observed)
            for resource in (INFERENCE_MODELS, INFERENCE_ENGINES):
                cache.listen(resource, partial(self._owner_observed, resource.kind))

    def why_not_now(self, owner: InferenceModel | InferenceEngine) -> str:
        """Return why a model or an engine creates no Job now, as a sentence; "" if it may."""
        if not (self._limits.total or self._limits.per_namespace):
            return ""
        mine = _owner(owner)
        # a plan may be made twice before it is carried out
        running = self._counts(but=(mine.kind, mine.namespace, mine.name))
        return turns({*self._waiting.values(), mine}, running, self._limits)[mine]

    def on_planned(self, owner: InferenceModel | InferenceEngine, plan: Plan) -> None:
        """Record what a plan creates or waits for, before another one is planned."""
        mine = _owner(owner)
        key: _Key = (mine.kind, mine.namespace, mine.name)
        self._planned.add(key)
        self._starts.pop(key, None)
        if plan.awaits_turn:
            self._waiting[key] = mine
            return
        self._waiting.pop(key, None)
        jobs = [entry["metadata"] for entry in plan.apply if entry["kind"] == JOBS.kind]
        if jobs:
            self._starts[key] = [(job["namespace"], job["name"]) for job in jobs]

    def on_reconciled(self, key: ModelKey | EngineKey) -> None:
        """Record that a reconcile has ended; one that planned nothing waits for no turn."""
        kind = InferenceModel.kind if isinstance(key, ModelKey) else InferenceEngine.kind
        mine: _Key = (kind, *key)
        if mine not in self._planned:
            self._waiting.pop(mine, None)
        self._planned.discard(mine)
        self._starts.pop(mine, None)
        self._wake()

    def _counts(self, but: _Key | None = None) -> Counter[str]:
        """Return the Jobs that run or are being created by namespace, except those that `but` creates."""
        starting = {job for key, jobs in self._starts.items() for job in jobs if key != but}
        return Counter(namespace for namespace, _ in {*self._running, *starting})

    def _wake(self) -> None:
        if not self._waiting:
            return
        for key, why in turns(self._waiting.values(), self._counts(), self._limits).items():
            if why:
                continue
            if key.kind == InferenceModel.kind:
                self._queue_model(ModelKey(key.namespace, key.name))
            else:
                self._queue_engine(EngineKey(key.namespace, key.name))

    def _job_observed(self, name: tuple[str, str], obj: Mapping[str, Any] | None) -> None:
        job = job_view(obj) if obj is not None else None
        if job and job.label(COMPONENT) in _COUNTED and job.proceeds:
            self._running[name] = None
        elif name in self._running:
            del self._running[name]
            self._wake()

    def _owner_observed(
        self, kind: str, name: tuple[str, str], obj: Mapping[str, Any] | None
    ) -> None:
        is_gone = obj is None or obj["metadata"].get("deletionTimestamp")
        if is_gone and self._waiting.pop((kind, *name), None):
            self._wake()


def _owner(owner: InferenceModel | InferenceEngine) -> JobOwner:
    metadata = owner.metadata
    created = metadata.creation_timestamp.isoformat() if metadata.creation_timestamp else ""
    return JobOwner(created, metadata.namespace, owner.kind, metadata.name)
