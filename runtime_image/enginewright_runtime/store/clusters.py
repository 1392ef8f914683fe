"""Which clusters use one part of a bucket: none knows what the others need.

A Job that prepares a model says of which cluster it is before it looks what there is, and so does each collection
before it looks who else did. So of two that begin at once at least one sees the other, whatever conditions the
server knows.
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
    """Record a cluster that begins to use the store, unless it is there.

    Raises:
        StageFailure: StoreUnavailable.
    """
    name = f"{CLUSTERS}/{cluster}"
    with available():
        if medium.get(name, len(_MARK)) is None:
            medium.put(name, _MARK)


def refuse_shared(medium: Medium, task: CollectTask) -> None:
    """Record the task's cluster; refuse to remove artefacts that another one may need.

    By hand, for no cluster, what one cluster alone uses may be removed.

    Raises:
        StageFailure: StoreShared; StoreUnavailable.
    """
    if task.cluster is not None:
        medium.put(f"{CLUSTERS}/{task.cluster}", _MARK)
    if task.dry_run or (task.max_age_seconds is None and task.max_bytes is None):
        return
    others = [each for each in medium.records(CLUSTERS) if _cluster(each) != task.cluster]
    if len(others) > (1 if task.cluster is None else 0):
        raise StageFailure(
            Reason.STORE_SHARED,
            f"no artefact is removed, since others use this store: {_named(others)}",
        )


def release(medium: Medium, cluster: str) -> bool:
    """Forget a cluster; False: it did not use this store."""
    found = [each for each in medium.records(CLUSTERS) if _cluster(each) == cluster]
    return bool(found) and all(medium.remove_record(each) for each in found)


def _cluster(mark: Leftover) -> str:
    return mark.name.removeprefix(f"{CLUSTERS}/")


def _named(marks: Sequence[Leftover]) -> str:
    last = sorted(marks, key=lambda each: each.modified, reverse=True)
    shown = [f"cluster {_cluster(each)}, last on {each.modified:%Y-%m-%d}" for each in last]
    more = len(shown) - _SHOWN
    return "; ".join(shown[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
