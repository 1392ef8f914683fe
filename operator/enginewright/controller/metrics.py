"""The operator's own metrics about models and engines.

Models are counted from the cache at every scrape, engines when one of their Jobs has finished. Only
models that are not ready have named series, up to a limit.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from enginewright_contract.reasons import Reason
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from enginewright.api.conditions import ConditionType, StatusReason
from enginewright.api.inference_model_status import TargetPhase
from enginewright.controller.cache import ObjectCache
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import INFERENCE_MODELS
from enginewright.plan.engines.engine import Ended

NAMED_MODELS: Final = 100  # not ready, with named series; the rest are counted
_STATUSES: Final = ("True", "False", "Unknown")
_BUILD_SECONDS: Final = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)


@dataclass(frozen=True, order=True)
class _NotReady:
    """A model that is not ready, in the order in which models are named."""

    rank: int  # what a user looks at first: stalled, in progress, suspended
    namespace: str
    name: str
    reason: str
    stalled: bool

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> Self | None:
        """Return the model, or None if it is ready or being deleted."""
        metadata = model["metadata"]
        conditions = {
            item["type"]: item for item in (model.get("status") or {}).get("conditions") or ()
        }
        ready = conditions.get(ConditionType.READY) or {}
        if ready.get("status") == "True" or metadata.get("deletionTimestamp"):
            return None
        reason = str(ready.get("reason") or StatusReason.NOT_YET_VERIFIED)
        stalled = (conditions.get(ConditionType.STALLED) or {}).get("status") == "True"
        rank = 2 if reason == StatusReason.SUSPENDED else int(not stalled)
        return cls(rank, metadata["namespace"], metadata["name"], reason, stalled)


class ModelCollector(Collector):
    """The conditions of models, counted, and by name where they are not ready."""

    def __init__(
        self, cache: ObjectCache, registry: CollectorRegistry, *, leads: Callable[[], bool]
    ) -> None:
        self._cache = cache
        self._leads = leads
        registry.register(self)

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield whether this process leads, and if so the metrics of all models."""
        leads = self._leads()
        yield GaugeMetricFamily(
            "enginewright_leader",
            "1 for the replica that leads, 0 for one that stands by.",
            value=leads,
        )
        if not leads:
            return  # by the leader alone, so that each model is counted once
        models = list(self._cache.all(INFERENCE_MODELS))
        yield self._counts(models)
        yield _phases(models)
        yield _interims(models)
        yield from self._not_ready(models)

    def _counts(self, models: list[JsonObject]) -> GaugeMetricFamily:
        """Count conditions; a status that no model has is zero rather than absent."""
        counts = Counter(
            (condition["type"], condition["status"])
            for model in models
            for condition in (model.get("status") or {}).get("conditions") or ()
        )
        family = GaugeMetricFamily(
            "enginewright_models",
            "InferenceModels by condition and status; exposed by the leader alone.",
            labels=("condition", "status"),
        )
        for condition in sorted({condition for condition, _ in counts}):
            for status in _STATUSES:
                family.add_metric((condition, status), counts[condition, status])
        return family

    def _not_ready(self, models: list[JsonObject]) -> Iterator[GaugeMetricFamily]:
        models_not_ready = sorted(filter(None, map(_NotReady.of, models)))
        family = GaugeMetricFamily(
            "enginewright_model_not_ready",
            "1 for an InferenceModel that is not Ready, with the reason of its condition; stalled"
            f" ones first, {NAMED_MODELS} at most. `namespace` is the scrape's, hence model_namespace.",
            labels=("model_namespace", "model", "reason", "stalled"),
        )
        for ready in models_not_ready[:NAMED_MODELS]:
            stalled = "true" if ready.stalled else "false"
            family.add_metric((ready.namespace, ready.name, ready.reason, stalled), 1)
        yield family
        yield GaugeMetricFamily(
            "enginewright_model_not_ready_omitted",
            "InferenceModels that are not Ready and have no series of their own.",
            value=max(0, len(models_not_ready) - NAMED_MODELS),
        )


def _phases(models: list[JsonObject]) -> GaugeMetricFamily:
    targets = ((model.get("status") or {}).get("target") or {} for model in models)
    counts = Counter(target.get("phase") for target in targets)
    family = GaugeMetricFamily(
        "enginewright_rollouts",
        "New revisions of InferenceModels that are being brought up, by phase.",
        labels=("phase",),
    )
    for phase in TargetPhase:
        family.add_metric((phase,), counts[phase])
    return family


def _interims(models: list[JsonObject]) -> GaugeMetricFamily:
    serving = ((model.get("status") or {}).get("serving") or {} for model in models)
    count = sum(any(item.get("interim") for item in one.get("classes") or ()) for one in serving)
    return GaugeMetricFamily(
        "enginewright_models_interim",
        "InferenceModels that serve without an engine until it is built (spec.build.interim).",
        value=count,
    )


class RolloutMetrics:
    """Revisions that were rejected."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rollbacks = CounterMetric(
            "enginewright_rollbacks",
            "New revisions that failed or were rejected by a user, by reason.",
            ("reason",),
            registry=registry,
        )

    def count(self, reason: str) -> None:
        """Count a rejection."""
        # only reasons in the enums, so that no pod can create series
        is_listed = reason in {*Reason, *StatusReason}
        self._rollbacks.labels(reason if is_listed else Reason.INTERNAL_ERROR).inc()


class EngineMetrics:
    """Results of the Jobs of engines."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._builds = CounterMetric(
            "enginewright_engine_builds",
            "Builds of engines that have ended, by result (succeeded or failed) and, of those that"
            " failed, the reason.",
            ("result", "reason"),
            registry=registry,
        )
        self._duration = Histogram(
            "enginewright_engine_build_duration_seconds",
            "Time that the builder took for an engine.",
            registry=registry,
            buckets=_BUILD_SECONDS,
        )
        self._cache = CounterMetric(
            "enginewright_engine_cache",
            "Engines that became available: hit where the store held them, miss where they were built.",
            ("result",),
            registry=registry,
        )
        self._builds.labels("succeeded", "")
        for result in ("hit", "miss"):
            self._cache.labels(result)

    def count(self, ended: Ended) -> None:
        """Count how a Job ended."""
        if ended.reason:
            # likewise
            reason = ended.reason if ended.reason in set(Reason) else Reason.INTERNAL_ERROR
            self._builds.labels("failed", reason).inc()
            return
        self._cache.labels("hit" if ended.cached else "miss").inc()
        if not ended.cached:
            self._builds.labels("succeeded", "").inc()
            self._duration.observe(ended.build_seconds)
