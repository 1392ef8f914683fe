"""How many Jobs that prepare models and build engines run at the same time, and whose turn it is to create one.

In the order in which the models and InferenceEngines were created. One whose namespace is full lets others pass.
What serves and was lost from the store is rebuilt without a turn.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from enginewright.plan.types import JobLimits


class JobOwner(NamedTuple):
    """A model or an InferenceEngine; they are in the order of their turns."""

    created: str  # RFC 3339
    namespace: str
    kind: str
    name: str


def turns(
    waiting: Iterable[JobOwner], running: Mapping[str, int], limits: JobLimits
) -> dict[JobOwner, str]:
    """Return why each owner creates no Job now, as a sentence; empty: it may.

    Args:
        waiting: owners that need a Job.
        running: Jobs that have not ended, by namespace.
        limits: the administrator's.
    """
    taken = Counter(running)
    found = {}
    for each in sorted(waiting):
        found[each] = _full(each.namespace, taken, limits)
        if not found[each]:
            taken[each.namespace] += 1
    return found


def _full(namespace: str, taken: Counter[str], limits: JobLimits) -> str:
    if limits.total and taken.total() >= limits.total:
        return f"waits for its turn: at most {limits.total} Jobs run at the same time (jobs.limit)"
    if limits.per_namespace and taken[namespace] >= limits.per_namespace:
        return (
            f"waits for its turn: at most {limits.per_namespace} Jobs of namespace {namespace} run at"
            " the same time (jobs.namespaceLimit)"
        )
    return ""
