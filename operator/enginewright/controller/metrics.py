"""The operator's own metrics about models and engines; no label names an object.

Models are counted from the cache when Prometheus asks, engines when a Job of theirs has ended.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from enginewright.contract.reasons import Reason
from enginewright.controller.cache import Cache
from enginewright.kube.resources import INFERENCE_MODELS
from enginewright.plan.engines import Ended

_STATUSES: Final = ("True", "False", "Unknown")
_BUILD_SECONDS: Final = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)


class ModelCollector(Collector):
    """`enginewright_models{condition,status}`; no label per model, so its size is bounded."""

    def __init__(self, cache: Cache, registry: CollectorRegistry) -> None:
        self._cache = cache
        registry.register(self)

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Count conditions; a status that no model has is zero rather than absent."""
        models = self._cache.all(INFERENCE_MODELS)
        counts = Counter(
            (condition["type"], condition["status"])
            for model in models
            for condition in (model.get("status") or {}).get("conditions") or ()
        )
        family = GaugeMetricFamily(
            "enginewright_models",
            "InferenceModels by condition and its status.",
            labels=("condition", "status"),
        )
        for condition in sorted({condition for condition, _ in counts}):
            for status in _STATUSES:
                family.add_metric((condition, status), counts[condition, status])
        yield family


class EngineMetrics:
    """What came of the Jobs of engines."""

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
        """Count what a Job came to."""
        if ended.reason:
            # Only reasons that are in the enum, so that no pod can make series.
            known = ended.reason in set(Reason)
            self._builds.labels("failed", ended.reason if known else Reason.INTERNAL_ERROR).inc()
            return
        self._cache.labels("hit" if ended.cached else "miss").inc()
        if not ended.cached:
            self._builds.labels("succeeded", "").inc()
            self._duration.observe(ended.build_seconds)
