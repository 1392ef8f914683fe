"""Whether a spec has changed: the hash of all in it that decides what serves, with fields of earlier releases.

`spec.serving.processes` was the number of server processes in each pod. With one process, as many pods have less
capacity. So as long as a spec has lost only that field, it requests the processes of the revision that it requested
last, and its runtime images, which know the field.
"""

from collections.abc import Iterator

from enginewright_contract.keys import content, content_hash

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.inference_model_status import ServingState
from enginewright.manifests.snapshot import Snapshot
from enginewright.observed.revisions import RevisionView
from enginewright.plan.types import EventIntent, Facts


def spec_hash(spec: InferenceModelSpec, processes: int = 1) -> str:
    """Return the hash of a spec, with an earlier release's `processes`, without numbers of pods and rollout settings."""
    hashed = content(spec)
    for name in ("replicas", "rollout"):
        hashed.pop(name, None)
    hashed.get("build", {}).pop("pod_template", None)
    hashed["source"].pop("refresh_interval", None)
    serving = hashed.get("serving", {})
    asked = [serving.pop(name, None) for name in ("autoscaling", "route")]
    if any(asked) and not serving:
        del hashed["serving"]
    if processes > 1:
        hashed["serving"] = {**hashed.get("serving", {}), "processes": processes}
    hashed["accelerators"] = [accelerator.class_name for accelerator in spec.accelerators]
    return content_hash(hashed)


def as_stored(facts: Facts, snapshot: Snapshot) -> Snapshot:
    """Return `snapshot` with the processes of the revision that its spec requested last with the same images.

    A revision that differs from it in removed fields alone is one that the spec requested.
    """
    if all(kept.snapshot.processes == 1 for kept in facts.kept.values()):
        return snapshot
    name, images, requested = snapshot.revision(), _images(snapshot), _list_requested(facts)
    ranked = [
        (_rank(facts.model, revision), revision.kept.snapshot.processes)
        for revision in facts.revisions
        if revision.kept
        and (
            (revision.revision in requested and images <= _images(revision.kept.snapshot))
            or revision.kept.snapshot.model_copy(update={"processes": 1}).revision() == name
        )
    ]
    return snapshot.model_copy(update={"processes": max(ranked)[1]}) if ranked else snapshot


def is_of_spec(facts: Facts, revision: str, hashed: str) -> bool:
    """Return whether a hash, recorded for a revision, is of the current spec, also as it was with removed fields."""
    spec, processes = facts.model.spec, _processes(facts, revision)
    return hashed == spec_hash(spec) or (processes > 1 and hashed == spec_hash(spec, processes))


def is_applied_of_spec(facts: Facts) -> bool:
    """Return whether the applied revision is what the current spec requested."""
    applied = facts.model.status.applied
    return applied is not None and is_of_spec(facts, applied.revision, applied.spec_hash)


def keeps_processes(facts: Facts) -> bool:
    """Return whether the spec requests several server processes in each pod only as a revision that is stored."""
    return _processes(facts, _last_requested(facts)) > 1


def has_lost(facts: Facts, requested: str | None) -> bool:
    """Return whether the spec has lost removed fields since the last plan that knew what it requests."""
    names = {requested, _find_stored(facts, requested)}
    hashes = {hashed for name, hashed in _records(facts) if name in names}
    return (
        requested is not None
        and keeps_processes(facts)
        and spec_hash(facts.model.spec) not in hashes
    )


def processes_removed(
    facts: Facts, serving: ServingState | None, requested: str | None
) -> EventIntent | None:
    """Return the Event that says what replaces the processes of what the spec requests, if it has several."""
    name = _find_stored(facts, requested)
    processes = _processes(facts, name)
    if serving is None or processes == 1:
        return None
    pods = ", ".join(
        f"{device_class.replicas * processes} instead of {device_class.replicas} on class {device_class.class_name}"
        for device_class in serving.classes
        if device_class.replicas
    )
    fields = "minReplicas and maxReplicas" if facts.model.spec.serving.autoscaling else "replicas"
    message = (
        f"revision {name} has {processes} server processes in each pod, which spec.serving.processes requested"
        f" and no spec can request from now on. It keeps them, with its runtime image. {processes} replicas"
        f" replace one of its pods{f' ({pods})' if pods else ''}, each with 1/{processes} of the CPUs: write"
        f" their number into {fields}, their CPUs into podTemplate.resources, and the next revision is rolled out"
    )
    return EventIntent("Warning", StatusReason.PROCESSES_REMOVED, message)


def _records(facts: Facts) -> Iterator[tuple[str, str]]:
    status = facts.model.status
    yield from ((item.revision, item.spec_hash) for item in (status.applied, status.target) if item)
    yield from ((one.revision, one.outcome.spec_hash) for one in facts.revisions if one.outcome)


def _list_requested(facts: Facts) -> set[str]:
    return {name for name, hashed in _records(facts) if is_of_spec(facts, name, hashed)}


def _find_stored(facts: Facts, requested: str | None) -> str:
    """Return the wanted revision if it is stored, else the one that the spec requested last, if any."""
    return requested if requested in facts.kept and requested else _last_requested(facts)


def _last_requested(facts: Facts) -> str:
    requested = _list_requested(facts) & facts.kept.keys()
    stored = [revision for revision in facts.revisions if revision.revision in requested]
    return max(stored, key=lambda view: _rank(facts.model, view)).revision if stored else ""


def _rank(model: InferenceModel, revision: RevisionView) -> tuple[bool, bool, float, int]:
    """Return the sort key of a revision: one that is requested or active again keeps its number."""
    name, status, outcome = revision.revision, model.status, revision.outcome
    return (
        name == status.revision,  # which is empty while it is not known what the spec requests
        status.target is not None and name == status.target.revision,
        outcome.at.timestamp() if outcome and outcome.state != "Superseded" else 0.0,
        revision.number,
    )


def _processes(facts: Facts, revision: str) -> int:
    return facts.kept[revision].snapshot.processes if revision in facts.kept else 1


def _images(snapshot: Snapshot) -> set[str]:
    return {device_class.image for device_class in snapshot.classes}
