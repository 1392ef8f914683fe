"""What both revisions' pods have counted in the same time: since both have a pod.

Before, load, clients and neighbours differed: an incident that only one revision has lived through says nothing
about the difference of the revisions.

Within that time pods start and end: a serving pod is replaced, a step adds pods of the new revision. The counts
of those that end are lost with them. So each revision's sum weighs the moments differently, and an incident
of both would seem to be one of the revision that more of the remaining pods have lived through (Simpson's
paradox). Hence counts are divided into periods at the starts of the pods, so that the same pods count in each.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from enginewright_contract.measurements import Counts, Measurements


def start_of(stable: Sequence[Measurements], canary: Sequence[Measurements]) -> float:
    """Return the Unix time of the later of both revisions' first starts, or infinity without pods."""
    firsts = (min(pod.since for pod in pods) for pods in (stable, canary) if pods)
    return max(firsts, default=inf)


def periods_of(stable: Sequence[Measurements], canary: Sequence[Measurements]) -> list[float]:
    """Return the Unix times at which the periods begin, oldest first.

    A period of which a pod has kept no counts is part of the next one: older ones are further apart.
    """
    pods = (*stable, *canary)
    begins = [start_of(stable, canary)]
    for begin in sorted({pod.since for pod in pods if pod.since > begins[0]}):
        if all(_has_counts(pod, begins[-1], begin) for pod in pods if pod.since < begin):
            begins.append(begin)
    return begins


def count_in_periods(pod: Measurements, begins: Sequence[float]) -> list[Counts]:
    """Return what a pod has counted in each period, of which the last has not ended."""
    until_now = [count_since(pod, begin) for begin in begins]
    return [_less(one, later) for one, later in pairwise(until_now)] + until_now[-1:]


def _has_counts(pod: Measurements, begin: float, end: float) -> bool:
    return not pod.counts or any(begin <= count.at < end for count in pod.counts)


def count_since(pod: Measurements, start: float) -> Counts:
    """Return what a pod has counted since `start` or its own later one, or all if its sidecar keeps no earlier counts."""
    total = Counts(
        at=pod.since,
        responses=pod.responses,
        golden_ok=pod.golden_ok,
        golden_wrong=pod.golden_wrong,
        golden_failed=pod.golden_failed,
    )
    if pod.since >= start or not pod.counts:
        return total
    before = next((count for count in pod.counts if count.at >= start), total)
    return _less(total, before)


def _less(now: Counts, before: Counts) -> Counts:
    return Counts(
        at=before.at,
        responses={
            code: max(0, count - before.responses.get(code, 0))
            for code, count in now.responses.items()
        },
        golden_ok=max(0, now.golden_ok - before.golden_ok),
        golden_wrong=max(0, now.golden_wrong - before.golden_wrong),
        golden_failed=max(0, now.golden_failed - before.golden_failed),
    )
