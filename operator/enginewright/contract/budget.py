"""Whether what runs elsewhere keeps the promise: one judgement, for operator and runtime alike. Pure.

The operator judges an engine before a pod starts, the sidecar the live session, preflight both: with
other rounding one would let in what another refuses. So shares are whole billionths before they are
compared, and shares of nodes are compared as whole numbers.
"""

from typing import Final

from enginewright.contract.task import Promise

_WHOLE: Final = 1_000_000_000


def billionths(share: float) -> int:
    """Return a share of 1 in whole billionths, the nearest: sums of floats are not exact."""
    return round(share * _WHOLE)


def excess(
    promise: Promise, nodes_total: int, nodes_elsewhere: int, compute: int | None
) -> str | None:
    """Return what would have been allowed, as text that follow a message; None: the promise is kept.

    Args:
        promise: to the model's owner.
        nodes_total: compute nodes, shape arithmetic left out.
        nodes_elsewhere: those that do not run where they were promised to.
        compute: their share of the profiled time, in billionths; None: not all were profiled.

    Returns:
        "" where nothing at all is allowed elsewhere.
    """
    if nodes_elsewhere <= 0 or promise.policy == "Allow":
        return None
    if promise.policy == "Forbid":
        return ""
    exceeded = []
    limit = promise.max_node_share
    if limit is not None and nodes_elsewhere * _WHOLE > billionths(limit) * nodes_total:
        exceeded.append(f"{percent(limit)} of the nodes")
    limit = promise.max_compute_share
    if limit is not None and compute is None:
        exceeded.append(
            f"{percent(limit)} of the time, which is not proven, as not all of them were profiled"
        )
    elif limit is not None and compute is not None and compute > billionths(limit):
        exceeded.append(f"{percent(limit)} of the time")
    if exceeded:
        return f"; allowed are {' and '.join(exceeded)}"
    none_given = promise.max_node_share is None and promise.max_compute_share is None
    return "; the budget names no share" if none_given else None


def percent(share: float) -> str:
    """Return a share with three significant digits."""
    return f"{share * 100:.3g}%"
