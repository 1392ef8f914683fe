"""Metrics of the cache of a node."""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

READS: Final = ("hit", "miss")
WRITES: Final = ("stored", "present", "damaged", "broken", "refused")


class CacheMetrics:
    """What pods have asked of the cache, and what it holds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._reads = Counter(
            "enginewright_node_cache_reads",
            "Files that pods asked for, by result: hit where the node's cache held them, else miss.",
            ("result",),
            registry=registry,
        )
        self._read_bytes = Counter(
            "enginewright_node_cache_read_bytes",
            "Bytes of the files that the node's cache held.",
            registry=registry,
        )
        self._writes = Counter(
            "enginewright_node_cache_writes",
            "Files that pods offered, by result: stored, present (or being stored), damaged (another"
            " digest), broken (ended or slow), refused (no room, or too many at a time).",
            ("result",),
            registry=registry,
        )
        self._evicted = Counter(
            "enginewright_node_cache_evicted_bytes",
            "Bytes of the least recently used files that made room for others.",
            registry=registry,
        )
        for result in READS:
            self._reads.labels(result)
        for result in WRITES:
            self._writes.labels(result)

    def read(self, size: int | None) -> None:
        """Count a file that was requested; a miss has no size."""
        self._reads.labels("miss" if size is None else "hit").inc()
        self._read_bytes.inc(size or 0)

    def count_write(self, result: str) -> None:
        """Count a file that was offered, by one of WRITES."""
        self._writes.labels(result).inc()

    def count_eviction(self, size: int) -> None:
        """Count a file that made room."""
        self._evicted.inc(size)

    def show(
        self, size: Callable[[], float], files: Callable[[], float], capacity: Callable[[], float]
    ) -> None:
        """Expose what the cache holds."""
        for name, about, value in (
            ("bytes", "Bytes that the files in the node's cache occupy.", size),
            ("files", "Files in the node's cache.", files),
            ("capacity_bytes", "Bytes that the files in the node's cache may occupy.", capacity),
        ):
            gauge = Gauge(f"enginewright_node_cache_{name}", about, registry=self._registry)
            gauge.set_function(value)
