"""Rollouts: which revision the Deployments have, and what else is applied for it.

A rejected or unfinished update interrupts nothing: until the wanted revision is available, the last
complete one is applied from its snapshot.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from enginewright.api.conditions import ConditionType
from enginewright.api.inference_model_status import (
    AppliedState,
    ModelSignature,
    RolloutFailure,
    ServingState,
    SourceState,
    TargetRevision,
)
from enginewright.manifests.deployment import serving_deployment
from enginewright.manifests.labels import CANARY, CLASS, PROMOTE, REVISION, ROLLBACK, TRACK
from enginewright.manifests.names import deployment_name, revision_name
from enginewright.manifests.service import disruption_budget, service
from enginewright.manifests.snapshot import Revision, Snapshot, controller_revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan import autoscaling
from enginewright.plan.bring_up import BringUp
from enginewright.plan.canary import bring_up
from enginewright.plan.canary_pods import stop_canary
from enginewright.plan.canary_requests import covering_canaries
from enginewright.plan.outcomes import (
    outcomes,
    promoted,
    recorded_rejection,
    rejection_by_user,
    was_proven,
)
from enginewright.plan.progress import RolloutProgress, progress_of
from enginewright.plan.regression import STAGE
from enginewright.plan.replicas import asks_for_pods, covering, fixed, replicas_by_class
from enginewright.plan.revisions import revision_of, with_templates
from enginewright.plan.rollback import look_back
from enginewright.plan.route import route_objects, unwanted_routes
from enginewright.plan.served import ready_revisions, served_before, serving_now
from enginewright.plan.spec_hash import spec_hash
from enginewright.plan.types import Facts, MetadataIntent, ObjectRef, ReplicasHandover

KEPT_REVISIONS: Final = 5


@dataclass(frozen=True)
class RolloutPlan:
    """What to apply for serving, and what serves."""

    wanted: str | None  # revision that the spec requests; None: not known yet
    applied: str | None  # revision that the Deployments have from now on
    desired: int  # pods
    ready_replicas: int
    serving: ServingState | None
    progress: RolloutProgress | None
    bring_up: BringUp | None = None  # of the wanted revision; None: not known
    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    metadata: tuple[MetadataIntent, ...] = ()
    hand_over: tuple[ReplicasHandover, ...] = ()

    @property
    def rejection(self) -> RolloutFailure | None:
        """Return why the wanted revision is not rolled out; None: it is, or is not known."""
        return self.bring_up.rejection if self.bring_up else None

    def newly_rejected(self, facts: Facts) -> str:
        """Return the reason for which the wanted revision is rejected from now on; empty: none."""
        rejection, status = self.rejection, facts.model.status
        if rejection is None:
            return ""
        # the status is written last: one that does not have it was interrupted, and is not counted yet
        known = status.last_failure and status.last_failure.revision == rejection.revision
        again = recorded_rejection(facts, rejection.revision) is None and not any(
            each.type == ConditionType.ROLLED_BACK and each.status == "True"
            for each in status.conditions
        )
        return "" if known and not again else rejection.reason

    @property
    def target(self) -> TargetRevision | None:
        """Return the revision that is being brought up; None: none is."""
        return self.bring_up.target if self.bring_up else None


def roll_out(
    facts: Facts,
    wanted: Snapshot | None,
    source: SourceState | None = None,
    yielding: Collection[str] = (),
    left_to_others: Collection[str] = (),
    signature: ModelSignature | None = None,
) -> RolloutPlan:
    """Return the rollout of `wanted`; if that is None or may not serve yet, of the previous revision.

    Classes in `yielding` have no pods for now. For reasons in `left_to_others` another backend is tried
    instead of a rollback. `signature` is that of `wanted`.
    """
    known = {each.revision: each.kept for each in facts.revisions if each.kept}
    wanted_revision = revision_of(facts, known, wanted, source, signature) if wanted else None
    deployments = _of_classes(facts.deployments)
    brought = _bring_up(facts, known, wanted_revision, deployments, left_to_others)
    if brought and not asks_for_pods(facts.model.spec, deployments):
        brought = replace(brought, canaries={})
    promoted = brought.revision if brought and brought.promotes else None
    applied = promoted or _kept(facts, known, deployments, brought)
    ready = sum(each.ready_pods for each in facts.deployments)
    name = wanted_revision.name if wanted_revision else None
    if applied is None:
        return RolloutPlan(name, None, 0, ready, served_before(facts), None, brought)
    covering = covering_canaries(facts, applied.name)
    if brought:
        brought = _beside(facts, brought, covering, applied)
    counts = _in_place(facts, _counts(facts, applied, deployments), brought, deployments)
    now = _without(counts, yielding)
    progress = progress_of(facts, applied, deployments, counts)
    kept = {deployments[name].name for name in counts if name in deployments}
    gives_up = applied is wanted_revision or (brought is not None and brought.rejection is not None)
    awaited = set() if gives_up else _awaited(facts, counts) - set(yielding)
    obsolete = [
        each
        for each in facts.deployments
        if each.name not in kept and each.accelerator_class not in awaited
    ]
    rolled_out = (progress.complete and any(counts.values())) or (
        brought is not None and brought.rolled_out
    )
    serving = serving_now(facts, applied, rolled_out, known, deployments, counts)
    before = served_before(facts)
    canary = tuple(_canary_objects(facts, brought, applied)) if brought else ()
    in_place = facts.model.spec.rollout.strategy == "InPlace"
    return RolloutPlan(
        wanted=name,
        applied=applied.name,
        desired=sum(counts.values()),
        ready_replicas=ready,
        serving=serving,
        progress=progress,
        bring_up=brought,
        apply=(
            # before serving pods end for it
            *(canary if in_place else ()),
            *_objects(facts, applied, deployments, now),
            *(() if in_place else canary),
            *autoscaling.autoscalers(facts, applied, deployments, now),
            *route_objects(facts, brought, deployments),
        ),
        delete=(
            *unwanted_routes(facts),
            *_removals(
                facts,
                [each for each in obsolete if progress.complete or _is_rejected(each, brought)],
            ),
            *stop_canary(facts, {*(brought.canaries if brought else ()), *covering}),
            *_other_budgets(facts),
            *autoscaling.unwanted_autoscalers(facts, deployments, now),
            *_old_revisions(facts, keep={applied.name, *filter(None, (name,))}),
        ),
        metadata=(
            *outcomes(
                facts,
                name,
                serving.last_complete if serving else "",
                before.last_complete if before else "",
                brought.rejection if brought else None,
            ),
            *((*brought.labels, *brought.shadow) if brought else ()),
        ),
        hand_over=autoscaling.handovers(facts, deployments, now),
    )


def _bring_up(
    facts: Facts,
    known: Mapping[str, Revision],
    wanted: Revision | None,
    deployments: Mapping[str, DeploymentView],
    left_to_others: Collection[str],
) -> BringUp | None:
    """Return what becomes of the wanted revision; while that is not known, of the one before if the spec is unchanged."""
    target, hashed = facts.model.status.target, spec_hash(facts.model.spec)
    if wanted is None and target and target.spec_hash == hashed:
        found = known.get(target.revision)
        wanted = with_templates(facts, found) if found else None
    if wanted is None:
        return None
    before, applied = served_before(facts), facts.model.status.applied
    stable = known.get(before.last_complete) if before else None
    back = _restored(facts, known, wanted.name)
    if stable is None and back is None and recorded_rejection(facts, wanted.name):
        stable = _other(facts, known, wanted.name)
    was_active = stable is None or stable.name == wanted.name
    if back is not None and was_active:
        stable = back  # the revision that serves is rejected
    elif stable is not None and not was_active:
        stable = _restored(facts, known, stable.name) or stable  # likewise, and another is wanted
    elif stable is not None and was_active and facts.model.spec.rollout.on_failure == "Rollback":
        others = (name for name in promoted(facts.revisions) if name != wanted.name)
        previous = next((known[name] for name in others if name in known), None)
        if previous and was_proven(facts, previous.name):
            previous = with_templates(facts, previous)
            return look_back(facts, wanted, previous, tuple(deployments.values()))
    counts = _counts(facts, wanted, deployments)
    if facts.model.spec.rollout.strategy == "InPlace":
        lent = {each.accelerator_class: each.desired for each in facts.canaries}
        counts = _less(facts, counts, lent, deployments)
    is_applied = applied is not None and applied.revision == wanted.name
    complete = is_applied and progress_of(facts, wanted, deployments, counts).complete
    return bring_up(
        facts,
        wanted,
        stable,
        tuple(deployments.values()),
        spec_hash=hashed,
        rolled_out=complete and any(counts.values()) and back is None,
        left_to_others=left_to_others,
        restores=back is not None and was_active,
    )


def _other(facts: Facts, known: Mapping[str, Revision], rejected: str) -> Revision | None:
    """Return what serves instead of a rejected revision if it is not known what has served; None: nothing."""
    carried = (each.revision for each in facts.deployments)
    names = (each for each in (*promoted(facts.revisions), *carried) if each != rejected)
    return next((known[name] for name in names if name in known), None)


def _beside(
    facts: Facts, brought: BringUp, covering: Collection[str], applied: Revision
) -> BringUp:
    """Return what is brought up beside canaries that serve in place of the applied revision's pods."""
    if (brought.canary or brought.revision).name == applied.name:
        return brought
    pods = {
        pod.name
        for pod in facts.pods
        if pod.label(TRACK) == CANARY
        and pod.label(REVISION) == applied.name
        and pod.label(CLASS) in covering
    }
    return replace(
        brought,
        canaries={name: n for name, n in brought.canaries.items() if name not in covering},
        labels=tuple(each for each in brought.labels if each.name not in pods),
    )


def _in_place(
    facts: Facts,
    counts: Mapping[str, int],
    brought: BringUp | None,
    deployments: Mapping[str, DeploymentView],
) -> Mapping[str, int]:
    """Return the counts without the pods whose devices the canary uses, if the strategy is InPlace."""
    if brought is None or facts.model.spec.rollout.strategy != "InPlace":
        return counts
    return _less(facts, counts, brought.canaries, deployments)


def _less(
    facts: Facts,
    counts: Mapping[str, int],
    canaries: Mapping[str, int],
    deployments: Mapping[str, DeploymentView],
) -> dict[str, int]:
    """Return the counts less those of the canary, of which one stays; an autoscaler's are the live ones."""
    live = autoscaling.live_counts(facts, counts, deployments)
    lent = {
        name: max(min(count, 1), count - canaries.get(name, 0)) for name, count in counts.items()
    }
    return {**lent, **live}


def _canary_objects(facts: Facts, brought: BringUp, applied: Revision) -> Iterable[dict[str, Any]]:
    """Yield the canary's objects, the revision first."""
    if not brought.canaries:
        return
    numbers = {each.revision: each.number for each in facts.revisions}
    if brought.revision.name not in numbers and brought.revision is not applied:
        # after the number of the applied one, which may be created in the same pass
        number = max(numbers.values(), default=0) + 1 + (applied.name not in numbers)
        yield controller_revision(facts.model, brought.revision, number)
    yield from brought.deployments(facts)


def _is_rejected(deployment: DeploymentView, brought: BringUp | None) -> bool:
    """Return whether a Deployment has a rejected revision of which nothing serves."""
    return (
        brought is not None
        and brought.rejection is not None
        and deployment.revision == brought.revision.name
        and not deployment.available
    )


def _awaited(facts: Facts, counts: Mapping[str, int]) -> set[str]:
    """Return the classes that only the next revision has, while the applied one has too few pods."""
    spec = facts.model.spec
    named = [each.class_name for each in spec.accelerators]
    covered = sum(counts.values()) >= sum(replicas_by_class(spec, named).values())
    return set() if covered else set(named) - counts.keys()


def applied_state(facts: Facts, rollout: RolloutPlan) -> AppliedState | None:
    """Return the record of the applied revision."""
    if rollout.applied is None:
        return facts.model.status.applied
    if rollout.applied == rollout.wanted:
        return AppliedState(revision=rollout.applied, spec_hash=spec_hash(facts.model.spec))
    before = facts.model.status.applied
    if before and before.revision == rollout.applied:
        return before
    return AppliedState(revision=rollout.applied)


def _kept(
    facts: Facts,
    known: Mapping[str, Revision],
    deployments: Mapping[str, DeploymentView],
    brought: BringUp | None,
) -> Revision | None:
    """Return the revision to apply while no new one can be.

    A rollout continues while its spec is unchanged: the obstacle is outside the spec. Otherwise, or if
    the backend was rejected because its pods failed, it is the last complete revision.
    """
    status, spec = facts.model.status, facts.model.spec
    carried = {each.revision for each in facts.deployments}
    by_number = sorted(facts.revisions, key=lambda each: each.number, reverse=True)
    names = [each.revision for each in by_number if each.revision in carried]
    before = served_before(facts)
    if before and (last := known.get(before.last_complete)):
        # not preferred if it would have no pods
        has_pods = any(_counts(facts, last, deployments).values())
        names.insert(0 if has_pods else len(names), last.name)
    if spec.rollout.strategy == "Recreate":  # which would stop ready pods of other revisions
        ready = ready_revisions(facts.pods)
        names.sort(key=lambda name: name not in ready)
    failed = {each.revision for each in status.rejected_backends if each.inputs_hash}
    rejected = brought.revision.name if brought and brought.rejection else ""
    failed.add(rejected)
    if rejected:  # also if no Deployment has them, as after a restoration from a backup
        names += promoted(facts.revisions)
    goes_on = (
        status.applied
        and status.applied.spec_hash == spec_hash(spec)
        and status.applied.revision not in failed
    )
    if status.applied and goes_on and not spec.rollout.paused:
        names.insert(0, status.applied.revision)
    # while the requested revision is not known, or has a canary, one may go back from what serves
    for leaves in (before.last_complete if before else "", rejected):
        if chosen := _restored(facts, known, leaves):
            names.insert(0, chosen.name)
    names.sort(key=lambda name: name == rejected)
    found = next((known[name] for name in names if name in known), None)
    return with_templates(facts, found) if found else None


def _restored(facts: Facts, known: Mapping[str, Revision], rejected: str) -> Revision | None:
    """Return the revision that replaces one that a user has rolled back or that failed while it served.

    It is the one that the annotation names, else the last complete one, else the one before it.
    None: it was not rejected so, or there is no other.
    """
    annotations = facts.model.metadata.annotations
    known_failure = recorded_rejection(facts, rejected) if rejected else None
    failed = (
        known_failure is not None
        and known_failure.stage == STAGE
        and annotations.get(PROMOTE) != rejected
    )
    if not rejected or not (failed or rejection_by_user(facts, rejected)):
        return None
    annotation = annotations.get(ROLLBACK, "")
    back_from, _, back_to = annotation.partition(" ")
    before = served_before(facts)
    names = (
        back_to if back_from == rejected else "",
        before.last_complete if before else "",
        *promoted(facts.revisions),
    )
    return next((known[name] for name in names if name in known and name != rejected), None)


def _counts(
    facts: Facts, applied: Revision, deployments: Mapping[str, DeploymentView]
) -> dict[str, int]:
    """Return how many pods each class of the applied revision should have now."""
    spec, serving = facts.model.spec, facts.model.status.serving
    names = [each.name for each in applied.snapshot.classes]
    named = [each.class_name for each in spec.accelerators] or names
    if not asks_for_pods(spec, names):  # not on classes to be removed either
        return dict.fromkeys(names, 0)
    available = {name: each.available for name, each in deployments.items()}

    def desired(classes: Iterable[str]) -> dict[str, int]:
        specified = replicas_by_class(spec, classes)
        return {**specified, **autoscaling.live_counts(facts, specified, deployments)}

    # a class that is not applied yet gets no share of the total
    counts = covering(desired(name for name in named if name in names), available)
    own = fixed(spec)
    # but a class with its own replicas that has no Deployment yet does not make others keep pods
    there = [name for name in named if name in names or name in available or name not in own]
    until_then = covering(desired(there), available)
    counts = {name: max(count, until_then[name]) for name, count in counts.items()}
    current = {name: each.desired for name, each in deployments.items()}
    before = {each.class_name: each.replicas for each in serving.classes} if serving else {}
    counts = {
        name: counts[name]
        if name in counts
        # a class to be removed: unchanged until then, or as before it yielded to a build
        else current.get(name) or before.get(name, current.get(name, spec.replicas))
        for name in names
    }
    return {**counts, **autoscaling.live_counts(facts, counts, deployments)}


def _without(counts: Mapping[str, int], yielding: Collection[str]) -> dict[str, int]:
    """Return the counts with no pods for classes that yield their devices to a build."""
    return {name: 0 if name in yielding else count for name, count in counts.items()}


def _objects(
    facts: Facts,
    revision: Revision,
    deployments: Mapping[str, DeploymentView],
    counts: Mapping[str, int],
) -> Iterable[dict[str, Any]]:
    """Yield the objects in the order of dependence: the revision first, so that it is never missing."""
    model = facts.model
    numbers = {each.revision: each.number for each in facts.revisions}
    if revision.name not in numbers:  # revisions are immutable
        yield controller_revision(model, revision, max(numbers.values(), default=0) + 1)
    yield service(model)
    for accelerator, count in counts.items():
        # an existing one keeps its name, also if an earlier version chose it
        existing = deployments.get(accelerator)
        name = existing.name if existing else deployment_name(model.metadata.name, accelerator)
        yield disruption_budget(model, accelerator, name=name)
        applied = autoscaling.applied_count(facts, accelerator, existing, count)
        yield serving_deployment(model, revision, accelerator, name=name, replicas=applied)


def _removals(facts: Facts, deployments: Iterable[DeploymentView]) -> Iterable[ObjectRef]:
    namespace = facts.model.metadata.namespace
    for each in deployments:
        yield ObjectRef("apps/v1", "Deployment", namespace, each.name)
        yield ObjectRef("policy/v1", "PodDisruptionBudget", namespace, each.name)


def _of_classes(deployments: Iterable[DeploymentView]) -> dict[str, DeploymentView]:
    """Return the Deployment of each class; of two, as named by different versions, the one that serves."""
    ranked = sorted(deployments, key=lambda each: (each.available, each.name))
    return {each.accelerator_class: each for each in ranked}


def _other_budgets(facts: Facts) -> Iterable[ObjectRef]:
    """Yield budgets without their Deployment: pods matched by two budgets cannot be evicted."""
    names = {each.name for each in facts.deployments}
    covered = {each.accelerator_class for each in facts.deployments}
    for each in facts.budgets:
        if each.name not in names and each.label(CLASS) in covered:
            yield ObjectRef("policy/v1", "PodDisruptionBudget", each.namespace, each.name)


def _old_revisions(facts: Facts, keep: Collection[str]) -> Iterable[ObjectRef]:
    model = facts.model
    serving = served_before(facts)
    rejected = model.status.rejected_backends
    served = {serving.revision, serving.last_complete} if serving else set()
    served.update(promoted(facts.revisions)[:1])
    pinned = {*keep, *served, *(each.revision for each in rejected)}
    unpinned = [each for each in facts.revisions if each.revision not in pinned]
    unpinned.sort(key=lambda each: each.number, reverse=True)
    for each in unpinned[KEPT_REVISIONS - 1 :]:
        name = revision_name(model.metadata.name, each.revision)
        yield ObjectRef("apps/v1", "ControllerRevision", model.metadata.namespace, name)
