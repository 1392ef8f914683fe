"""One cause of a fallback, chosen once: server, sidecar and operator all ask here which is named.

Several things may be wrong at the same time: CUDA's libraries are not in the image, and the node
has no driver. The one that is named is the one whose remedy has to come first, for without it no
other helps: first the image, then the node, then the device, then the model. Pure.
"""

from collections.abc import Iterable
from typing import Final

from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding

_ORDER: Final = (
    Reason.VERSION_MISMATCH,  # two ONNX Runtimes in one folder: which providers exist is chance
    Reason.SESSION_REPLACED,  # all was there when the pod was admitted
    Reason.PROVIDER_MISSING,
    Reason.DRIVER_MISSING,
    Reason.DRIVER_TOO_OLD,
    Reason.ENGINE_CORRUPT,
    Reason.ENGINE_VERSION_MISMATCH,
    Reason.ENGINE_INCOMPATIBLE,
    Reason.PROVIDER_REFUSED,
    Reason.UNSUPPORTED_OPERATOR,
    Reason.BACKEND_FALLBACK,
    Reason.FALLBACK_OVER_BUDGET,
    Reason.NODE_FALLBACK,
)
_RANKS: Final = {reason: rank for rank, reason in enumerate(_ORDER)}


def first(causes: Iterable[Finding]) -> Finding | None:
    """Return the cause to be named, whose `cause` lists the others; None where there is none."""
    ranked = sorted(causes, key=lambda each: rank(each.reason))
    if not ranked:
        return None
    chosen, *others = ranked
    text = chosen.cause
    for each in others:
        # the server lists what it found; the sidecar and the operator ask again
        if each.reason is not chosen.reason and f"; and {each.reason}: " not in text:
            text += f"; and {each.reason}: {each.cause}"
    return chosen.model_copy(update={"cause": text})


def rank(reason: Reason | None) -> int:
    """Return a reason's place: the lower, the earlier its remedy has to come."""
    return len(_ORDER) if reason is None else _RANKS.get(reason, len(_ORDER))
