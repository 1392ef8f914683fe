"""Rollouts: which revision the Deployments have, what else is applied for it and for a canary, and what is removed.

A rejected or unfinished update interrupts nothing: until the requested revision is available, the last
complete one is applied from its snapshot.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from enginewright.api.conditions import ConditionType
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import (
    AppliedState,
    ModelSignature,
    RolloutFailure,
    ServingState,
    SourceState,
    TargetRevision,
)
from enginewright.manifests.deployment import claim_templates, serving_deployment
from enginewright.manifests.labels import CLASS, COMPONENT, REVISION, SERVE
from enginewright.manifests.names import deployment_name, revision_name
from enginewright.manifests.service import disruption_budget, service
from enginewright.manifests.snapshot import Revision, Snapshot, controller_revision
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.plan.history.outcomes import (
    find_rejection,
    find_serving,
    is_rejected_for_spec,
    list_promoted,
    outcomes,
    serving_now,
)
from enginewright.plan.history.spec_hash import spec_hash
from enginewright.plan.rollout.applied_revision import (
    bring_up_requested,
    describe_ignored_rollback,
    find_requested_revision,
    keep_revision,
)
from enginewright.plan.rollout.bring_up import BringUp
from enginewright.plan.rollout.canary.pods import covering_canaries, stop_canary
from enginewright.plan.rollout.canary.rollback import is_given_up
from enginewright.plan.rollout.pod_counts import (
    PodCounts,
    RolloutProgress,
    asks_for_pods,
    autoscalers,
    count_to_apply,
    find_awaited_classes,
    find_obsolete_autoscalers,
    handovers,
    pod_counts,
)
from enginewright.plan.rollout.revisions import read_revisions, revision_of
from enginewright.plan.rollout.route import find_obsolete_routes, route_objects
from enginewright.plan.types import Facts, MetadataIntent, ObjectRef, ReplicasHandover

KEPT_REVISIONS: Final = 5


@dataclass(frozen=True)
class RolloutPlan:
    """What to apply for serving, and what serves."""

    requested: str | None  # revision that the spec requests, once known
    applied: str | None  # revision that the Deployments have from now on
    desired: int  # pods
    ready_replicas: int
    serving: ServingState | None
    progress: RolloutProgress | None
    bring_up: BringUp | None = None  # of the requested revision, if known
    interrupts: bool = False  # pods that serve end before those of the applied revision start
    left_to_others: Collection[str] = ()  # reasons for which another backend is tried
    ignored_rollback: str = ""  # what a user's rollback asks for and does not get
    apply: tuple[dict[str, Any], ...] = ()
    otherwise: tuple[dict[str, Any], ...] = ()  # as in `Plan`
    delete: tuple[ObjectRef, ...] = ()
    metadata: tuple[MetadataIntent, ...] = ()
    hand_over: tuple[ReplicasHandover, ...] = ()

    @property
    def rejection(self) -> RolloutFailure | None:
        """Return why the requested revision is not rolled out, if it is rejected."""
        return self.bring_up.rejection if self.bring_up else None

    def newly_rejected(self, facts: Facts) -> str:
        """Return the reason for which the requested revision is rejected from now on, if it is."""
        rejection, status = self.rejection, facts.model.status
        if rejection is None:
            return ""
        # the status is written last: if it lacks the failure, it was interrupted, and is not counted yet
        reported = status.last_failure and status.last_failure.revision == rejection.revision
        again = find_rejection(facts, rejection.revision) is None and not any(
            condition.type == ConditionType.ROLLED_BACK and condition.status == "True"
            for condition in status.conditions
        )
        return "" if reported and not again else rejection.reason

    @property
    def target(self) -> TargetRevision | None:
        """Return the revision that is being brought up, if any."""
        return self.bring_up.target if self.bring_up else None


def roll_out(
    facts: Facts,
    snapshot: Snapshot | None,
    source: SourceState | None = None,
    yielding: Collection[str] = (),
    left_to_others: Collection[str] = (),
    signature: ModelSignature | None = None,
) -> RolloutPlan:
    """Return the rollout of a snapshot, or of the previous revision if there is none or it may not serve yet.

    Classes in `yielding` have no pods for now. For reasons in `left_to_others` another backend is tried
    instead of a rollback. `signature` is that of the snapshot.
    """
    stored = read_revisions(facts.config, facts.revisions)
    new = revision_of(facts, stored, snapshot, source, signature) if snapshot else None
    deployments = _of_classes(facts.deployments)
    requested = new or find_requested_revision(facts, stored)
    counted = _counts_before(facts, requested, deployments)
    brought = None
    if requested is not None:
        brought = bring_up_requested(
            facts,
            stored,
            requested,
            tuple(deployments.values()),
            left_to_others,
            complete=counted is not None and counted.complete,
        )
    if brought and not asks_for_pods(facts.model.spec, deployments):
        brought = replace(brought, canaries={})
    promoted = brought.revision if brought and brought.promotes else None
    names = stored.keys() | {deployment.revision for deployment in facts.deployments}
    is_there = promoted is not None and promoted.name in names
    serves = None if is_there else keep_revision(facts, stored, deployments, brought)
    applied = promoted or serves
    ready = sum(deployment.ready_pods for deployment in facts.deployments)
    name = new.name if new else None
    if applied is None:
        return RolloutPlan(name, None, 0, ready, find_serving(facts), None, brought)
    covering = covering_canaries(facts, applied.name)
    if brought:
        brought = _beside(facts.pods, brought, covering, applied)
    canaries = brought.canaries if brought else {}
    rejection = brought.rejection if brought else None
    rejected = brought.revision.name if brought and rejection else ""
    # once the canary is there: it might be refused, and a pod would end for nothing
    there = {canary.accelerator_class: canary.desired for canary in facts.canaries}
    lent = {name: min(count, there.get(name, 0)) for name, count in canaries.items()}
    pods = pod_counts(facts, applied, deployments, lent, counted)
    counts, progress, served = pods.counts, pods.progress, find_serving(facts)
    if (served is None and applied.name == rejected) or is_given_up(facts, applied.name):
        yielding = counts
    now = {name: 0 if name in yielding else count for name, count in counts.items()}
    kept = {deployments[name].name for name in counts if name in deployments}
    gives_up = applied is new or rejection is not None
    awaited = set() if gives_up else find_awaited_classes(facts.model, counts) - set(yielding)
    obsolete = [
        deployment
        for deployment in facts.deployments
        if deployment.name not in kept
        and deployment.accelerator_class not in awaited
        # of a rejected revision, once nothing of it serves
        and (
            progress.complete
            or (deployment.revision == rejected != "" and not deployment.available)
        )
    ]
    rolled_out = pods.complete or (brought is not None and brought.rolled_out)
    serving = serving_now(facts, applied, rolled_out, stored, deployments, counts)
    last_complete = serving.last_complete if serving else ""
    needed = {applied.name, name or "", last_complete, brought.revision.name if brought else ""}
    return RolloutPlan(
        requested=name,
        applied=applied.name,
        desired=sum(counts.values()),
        ready_replicas=ready,
        serving=serving,
        progress=progress,
        interrupts=ends_pods_first(facts.model, counts),
        bring_up=brought,
        left_to_others=left_to_others,
        ignored_rollback=describe_ignored_rollback(facts.model, stored, applied.name, rejected),
        apply=(
            *serving_objects(facts, applied, deployments, now),
            *canary_objects(facts, brought, applied),
            *autoscalers(facts, applied, deployments, now),
            *route_objects(facts, brought, applied, deployments),
        ),
        otherwise=_keep_serving(facts, serves, deployments, lent, yielding)
        if promoted and serves
        else (),
        delete=(
            *find_obsolete_routes(facts),
            *removals(facts.model, obsolete),
            *stop_canary(facts.canaries, {*canaries, *covering}),
            *other_budgets(facts),
            *find_obsolete_autoscalers(facts, deployments, now),
            *old_revisions(facts, needed),
        ),
        metadata=(
            *outcomes(
                facts, name, last_complete, served.last_complete if served else "", rejection
            ),
            *((*brought.labels, *brought.shadow) if brought else ()),
        ),
        hand_over=handovers(facts, deployments, now),
    )


def _counts_before(
    facts: Facts, requested: Revision | None, deployments: Mapping[str, DeploymentView]
) -> PodCounts | None:
    """Return the counts of the requested revision beside the present canary, if it was applied until now."""
    applied = facts.model.status.applied
    if requested is None or applied is None or applied.revision != requested.name:
        return None
    lent = {canary.accelerator_class: canary.desired for canary in facts.canaries}
    return pod_counts(facts, requested, deployments, lent)


def _beside(
    model_pods: Collection[PodView], brought: BringUp, covering: Collection[str], applied: Revision
) -> BringUp:
    """Return what is brought up beside canaries that serve in place of the applied revision's pods."""
    if brought.canary.name == applied.name:
        return brought
    pods = {
        pod.name
        for pod in model_pods
        if pod.is_canary and pod.label(REVISION) == applied.name and pod.label(CLASS) in covering
    }
    return replace(
        brought,
        canaries={name: n for name, n in brought.canaries.items() if name not in covering},
        labels=tuple(label for label in brought.labels if label.name not in pods),
    )


def _of_classes(deployments: Iterable[DeploymentView]) -> dict[str, DeploymentView]:
    """Return the Deployment of each class: of two, as named by different versions, the one that serves."""
    ranked = sorted(deployments, key=lambda deployment: (deployment.available, deployment.name))
    return {view.accelerator_class: view for view in ranked}


def ends_pods_first(model: InferenceModel, counts: Mapping[str, int]) -> bool:
    """Return whether all serving pods end before those of another revision start."""
    strategy = model.spec.rollout.strategy
    alone = max(counts.values(), default=0) <= 1
    return strategy == "Recreate" or (strategy == "InPlace" and alone)


def record_applied(model: InferenceModel, rollout: RolloutPlan) -> AppliedState | None:
    """Return the record of the applied revision."""
    if rollout.applied is None:
        return model.status.applied
    if rollout.applied == rollout.requested:
        return AppliedState(revision=rollout.applied, spec_hash=spec_hash(model.spec))
    before = model.status.applied
    if before and before.revision == rollout.applied:
        return before
    return AppliedState(revision=rollout.applied)


def serving_objects(
    facts: Facts,
    revision: Revision,
    deployments: Mapping[str, DeploymentView],
    counts: Mapping[str, int],
) -> Iterable[dict[str, Any]]:
    """Yield the objects in the order of dependence: the revision first, so that it is never missing."""
    model = facts.model
    numbers = {view.revision: view.number for view in facts.revisions}
    if revision.name not in numbers:  # revisions are immutable
        yield controller_revision(model, revision, max(numbers.values(), default=0) + 1)
    yield service(model, tls=revision.snapshot.tls_secret is not None)
    superseded = find_superseded(facts, revision.name)
    for accelerator, count in counts.items():
        # an existing one keeps its name, also if an earlier version chose it
        existing = deployments.get(accelerator)
        name = existing.name if existing else deployment_name(model.metadata.name, accelerator)
        yield disruption_budget(model, accelerator, name=name)
        yield from claim_templates(model, revision, accelerator)
        applied = count_to_apply(facts, accelerator, existing, count)
        yield serving_deployment(
            model,
            revision,
            accelerator,
            name=name,
            replicas=applied,
            strategy="Recreate" if accelerator in superseded else "",
        )


def _keep_serving(
    facts: Facts,
    serves: Revision,
    deployments: Mapping[str, DeploymentView],
    lent: Mapping[str, int],
    yielding: Collection[str],
) -> tuple[dict[str, Any], ...]:
    """Return what serves on where the revision that is to replace it cannot be stored."""
    counts = pod_counts(facts, serves, deployments, lent).counts
    now = {name: 0 if name in yielding else count for name, count in counts.items()}
    return tuple(serving_objects(facts, serves, deployments, now))


def find_superseded(facts: Facts, revision: str) -> set[str]:
    """Return the classes on which only pods of other revisions than the applied one wait, where nothing has served.

    They end at once, since one of them would take the device that both wait for; surge pods would wait beside them.
    """
    if find_serving(facts) is not None:
        return set()
    there = [
        pod
        for pod in facts.pods
        if pod.label(COMPONENT) == SERVE and not pod.is_canary and not pod.leaving
    ]
    others = {pod.label(CLASS) for pod in there if pod.label(REVISION) != revision}
    return others - {pod.label(CLASS) for pod in there if pod.ready}


def canary_objects(
    facts: Facts, brought: BringUp | None, applied: Revision
) -> Iterable[dict[str, Any]]:
    """Yield the canary's objects, the revision first."""
    if brought is None or not brought.canaries:
        return
    numbers = {revision.revision: revision.number for revision in facts.revisions}
    if brought.revision.name not in numbers and brought.revision is not applied:
        # after the number of the applied one, which may be created in the same pass
        number = max(numbers.values(), default=0) + 1 + (applied.name not in numbers)
        yield controller_revision(facts.model, brought.revision, number)
    yield from brought.deployments(facts.model)


def removals(model: InferenceModel, deployments: Iterable[DeploymentView]) -> Iterable[ObjectRef]:
    """Yield Deployments with their budgets."""
    namespace = model.metadata.namespace
    for deployment in deployments:
        yield ObjectRef("apps/v1", "Deployment", namespace, deployment.name)
        yield ObjectRef("policy/v1", "PodDisruptionBudget", namespace, deployment.name)


def other_budgets(facts: Facts) -> Iterable[ObjectRef]:
    """Yield budgets without their Deployment: pods matched by two budgets cannot be evicted."""
    names = {deployment.name for deployment in facts.deployments}
    covered = {deployment.accelerator_class for deployment in facts.deployments}
    for budget in facts.budgets:
        if budget.name not in names and budget.label(CLASS) in covered:
            yield ObjectRef("policy/v1", "PodDisruptionBudget", budget.namespace, budget.name)


def old_revisions(facts: Facts, keep: Collection[str]) -> Iterable[ObjectRef]:
    """Yield the revisions that are not needed any more, of which those that failed for another spec go first.

    Needed are those in `keep`, what served and what runs, what was rejected for the current spec or may be tried
    again, and two that were promoted: the active one, and the one to which it can go back.
    """
    model = facts.model
    serving = find_serving(facts)
    readable = [view for view in facts.revisions if view.kept]
    pinned = {
        *keep,
        *((serving.revision, serving.last_complete) if serving else ()),
        *(view.revision for view in (*facts.deployments, *facts.canaries)),
        *(rejected_backend.revision for rejected_backend in model.status.rejected_backends),
        *list_promoted(readable)[:2],
    }
    unpinned = [
        ((view.outcome is None or view.outcome.state != "Superseded", view.number), view.revision)
        for view in facts.revisions
        if view.revision not in pinned and not is_rejected_for_spec(facts, view)
    ]
    unpinned.sort(key=lambda pair: pair[0], reverse=True)
    for _, revision in unpinned[KEPT_REVISIONS - 1 :]:
        name = revision_name(model.metadata.name, revision)
        yield ObjectRef("apps/v1", "ControllerRevision", model.metadata.namespace, name)
