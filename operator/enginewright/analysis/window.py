"""What both revisions' pods have counted in the same time: since both have a pod.

Before it, load, clients and neighbours differed: an incident that only one revision has lived through,
such as before the new one started, or before the serving pods were replaced, says nothing about the
difference of the revisions.
"""

from collections.abc import Mapping, Sequence
from math import inf

from enginewright.contract.measurements import Counts, Measurements


def start_of(stable: Sequence[Measurements], canary: Sequence[Measurements]) -> float:
    """Return the Unix time of the later of both revisions' first starts; infinity: there is no pod."""
    firsts = (min(pod.since for pod in pods) for pods in (stable, canary) if pods)
    return max(firsts, default=inf)


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
