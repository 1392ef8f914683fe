"""What both revisions' pods have counted in the same time: since the new revision's first start.

Before it, load, clients and neighbours differed, and an incident of the serving pods says nothing about
the difference of the revisions.
"""

from collections.abc import Iterable, Mapping
from math import inf

from enginewright.contract.measurements import Counts, Measurements


def start_of(canary: Iterable[Measurements]) -> float:
    """Return the Unix time of the new revision's first start; infinity: it has no pod."""
    return min((pod.since for pod in canary), default=inf)


def counted(pod: Measurements, start: float) -> Counts:
    """Return what a pod has counted since `start`, or since its own later one.

    Sidecars of earlier versions do not report counts of the past: all that they have counted.
    """
    total = Counts(
        at=pod.since,
        responses=pod.responses,
        golden_ok=pod.golden_ok,
        golden_wrong=pod.golden_wrong,
        golden_failed=pod.golden_failed,
    )
    if pod.since >= start or not pod.counts:
        return total
    before = next((each for each in pod.counts if each.at >= start), total)
    return Counts(
        at=before.at,
        responses=_added(total.responses, before.responses),
        golden_ok=max(0, total.golden_ok - before.golden_ok),
        golden_wrong=max(0, total.golden_wrong - before.golden_wrong),
        golden_failed=max(0, total.golden_failed - before.golden_failed),
    )


def _added(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {code: max(0, count - before.get(code, 0)) for code, count in now.items()}
