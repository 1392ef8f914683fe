"""The operator's own metrics about models and engines.

Models are counted by their last change, engines when one of their Jobs has finished. Only models that are not
ready have named series, up to a limit.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
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
    serves: bool  # at least one pod, perhaps of an older revision

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
        stalled, serves = (
            (conditions.get(kind) or {}).get("status") == "True"
            for kind in (ConditionType.STALLED, ConditionType.AVAILABLE)
        )
        rank = 2 if reason == StatusReason.SUSPENDED else int(not stalled)
        return cls(rank, metadata["namespace"], metadata["name"], reason, stalled, serves)


@dataclass(frozen=True, slots=True)
class _Model:
    """What is counted of a model."""

    conditions: tuple[tuple[str, str], ...]  # types and statuses
    phase: str  # of the rollout, if any
    is_interim: bool
    not_ready: _NotReady | None

    @classmethod
    def of(cls, obj: Mapping[str, Any], shared: dict[object, Any]) -> Self:
        """Return what is counted of an InferenceModel; `shared` has what others have too."""
        status = obj.get("status") or {}
        conditions = tuple(
            (item["type"], item["status"]) for item in status.get("conditions") or ()
        )
        serving = (status.get("serving") or {}).get("classes") or ()
        return cls(
            shared.setdefault(conditions, conditions),
            sys.intern(str((status.get("target") or {}).get("phase") or "")),
            any(item.get("interim") for item in serving),
            _NotReady.of(obj),
        )


class ModelCollector(Collector):
    """The conditions of all models in the cache, which must still be empty; by name where they are not ready."""

    def __init__(
        self, cache: ObjectCache, registry: CollectorRegistry, *, leads: Callable[[], bool]
    ) -> None:
        self._models: dict[tuple[str, str], _Model] = {}
        self._shared: dict[object, Any] = {}
        self._leads = leads
        cache.listen(INFERENCE_MODELS, self._on_model)
        registry.register(self)

    def _on_model(self, name: tuple[str, str], obj: JsonObject | None) -> None:
        if obj is None:
            self._models.pop(name, None)
        else:
            self._models[name] = _Model.of(obj, self._shared)

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
        yield self._count_conditions()
        yield self._count_phases()
        yield GaugeMetricFamily(
            "enginewright_models_interim",
            "InferenceModels that serve without an engine until it is built (spec.build.interim).",
            value=sum(model.is_interim for model in self._models.values()),
        )
        yield from self._name_not_ready()

    def _count_conditions(self) -> GaugeMetricFamily:
        """Count conditions; a status that no model has is zero rather than absent."""
        counts = Counter(chain.from_iterable(model.conditions for model in self._models.values()))
        family = GaugeMetricFamily(
            "enginewright_models",
            "InferenceModels by condition and status; exposed by the leader alone.",
            labels=("condition", "status"),
        )
        for condition in sorted({condition for condition, _ in counts}):
            for status in _STATUSES:
                family.add_metric((condition, status), counts[condition, status])
        return family

    def _count_phases(self) -> GaugeMetricFamily:
        counts = Counter(model.phase for model in self._models.values())
        family = GaugeMetricFamily(
            "enginewright_rollouts",
            "New revisions of InferenceModels that are being brought up, by phase.",
            labels=("phase",),
        )
        for phase in TargetPhase:
            family.add_metric((phase,), counts[phase])
        return family

    def _name_not_ready(self) -> Iterator[GaugeMetricFamily]:
        reported = (model.not_ready for model in self._models.values())
        models_not_ready = sorted(filter(None, reported))
        family = GaugeMetricFamily(
            "enginewright_model_not_ready",
            "1 for an InferenceModel that is not Ready, with the reason of its condition; stalled"
            f" ones first, {NAMED_MODELS} at most; serves: at least one pod does. `namespace` is the scrape's, hence model_namespace.",
            labels=("model_namespace", "model", "reason", "stalled", "serves"),
        )
        for ready in models_not_ready[:NAMED_MODELS]:
            states = (str(state).lower() for state in (ready.stalled, ready.serves))
            family.add_metric((ready.namespace, ready.name, ready.reason, *states), 1)
        yield family
        yield GaugeMetricFamily(
            "enginewright_model_not_ready_omitted",
            "InferenceModels that are not Ready and have no series of their own.",
            value=max(0, len(models_not_ready) - NAMED_MODELS),
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
