"""How many models are in which state, counted from the cache when Prometheus asks."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from enginewright.controller.cache import Cache
from enginewright.kube.resources import INFERENCE_MODELS

_STATUSES: Final = ("True", "False", "Unknown")


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
