"""Which revision the Deployments have while the requested one cannot be applied: nothing unproven, nothing rejected."""

from collections.abc import Mapping

from enginewright.manifests.labels import PROMOTE, ROLLBACK
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.history.outcomes import promoted, recorded_rejection, rejection_by_user
from enginewright.plan.history.removed_fields import is_of_spec
from enginewright.plan.history.served import ready_revisions, served_before
from enginewright.plan.rollout.bring_up import BringUp
from enginewright.plan.rollout.pod_counts import desired_counts
from enginewright.plan.rollout.regression import STAGE
from enginewright.plan.rollout.revisions import with_templates
from enginewright.plan.types import Facts


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
        has_pods = any(desired_counts(facts, last, deployments).values())
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
        and is_of_spec(facts, status.applied.revision, status.applied.spec_hash)
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


def ignored_rollback(
    facts: Facts, known: Mapping[str, Revision], applied: str, rejected: str
) -> str:
    """Return what a user's rollback asks for and does not get; empty: nothing, or there is none.

    Args:
        facts: the model and its cluster.
        known: the revisions whose content is kept.
        applied: the revision that the Deployments have from now on.
        rejected: the one that is not rolled out; empty: none.
    """
    back_from, _, back_to = facts.model.metadata.annotations.get(ROLLBACK, "").partition(" ")
    if not back_from or back_from not in (applied, rejected):
        return ""
    ignored = []
    if back_to and back_to not in known:
        ignored.append(f"revision {back_to} of the annotation {ROLLBACK} is not kept")
    if back_from == applied:
        ignored.append(f"revision {back_from} is not rolled back: no earlier good revision is kept")
    return "; ".join(ignored)
