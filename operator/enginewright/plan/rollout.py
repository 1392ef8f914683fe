"""What serves and what is to serve: revisions, Deployments, and how far they have come.

A refused or unfinished update takes nothing away: while the wanted revision is not there, the last
good one is applied, whole, from its snapshot.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from enginewright.api.inference_model_status import Prepared, ServingClass, ServingState
from enginewright.manifests.deployment import serving_deployment, sidecar_memory
from enginewright.manifests.labels import COMPONENT, REVISION
from enginewright.manifests.names import revision_name
from enginewright.manifests.service import disruption_budget, service
from enginewright.manifests.snapshot import Snapshot, class_snapshot, controller_revision
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.plan import pods
from enginewright.plan.proofs import refusal
from enginewright.plan.resolve import Target
from enginewright.plan.types import Facts, ObjectRef

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
    known = {each.revision: each.snapshot for each in facts.revisions if each.snapshot}
    held = facts.model.spec.rollout.paused
    applied = (_last_good(facts, known) if held else wanted) or _last_good(facts, known)
    deployments = {each.accelerator_class: each for each in facts.deployments}
    ready = sum(each.ready_pods for each in facts.deployments)
    revision = wanted.revision if wanted else None
    if applied is None:
        return Rollout(revision, None, 0, ready, facts.model.status.serving, None)
    replicas = {each.name: _replicas(facts, each.name) for each in applied.classes}
    progress = _progress(facts, applied, deployments, replicas)
    gone = [each for each in facts.deployments if each.accelerator_class not in replicas]
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


def _last_good(facts: Facts, known: Mapping[str, Snapshot]) -> Snapshot | None:
    """Return the revision that served last, else the one that the Deployments carry."""
    serving = facts.model.status.serving
    names = [serving.revision] if serving else []
    names += sorted({each.revision for each in facts.deployments})
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
    numbers = {each.revision: each.number for each in facts.revisions}
    return numbers.get(revision, max(numbers.values(), default=0) + 1)


def _removals(facts: Facts, deployments: Iterable[DeploymentView]) -> Iterable[ObjectRef]:
    namespace = facts.model.metadata.namespace
    for each in deployments:
        yield ObjectRef("apps/v1", "Deployment", namespace, each.name)
        yield ObjectRef("policy/v1", "PodDisruptionBudget", namespace, each.name)


def _old_revisions(facts: Facts, keep: str) -> Iterable[ObjectRef]:
    model = facts.model
    serving = model.status.serving
    pinned = {keep, serving.revision if serving else ""}
    loose = [each for each in facts.revisions if each.revision not in pinned]
    loose.sort(key=lambda each: each.number, reverse=True)
    for each in loose[KEPT_REVISIONS - 1 :]:
        name = revision_name(model.metadata.name, each.revision)
        yield ObjectRef("apps/v1", "ControllerRevision", model.metadata.namespace, name)


def _progress(
    facts: Facts,
    snapshot: Snapshot,
    deployments: Mapping[str, DeploymentView],
    replicas: Mapping[str, int],
) -> Progress:
    parts = []
    complete, stuck = True, False
    for each in snapshot.classes:
        wanted = replicas[each.name]
        deployment = deployments.get(each.name)
        carries = deployment if deployment and _carries(deployment, snapshot.revision) else None
        available = carries.available_updated() if carries else 0
        complete = complete and carries is not None and carries.is_complete(wanted)
        stuck = stuck or (carries is not None and carries.is_stuck)
        parts.append(f"{each.name} {min(available, wanted)}/{wanted}")
    message = f"pods ready: {', '.join(parts)}"
    if complete:
        return Progress(complete=True, message=message)
    mine = [
        pod
        for pod in facts.pods
        if pod.label(COMPONENT) == "serve" and pod.label(REVISION) == snapshot.revision
    ]
    unready = [pod for pod in mine if not pod.ready and not pod.leaving]
    failed = next((each for each in map(pods.failure, unready) if each), None)
    failed = failed or next((each for each in _refused(facts, unready) if each), None)
    trouble = next((each for each in map(pods.waiting_for, unready) if each), "")
    if trouble:
        message = f"{message}; {trouble}"
    return Progress(complete=False, message=message, failure=failed, stuck=stuck)


def _refused(facts: Facts, unready: Iterable[PodView]) -> Iterable[pods.Failure | None]:
    """Yield what the sidecars of pods that serve already, but are not let in, have found."""
    for pod in unready:
        verdict = facts.verdicts.get(pod.name)
        yield refusal(verdict) if verdict else None


def _carries(deployment: DeploymentView, revision: str) -> bool:
    """Return whether the Deployment's counts are of this revision."""
    return deployment.revision == revision and deployment.is_current


def _serving(
    facts: Facts,
    applied: Snapshot,
    progress: Progress,
    known: Mapping[str, Snapshot],
    deployments: Mapping[str, DeploymentView],
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
            replicas=replicas.get(
                each.name, there.asked if (there := deployments.get(each.name)) else 0
            ),
            ready_replicas=there.ready_pods if (there := deployments.get(each.name)) else 0,
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
