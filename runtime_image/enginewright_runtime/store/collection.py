"""Removes from a store what nothing needs: the stage `collect`, and `enginewright store gc`."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from enginewright_contract.collection import COLLECT_STAGE, Collected, CollectTask
from enginewright_contract.report import Finding, StageReport

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import format_bytes, format_count
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.store import open_medium
from enginewright_runtime.store.clusters import refuse_shared
from enginewright_runtime.store.collection_plan import plan_collection, total_bytes
from enginewright_runtime.store.disk_errors import available
from enginewright_runtime.store.inventory import KINDS, Inventory
from enginewright_runtime.store.medium import Leftover, Medium, Space, Stored
from enginewright_runtime.store.store import CACHES, REPORTS

_DAMAGED: Final = frozenset(kind.damaged for kind in KINDS)


@dataclass(frozen=True)
class Collection:
    """What was removed from a store, or with `dry_run` would be."""

    stored: tuple[Stored, ...]  # before
    needed: tuple[Stored, ...]
    removed: tuple[Stored, ...]
    leftovers: tuple[Leftover, ...]
    reports: tuple[Leftover, ...]
    caches: tuple[Leftover, ...]
    stays: int  # of the above files and folders, which could not be removed
    problem: Finding | None  # why leftovers are unknown
    space: Space | None  # after

    def result(self, *, dry_run: bool) -> Collected:
        """Return it in figures."""
        removed = {stored.artifact for stored in self.removed}
        remaining = [stored for stored in self.stored if stored.artifact not in removed]
        before, after = total_bytes(self.stored), total_bytes(remaining)
        return Collected(
            artifacts=len(self.stored),
            bytes=before,
            needed_artifacts=len(self.needed),
            needed_bytes=total_bytes(self.needed),
            removed_artifacts=len(self.removed),
            removed_bytes=before - after,
            bytes_after=after,
            leftovers=len(self.leftovers),
            leftover_bytes=sum(leftover.size for leftover in self.leftovers),
            reports=len(self.reports),
            caches=len(self.caches),
            capacity_bytes=self.space and self.space.capacity,
            free_bytes=self.space and self.space.free,
            dry_run=dry_run,
        )


def run(task: CollectTask, paths: Paths) -> StageReport:
    """Remove what the task allows from the store of this pod; raises as `collect`."""
    collection = collect(open_medium(paths), task)
    result = collection.result(dry_run=task.dry_run)
    did = "would remove" if task.dry_run else "removed"
    return StageReport(
        stage=COLLECT_STAGE,
        ok=True,
        message=(
            f"{did} {result.removed_artifacts} of {format_count(result.artifacts, 'artefact')},"
            f" {format_bytes(result.removed_bytes)} of {format_bytes(result.bytes)};"
            f" {format_count(result.leftovers, 'leftover')}, {format_count(result.reports, 'report')},"
            f" {format_count(result.caches, 'cache')}"
        ),
        collected=result,
        findings=() if collection.problem is None else (collection.problem,),
        facts={"removed": [stored.artifact.folder for stored in collection.removed]},
    )


def collect(medium: Medium, task: CollectTask) -> Collection:
    """Remove what the task allows, artefacts first; raises StageFailure: StoreUnavailable, StoreShared."""
    as_of = min(task.as_of, datetime.now(UTC))  # the clock of the list's author may be ahead
    task = task.model_copy(update={"as_of": as_of})
    with available():
        refuse_shared(medium, task)
        stored = tuple(medium.list_stored(KINDS))
        plan = plan_collection(stored, task)
        removed = plan.removed if task.dry_run else tuple(medium.discard(plan.removed))
        inventory = Inventory(medium)
        leftovers, problem = _leftovers(inventory)
        unneeded = (
            (leftovers, inventory.remove),
            (_older(medium, REPORTS, as_of, task.report_age_seconds), medium.remove_record),
            (_older(medium, CACHES, as_of, task.cache_age_seconds), medium.remove_record),
        )
        gone = [
            tuple(leftover for leftover in some if task.dry_run or remove(leftover))
            for some, remove in unneeded
        ]
        return Collection(
            stored=stored,
            needed=plan.needed,
            removed=removed,
            leftovers=gone[0],
            reports=gone[1],
            caches=gone[2],
            stays=len(plan.removed)
            + sum(len(some) for some, _ in unneeded)
            - len(removed)
            - sum(map(len, gone)),
            problem=problem,
            space=medium.space(),
        )


def _leftovers(inventory: Inventory) -> tuple[list[Leftover], Finding | None]:
    try:
        return list(inventory.leftovers()), None
    except StageFailure as failure:
        if failure.reason not in _DAMAGED:
            raise
        return [], failure.finding.model_copy(update={"severity": "warning"})


def _older(medium: Medium, folder: str, as_of: datetime, seconds: float) -> list[Leftover]:
    before = as_of - timedelta(seconds=seconds)
    return [record for record in medium.records(folder) if record.modified <= before]
