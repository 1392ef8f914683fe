"""Which revision is brought up, and which one the Deployments have while that cannot be applied: nothing unproven or rejected."""

from collections.abc import Collection, Mapping

from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.labels import PROMOTE, ROLLBACK
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.revisions import RevisionView
from enginewright.plan.history.outcomes import (
    promoted,
    ready_revisions,
    recorded_rejection,
    rejection_by_user,
    served_before,
    was_proven,
)
from enginewright.plan.history.spec_hash import is_of_spec, spec_hash
from enginewright.plan.rollout.bring_up import BringUp
from enginewright.plan.rollout.canary.canary import bring_up
from enginewright.plan.rollout.canary.rollback import look_back
from enginewright.plan.rollout.failures import STAGE
from enginewright.plan.rollout.pod_counts import desired_counts
from enginewright.plan.rollout.revisions import with_templates
from enginewright.plan.types import Facts


def requested_revision(
    facts: Facts, known: Mapping[str, Revision], wanted: Revision | None
) -> Revision | None:
    """Return the wanted revision; while that is not known, the one before if the spec is unchanged; None: none."""
    target = facts.model.status.target
    if (
        wanted is None
        and target
        and is_of_spec(facts.model, facts.revisions, target.revision, target.spec_hash)
    ):
        found = known.get(target.revision)
        return with_templates(facts, found) if found else None
    return wanted


def bring_up_requested(
    facts: Facts,
    known: Mapping[str, Revision],
    wanted: Revision,
    deployments: Collection[DeploymentView],
    left_to_others: Collection[str],
    *,
    complete: bool,
) -> BringUp:
    """Return what becomes of the requested revision.

    Args:
        facts: the model and its cluster.
        known: the revisions whose content is kept.
        wanted: the requested revision.
        deployments: that serve, one of each class.
        left_to_others: reasons for which another backend is tried instead of a rollback.
        complete: whether it is applied, and serves with all its pods.
    """
    before = served_before(facts)
    stable = known.get(before.last_complete) if before else None
    back = restored_revision(facts, known, wanted.name)
    if stable is None and back is None and recorded_rejection(facts.revisions, wanted.name):
        stable = _other(facts.deployments, facts.revisions, known, wanted.name)
    was_active = stable is None or stable.name == wanted.name
    if back is not None and was_active:
        stable = back  # the revision that serves is rejected
    elif stable is not None and not was_active:
        # likewise, and another is wanted
        stable = restored_revision(facts, known, stable.name) or stable
    elif stable is not None and was_active and facts.model.spec.rollout.on_failure == "Rollback":
        others = (name for name in promoted(facts.revisions) if name != wanted.name)
        previous = next((known[name] for name in others if name in known), None)
        if previous and was_proven(facts.now, facts.revisions, previous.name):
            previous = with_templates(facts, previous)
            return look_back(facts, wanted, previous, deployments)
    return bring_up(
        facts,
        wanted,
        stable,
        deployments,
        spec_hash=spec_hash(facts.model.spec),
        rolled_out=complete and back is None,
        left_to_others=left_to_others,
        restores=back is not None and was_active,
    )


def _other(
    deployments: Collection[DeploymentView],
    revisions: Collection[RevisionView],
    known: Mapping[str, Revision],
    rejected: str,
) -> Revision | None:
    """Return what serves instead of a rejected revision if it is not known what has served; None: nothing."""
    carried = (each.revision for each in deployments)
    names = (each for each in (*promoted(revisions), *carried) if each != rejected)
    return next((known[name] for name in names if name in known), None)


def kept_revision(
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
        has_pods = any(desired_counts(facts.model, facts.autoscalers, last, deployments).values())
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
        and is_of_spec(
            facts.model, facts.revisions, status.applied.revision, status.applied.spec_hash
        )
        and status.applied.revision not in failed
    )
    if status.applied and goes_on and not spec.rollout.paused:
        names.insert(0, status.applied.revision)
    # while the requested revision is not known, or has a canary, one may go back from what serves
    for leaves in (before.last_complete if before else "", rejected):
        if chosen := restored_revision(facts, known, leaves):
            names.insert(0, chosen.name)
    names.sort(key=lambda name: name == rejected)
    found = next((known[name] for name in names if name in known), None)
    return with_templates(facts, found) if found else None


def restored_revision(
    facts: Facts, known: Mapping[str, Revision], rejected: str
) -> Revision | None:
    """Return the revision that replaces one that a user has rolled back or that failed while it served.

    It is the one that the annotation names, else the last complete one, else the one before it.
    None: it was not rejected so, or there is no other.
    """
    annotations = facts.model.metadata.annotations
    known_failure = recorded_rejection(facts.revisions, rejected) if rejected else None
    failed = (
        known_failure is not None
        and known_failure.stage == STAGE
        and annotations.get(PROMOTE) != rejected
    )
    if not rejected or not (failed or rejection_by_user(facts.model, facts.revisions, rejected)):
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


def ignored_rollback(
    model: InferenceModel, known: Mapping[str, Revision], applied: str, rejected: str
) -> str:
    """Return what a user's rollback asks for and does not get; empty: nothing, or there is none.

    Args:
        model: the model.
        known: the revisions whose content is kept.
        applied: the revision that the Deployments have from now on.
        rejected: the one that is not rolled out; empty: none.
    """
    back_from, _, back_to = model.metadata.annotations.get(ROLLBACK, "").partition(" ")
    if not back_from or back_from not in (applied, rejected):
        return ""
    ignored = []
    if back_to and back_to not in known:
        ignored.append(f"revision {back_to} of the annotation {ROLLBACK} is not kept")
    if back_from == applied:
        ignored.append(f"revision {back_from} is not rolled back: no earlier good revision is kept")
    return "; ".join(ignored)
