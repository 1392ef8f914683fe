"""Whether a fallback stays within the promise: one rule for operator and runtime. Pure.

The operator checks an engine before a pod starts, the sidecar the live session, preflight both. If
they rounded differently, one would accept what another rejects: so shares of time are rounded to
billionths before they are compared, and shares of nodes are compared as integers.
"""

from typing import Final

from enginewright_contract.task import Promise

_BILLION: Final = 1_000_000_000


def billionths(share: float) -> int:
    """Return a share of 1 rounded to billionths: sums of floats are not exact."""
    return round(share * _BILLION)


def excess(
    promise: Promise, nodes_total: int, nodes_elsewhere: int, compute: int | None
) -> str | None:
    """Return the exceeded limits as text to append to a message, or None if the promise is kept.

    Of `nodes_total` compute nodes (no shape arithmetic), `nodes_elsewhere` run on another provider, with
    `compute` billionths of the profiled time, if all were profiled. The text is "" where no fallback is
    allowed.
    """
    if nodes_elsewhere <= 0 or promise.policy == "Allow":
        return None
    if promise.policy == "Forbid":
        return ""
    exceeded = []
    limit = promise.max_node_share
    if limit is not None and nodes_elsewhere * _BILLION > billionths(limit) * nodes_total:
        exceeded.append(f"{percent(limit)} of the nodes")
    limit = promise.max_compute_share
    if limit is not None and compute is None:
        exceeded.append(
            f"{percent(limit)} of the time, which cannot be verified: not all of them were profiled"
        )
    elif limit is not None and compute is not None and compute > billionths(limit):
        exceeded.append(f"{percent(limit)} of the time")
    if exceeded:
        return f"; allowed: {' and '.join(exceeded)}"
    none_given = promise.max_node_share is None and promise.max_compute_share is None
    return "; the budget sets no share" if none_given else None


def percent(share: float) -> str:
    """Return a share with three significant digits."""
    return f"{share * 100:.3g}%"
