"""Whether what an engine leaves outside keeps the promise: judged before a pod starts."""

from dataclasses import dataclass

from enginewright.contract.budget import excess
from enginewright.contract.reasons import Reason
from enginewright.contract.report import NAMED_NODES
from enginewright.contract.task import Promise


@dataclass(frozen=True)
class Outside:
    """What a builder tells of the nodes that it did not take."""

    nodes_total: int
    nodes_accelerated: int
    compute: (
        int | None
    )  # the nodes outside, of the profiled time, in billionths; None: not profiled
    elsewhere: tuple[str, ...]  # the first of their labels


def why_broken(outside: Outside, promise: Promise, where: str) -> tuple[Reason, str] | None:
    """Return by what the promise is broken, in words; None when it is kept."""
    count = outside.nodes_total - outside.nodes_accelerated
    broken = excess(promise, outside.nodes_total, count, outside.compute)
    if broken is None:
        return None
    reason = Reason.FALLBACK_OVER_BUDGET if promise.policy == "Budget" else Reason.NODE_FALLBACK
    compute = outside.compute
    time = "" if compute is None else f", {compute / 1e7:.3g}% of the computing time"
    named = outside.elsewhere[:NAMED_NODES]
    more = count - min(count, len(named))
    return reason, (
        f"on {where} {count} of {outside.nodes_total} nodes{time} would run on the CPU:"
        f" {', '.join(named)}{f' and {more} more' if more else ''}{broken}"
    )
