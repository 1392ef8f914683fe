"""Which clusters use one part of a bucket: none knows what the others need.

A Job that prepares a model records its cluster before it looks for artefacts, as a collection does before it lists the
clusters. So of two that start at once at least one sees the other, even on a server without conditional requests.
"""

from collections.abc import Sequence
from typing import Final

from enginewright_contract.collection import CollectTask
from enginewright_contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.store.disk_errors import available
from enginewright_runtime.store.medium import Leftover, Medium

CLUSTERS: Final = "clusters"
_MARK: Final = b"{}\n"
_SHOWN: Final = 3


def record_use(medium: Medium, cluster: str) -> None:
    """Record a cluster that starts to use the store; raises StageFailure: StoreUnavailable."""
    name = f"{CLUSTERS}/{cluster}"
    with available():
        if medium.get(name, len(_MARK)) is None:
            medium.put(name, _MARK)


def is_shared(medium: Medium, cluster: str) -> bool:
    """Return whether another cluster uses the store; raises StageFailure: StoreUnavailable."""
    with available():
        return bool(_list_others(medium, cluster))


def refuse_shared(medium: Medium, task: CollectTask) -> None:
    """Record the task's cluster, if any; raise StageFailure, StoreShared, if another one may need what it removes."""
    if task.cluster is not None:
        medium.put(f"{CLUSTERS}/{task.cluster}", _MARK)
    if task.dry_run or (task.max_age_seconds is None and task.max_bytes is None):
        return
    others = _list_others(medium, task.cluster)
    if len(others) > (1 if task.cluster is None else 0):
        raise StageFailure(
            Reason.STORE_SHARED,
            f"no artefact is removed, because others use this store: {_name_clusters(others)}",
        )


def release(medium: Medium, cluster: str) -> bool:
    """Forget a cluster; return whether it used this store."""
    marks = [record for record in medium.records(CLUSTERS) if _cluster(record) == cluster]
    return bool(marks) and all(medium.remove_record(mark) for mark in marks)


def _list_others(medium: Medium, cluster: str | None) -> list[Leftover]:
    return [record for record in medium.records(CLUSTERS) if _cluster(record) != cluster]


def _cluster(mark: Leftover) -> str:
    return mark.name.removeprefix(f"{CLUSTERS}/")


def _name_clusters(marks: Sequence[Leftover]) -> str:
    last = sorted(marks, key=lambda mark: mark.modified, reverse=True)
    shown = [
        f"cluster {_cluster(leftover)}, last on {leftover.modified:%Y-%m-%d}" for leftover in last
    ]
    more = len(shown) - _SHOWN
    return "; ".join(shown[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
