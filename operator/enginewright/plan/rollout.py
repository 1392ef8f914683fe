"""What serves and what is to serve: revisions, Deployments, and how far they have come.

A refused or unfinished update takes nothing away: while the wanted revision is not there, the last
good one is applied, whole, from its snapshot.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from enginewright.api.inference_model_status import Prepared, ServingClass, ServingState
from enginewright.manifests.deployment import serving_deployment, sidecar_memory
from enginewright.manifests.labels import CLASS, COMPONENT, REVISION
from enginewright.manifests.names import revision_name
from enginewright.manifests.service import disruption_budget, service
from enginewright.manifests.snapshot import Snapshot, class_snapshot, controller_revision
from enginewright.plan import pods
from enginewright.plan.job_state import label
from enginewright.plan.proofs import refusal
from enginewright.plan.resolve import Target
from enginewright.plan.types import Facts, Object, ObjectRef

KEPT_REVISIONS: Final = 5


@dataclass(frozen=True)
class Progress:
    """How far the applied revision has come."""

    complete: bool
    message: str  # pods of each class, and what keeps them
    failure: pods.Failure | None = None  # of a pod of the applied revision
    stuck: bool = False  # Kubernetes gave up waiting


@dataclass(frozen=True)
class Rollout:
    """What is to be applied for serving, and what serves."""

    wanted: str | None  # revision that the spec asks for; None: not known yet
    applied: str | None  # revision that the Deployments carry from now on
    replicas: int
    ready_replicas: int
    serving: ServingState | None
    progress: Progress | None
    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectRef, ...] = ()


def wanted_snapshot(
    facts: Facts, target: Target, prepared: Prepared, engines: Mapping[str, str]
) -> Snapshot:
    """Return the revision that the spec asks for; `engines` are keys by accelerator class."""
    spec = facts.model.spec
    template = spec.pod_template.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
    )
    sidecar = spec.serving.sidecar.resources.model_dump(
        mode="json", by_alias=True, exclude_defaults=True
    )
    size = prepared.golden_output_bytes
    return Snapshot(
        prepared_key=prepared.key,
        model_digest=prepared.model_digest,
        classes=tuple(
            class_snapshot(each, target.backend, target.image, engines.get(each.metadata.name))
            for each in target.classes
        ),
        promise=target.promise,
        strategy=spec.rollout.strategy,
        max_queue=spec.serving.max_queue,
        pod_template=template,
        pull_policy=facts.config.image_pull_policy,
        pull_secrets=facts.config.image_pull_secrets,
        store_claim=facts.config.store.claim,
        # what changes nothing restarts no pods of revisions from before it was known
        golden_output_bytes=size if sidecar_memory(size) > sidecar_memory(None) else None,
        sidecar_resources=sidecar,
    )


def roll_out(facts: Facts, wanted: Snapshot | None) -> Rollout:
    """Return what is to serve: `wanted` when there is one and nothing holds it, else the last good."""
    known = _snapshots(facts)
    held = facts.model.spec.rollout.paused
    applied = (_last_good(facts, known) if held else wanted) or _last_good(facts, known)
    deployments = {label(each, CLASS): each for each in facts.deployments}
    ready = sum(
        int((each.get("status") or {}).get("readyReplicas") or 0) for each in facts.deployments
    )
    revision = wanted.revision if wanted else None
    if applied is None:
        return Rollout(revision, None, 0, ready, facts.model.status.serving, None)
    replicas = {each.name: _replicas(facts, each.name) for each in applied.classes}
    progress = _progress(facts, applied, deployments, replicas)
    gone = [each for each in facts.deployments if label(each, CLASS) not in replicas]
    return Rollout(
        wanted=revision,
        applied=applied.revision,
        replicas=sum(replicas.values()),
        ready_replicas=ready,
        serving=_serving(facts, applied, progress, known, deployments, replicas),
        progress=progress,
        apply=tuple(_objects(facts, applied, replicas)),
        delete=(
            *(_removals(facts, gone) if progress.complete else ()),
            *_old_revisions(facts, keep=applied.revision),
        ),
    )


def _snapshots(facts: Facts) -> dict[str, Snapshot]:
    found = {}
    for each in facts.revisions:
        try:
            snapshot = Snapshot.read(each)
        except ValidationError:
            continue  # another version's: it can be served no more, only replaced
        found[label(each, REVISION)] = snapshot
    return found


def _last_good(facts: Facts, known: Mapping[str, Snapshot]) -> Snapshot | None:
    """Return the revision that served last, else the one that the Deployments carry."""
    serving = facts.model.status.serving
    names = [serving.revision] if serving else []
    names += sorted({label(each, REVISION) for each in facts.deployments})
    return next((known[name] for name in names if name in known), None)


def _replicas(facts: Facts, accelerator_class: str) -> int:
    spec = facts.model.spec
    for each in spec.accelerators or ():
        if each.class_name == accelerator_class and each.replicas is not None:
            return each.replicas
    return spec.replicas


def _objects(
    facts: Facts, snapshot: Snapshot, replicas: Mapping[str, int]
) -> Iterable[dict[str, Any]]:
    """Yield in the order of dependence: the snapshot first, so that it is never missing."""
    model = facts.model
    yield controller_revision(model, snapshot, _number(facts, snapshot.revision))
    yield service(model)
    for each in snapshot.classes:
        yield disruption_budget(model, each.name)
        yield serving_deployment(model, snapshot, each, replicas[each.name])


def _number(facts: Facts, revision: str) -> int:
    """Return the revision's number: its own when it is known, else the next."""
    numbers = {label(each, REVISION): int(each.get("revision") or 0) for each in facts.revisions}
    return numbers.get(revision, max(numbers.values(), default=0) + 1)


def _removals(facts: Facts, deployments: Iterable[Object]) -> Iterable[ObjectRef]:
    namespace = facts.model.metadata.namespace
    for each in deployments:
        name = each["metadata"]["name"]
        yield ObjectRef("apps/v1", "Deployment", namespace, name)
        yield ObjectRef("policy/v1", "PodDisruptionBudget", namespace, name)


def _old_revisions(facts: Facts, keep: str) -> Iterable[ObjectRef]:
    model = facts.model
    serving = model.status.serving
    pinned = {keep, serving.revision if serving else ""}
    loose = [each for each in facts.revisions if label(each, REVISION) not in pinned]
    loose.sort(key=lambda each: int(each.get("revision") or 0), reverse=True)
    for each in loose[KEPT_REVISIONS - 1 :]:
        name = revision_name(model.metadata.name, label(each, REVISION))
        yield ObjectRef("apps/v1", "ControllerRevision", model.metadata.namespace, name)


def _progress(
    facts: Facts,
    snapshot: Snapshot,
    deployments: Mapping[str, Object],
    replicas: Mapping[str, int],
) -> Progress:
    parts = []
    complete, stuck = True, False
    for each in snapshot.classes:
        wanted = replicas[each.name]
        deployment = deployments.get(each.name)
        updated = _updated(deployment, snapshot.revision)
        complete = complete and _complete(deployment, snapshot.revision, wanted)
        stuck = stuck or (updated is not None and _gave_up(deployment))
        parts.append(f"{each.name} {min(updated or 0, wanted)}/{wanted}")
    message = f"pods ready: {', '.join(parts)}"
    if complete:
        return Progress(complete=True, message=message)
    mine = [
        pod
        for pod in facts.pods
        if label(pod, COMPONENT) == "serve" and label(pod, REVISION) == snapshot.revision
    ]
    unready = [pod for pod in mine if not pods.is_ready(pod) and not pods.leaving(pod)]
    failed = next((each for each in map(pods.failure, unready) if each), None)
    failed = failed or next((each for each in _refused(facts, unready) if each), None)
    trouble = next((each for each in map(pods.trouble, unready) if each), "")
    if trouble:
        message = f"{message}; {trouble}"
    return Progress(complete=False, message=message, failure=failed, stuck=stuck)


def _refused(facts: Facts, unready: Iterable[Object]) -> Iterable[pods.Failure | None]:
    """Yield what the sidecars of pods that serve already, but are not let in, have found."""
    for pod in unready:
        verdict = facts.verdicts.get(pod["metadata"]["name"])
        yield refusal(verdict) if verdict else None


def _updated(deployment: Object | None, revision: str) -> int | None:
    """Return how many pods of this revision are available; None before the Deployment has it."""
    if deployment is None or label(deployment, REVISION) != revision:
        return None
    status = deployment.get("status") or {}
    if int(status.get("observedGeneration") or 0) < int(
        deployment["metadata"].get("generation") or 0
    ):
        return None
    unavailable = int(status.get("replicas") or 0) - int(status.get("updatedReplicas") or 0)
    available = int(status.get("availableReplicas") or 0)
    return max(0, available - max(0, unavailable))


def _complete(deployment: Object | None, revision: str, wanted: int) -> bool:
    if deployment is None or _updated(deployment, revision) is None:
        return False
    status = deployment.get("status") or {}
    counts = [
        int(status.get(key) or 0) for key in ("replicas", "updatedReplicas", "availableReplicas")
    ]
    return _asked(deployment) == wanted and all(count == wanted for count in counts)


def _gave_up(deployment: Object | None) -> bool:
    conditions = ((deployment or {}).get("status") or {}).get("conditions") or ()
    return any(each.get("reason") == "ProgressDeadlineExceeded" for each in conditions)


def _serving(
    facts: Facts,
    applied: Snapshot,
    progress: Progress,
    known: Mapping[str, Snapshot],
    deployments: Mapping[str, Object],
    replicas: Mapping[str, int],
) -> ServingState | None:
    before = facts.model.status.serving
    if not progress.complete and before is None:
        return None
    snapshot = applied if progress.complete or before is None else known.get(before.revision)
    if snapshot is None:
        return before
    classes = tuple(
        ServingClass(
            class_name=each.name,
            backend=each.backend,
            replicas=replicas.get(each.name, _asked(deployments.get(each.name))),
            ready_replicas=_ready_replicas(deployments.get(each.name)),
        )
        for each in snapshot.classes
    )
    return ServingState(
        revision=snapshot.revision,
        prepared_key=snapshot.prepared_key,
        model_digest=snapshot.model_digest,
        backend=snapshot.classes[0].backend,
        classes=classes,
    )


def _ready_replicas(deployment: Object | None) -> int:
    return int(((deployment or {}).get("status") or {}).get("readyReplicas") or 0)


def _asked(deployment: Object | None) -> int:
    return int(((deployment or {}).get("spec") or {}).get("replicas") or 0)
