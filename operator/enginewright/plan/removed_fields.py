"""Revisions of earlier releases with fields that specs have no more: they serve on as they were built.

`spec.serving.processes` was the number of server processes in each pod. A revision that has several keeps them,
and its runtime images, until its user requests another one: that has one process in each pod, and so a part
of the capacity with as many pods.
"""

from collections.abc import Collection

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import ServingState
from enginewright.manifests.snapshot import Snapshot
from enginewright.observed.revisions import RevisionView
from enginewright.plan.types import EventIntent


def as_stored(revisions: Collection[RevisionView], wanted: Snapshot) -> Snapshot:
    """Return the snapshot of the latest revision that differs from `wanted` in removed fields alone, else `wanted`."""
    several = [each for each in revisions if each.kept and each.kept.snapshot.processes > 1]
    if not several:
        return wanted
    name = wanted.revision()
    same = [
        (each.number, each.kept.snapshot.processes)
        for each in revisions
        if each.kept and _without_processes(each.kept.snapshot).revision() == name
    ]
    return wanted.model_copy(update={"processes": max(same)[1]}) if same else wanted


def processes_removed(
    revisions: Collection[RevisionView], serving: ServingState | None
) -> EventIntent | None:
    """Return the Event that says how many replicas replace the processes of what serves; None: it has one in each pod."""
    if serving is None:
        return None
    name = serving.last_complete
    stored = (each.kept.snapshot for each in revisions if each.revision == name and each.kept)
    processes = next((each.processes for each in stored), 1)
    if processes == 1:
        return None
    pods = ", ".join(
        f"{each.replicas * processes} instead of {each.replicas} on class {each.class_name}"
        for each in serving.classes
    )
    message = (
        f"revision {name} serves with {processes} server processes in each pod, which spec.serving.processes"
        f" requested and no revision has from now on. It serves on, with its runtime image. {processes} replicas"
        f" replace one of its pods ({pods}), each with 1/{processes} of the CPUs: write both into replicas and"
        " podTemplate.resources, and the next revision is rolled out"
    )
    return EventIntent("Warning", StatusReason.PROCESSES_REMOVED, message)


def _without_processes(snapshot: Snapshot) -> Snapshot:
    return snapshot.model_copy(update={"processes": 1})
