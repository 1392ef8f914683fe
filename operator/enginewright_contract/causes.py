"""Which cause of a fallback is reported first, for server, sidecar and operator.

Several things may be wrong at the same time: CUDA's libraries are not in the image, and the node
has no driver. The cause reported first is the one to fix first, since no other remedy helps before:
first the image, then the node, then the device, then the model. Pure.
"""

from collections.abc import Iterable
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

_RANKS: Final = {item: rank for rank, item in enumerate(Reason) if item.facets.placement}


def first(causes: Iterable[Finding]) -> Finding | None:
    """Return the cause to fix first, its text followed by the others'; None without causes."""
    ranked = sorted(causes, key=lambda cause: rank(cause.reason))
    if not ranked:
        return None
    chosen, *others = ranked
    text = chosen.cause
    for finding in others:
        # the server has already appended others; the sidecar and the operator rank its result again
        if finding.reason is not chosen.reason and f"; and {finding.reason}: " not in text:
            text += f"; and {finding.reason}: {finding.cause}"
    return chosen.model_copy(update={"cause": text})


def rank(reason: Reason | None) -> int:
    """Return the position of a reason in the order of remedies: the lowest is fixed first."""
    return len(Reason) if reason is None else _RANKS.get(reason, len(Reason))
