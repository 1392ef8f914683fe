"""How long a run of a model takes, how many rows a second it gives, and what memory that needs."""

from enginewright_runtime.proof.latency.comparing import (
    BenchmarkCandidate,
    BenchmarkResult,
    compare,
    measure,
)

__all__ = ["BenchmarkCandidate", "BenchmarkResult", "compare", "measure"]
