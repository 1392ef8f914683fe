"""Whether an engine's coverage keeps the promise, decided before a pod starts."""

from dataclasses import dataclass

from enginewright_contract.budget import excess
from enginewright_contract.reasons import Reason
from enginewright_contract.report import NAMED_NODES
from enginewright_contract.task import Promise


@dataclass(frozen=True)
class EngineCoverage:
    """Nodes inside and outside an engine, as its builder reports."""

    nodes_total: int
    nodes_accelerated: int
    compute: int | None  # share of the profiled time of the nodes outside, in billionths
    elsewhere: tuple[str, ...]  # the first of their labels


def promise_violation(
    coverage: EngineCoverage, promise: Promise, where: str
) -> tuple[Reason, str] | None:
    """Return reason and cause if the promise is violated."""
    count = coverage.nodes_total - coverage.nodes_accelerated
    broken = excess(promise, coverage.nodes_total, count, coverage.compute)
    if broken is None:
        return None
    reason = Reason.FALLBACK_OVER_BUDGET if promise.policy == "Budget" else Reason.NODE_FALLBACK
    compute = coverage.compute
    time = "" if compute is None else f", {compute / 1e7:.3g}% of the compute time"
    named = coverage.elsewhere[:NAMED_NODES]
    more = count - min(count, len(named))
    return reason, (
        f"on {where} {count} of {coverage.nodes_total} nodes{time} would run on the CPU:"
        f" {', '.join(named)}{f' and {more} more' if more else ''}{broken}"
    )
