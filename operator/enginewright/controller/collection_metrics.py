"""Metrics of the stores, from the outcomes that the last Jobs carry: they survive a restart."""

from collections.abc import Callable, Iterator
from typing import Final

from enginewright_contract.collection import Collected
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from enginewright.controller.cache import ObjectCache
from enginewright.kube.resources import JOBS
from enginewright.manifests.collect_job import COLLECT
from enginewright.manifests.collection_outcome import CollectionOutcome
from enginewright.manifests.labels import COMPONENT
from enginewright.observed.collections import CollectionView, collection_view

NAMED_STORES: Final = 500  # stores with named series, the fullest first
_LABEL: Final = "model_namespace"  # `namespace` is the scrape's


def collections_of(cache: ObjectCache, namespace: str | None = None) -> tuple[CollectionView, ...]:
    """Return the Jobs that collect, of one namespace's store or of all."""
    names = cache.names_everywhere(JOBS, COMPONENT, COLLECT)
    jobs = (cache.get(JOBS, *name) for name in names if namespace in (None, name[0]))
    return tuple(map(collection_view, filter(None, jobs)))


class CollectionMetrics:
    """What collections have removed, and which ones may not begin."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.blocked: dict[str, str] = {}  # why, by store
        self._removed = Counter(
            "enginewright_store_collected",
            "What collections have removed from stores: artifact, leftover (files of interrupted"
            " publications), report, cache.",
            ("kind",),
            registry=registry,
        )
        self._bytes = Counter(
            "enginewright_store_collected_bytes",
            "Bytes of artefacts and leftovers that collections have removed from stores.",
            registry=registry,
        )
        self._collections = Counter(
            "enginewright_store_collections",
            "Collections that have ended, by result: succeeded or failed.",
            ("result",),
            registry=registry,
        )
        for kind in ("artifact", "leftover", "report", "cache"):
            self._removed.labels(kind)
        for result in ("succeeded", "failed"):
            self._collections.labels(result)

    def count(self, outcome: CollectionOutcome) -> None:
        """Count how a collection has ended; a dry run removes nothing."""
        collected = outcome.collected
        self._collections.labels("succeeded" if collected else "failed").inc()
        if collected is None or collected.dry_run:
            return
        self._removed.labels("artifact").inc(collected.removed_artifacts)
        self._removed.labels("leftover").inc(collected.leftovers)
        self._removed.labels("report").inc(collected.reports)
        self._removed.labels("cache").inc(collected.caches)
        self._bytes.inc(collected.removed_bytes + collected.leftover_bytes)


class StoreCollector(Collector):
    """The sizes of the stores, as last measured, exposed by the leader alone."""

    def __init__(
        self,
        cache: ObjectCache,
        metrics: CollectionMetrics,
        registry: CollectorRegistry,
        *,
        leads: Callable[[], bool],
    ) -> None:
        self._cache = cache
        self._metrics = metrics
        self._leads = leads
        registry.register(self)

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics of every store that was measured, the fullest first."""
        if not self._leads():
            return
        last: dict[str, tuple[CollectionView, Collected, int | None]] = {}
        failing: dict[str, bool] = {}
        for job in sorted(collections_of(self._cache), key=lambda collection: collection.ended_at):
            if job.recorded and not job.is_of_group:
                failing[job.namespace] = job.recorded.collected is None
                if job.recorded.collected:
                    last[job.namespace] = job, job.recorded.collected, job.recorded.limit_bytes
        shown = sorted(last.items(), key=lambda pair: -_fullness(pair[1][1], pair[1][2]))
        families = {
            name: GaugeMetricFamily(f"enginewright_store_{name}", help_, labels=(_LABEL,))
            for name, help_ in _GAUGES.items()
        }
        for namespace, (_, collected, limit) in shown[:NAMED_STORES]:
            for name, value in _values(collected, limit).items():
                if value is not None:
                    families[name].add_metric((namespace,), value)
        yield from families.values()
        failed = {key for key, fails in failing.items() if fails}
        troubles = GaugeMetricFamily(
            "enginewright_store_collection_trouble",
            "1 for a namespace whose store is not collected, by reason: CollectionFailed or"
            f" CollectionBlocked, {NAMED_STORES} of each at most.",
            labels=(_LABEL, "reason"),
        )
        for reason, namespaces in (
            ("CollectionFailed", failed),
            ("CollectionBlocked", self._metrics.blocked),
        ):
            for namespace in sorted(namespaces)[:NAMED_STORES]:
                troubles.add_metric((namespace, reason), 1)
        yield troubles


_GAUGES: Final = {
    "bytes": "Bytes of a namespace's artefacts at the end of the last collection.",
    "needed_bytes": "Bytes of those artefacts that models, revisions, engines or Jobs need.",
    "artifacts": "Prepared models and engines at the end of the last collection.",
    "limit_bytes": "Limit of the artefacts' bytes: store.gc.maxSize or the namespace's; absent: none.",
    "capacity_bytes": "Size of the store's volume; absent: a bucket.",
    "free_bytes": "Free bytes of the store's volume at the end of the last collection; absent: a bucket.",
}


def _values(collected: Collected, limit: int | None) -> dict[str, int | None]:
    removed = 0 if collected.dry_run else collected.removed_artifacts
    return {
        "bytes": _bytes(collected),
        "needed_bytes": collected.needed_bytes,
        "artifacts": collected.artifacts - removed,
        "limit_bytes": limit,
        "capacity_bytes": collected.capacity_bytes,
        "free_bytes": collected.free_bytes,
    }


def _bytes(collected: Collected) -> int:
    return collected.bytes if collected.dry_run else collected.bytes_after


def _fullness(collected: Collected, limit: int | None) -> float:
    """Return the used share of the limit or of the volume, whichever is larger."""
    shares = [0.0]
    if limit:
        shares.append(_bytes(collected) / limit)
    if collected.capacity_bytes and collected.free_bytes is not None:
        shares.append(1 - collected.free_bytes / collected.capacity_bytes)
    return max(shares)
