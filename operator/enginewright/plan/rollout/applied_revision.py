"""Which revision is brought up, and which one the Deployments have until it is applied: none that is unproven or rejected."""

from collections.abc import Collection, Iterable, Mapping

from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.labels import PROMOTE, ROLLBACK
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.history.outcomes import (
    find_reported_rejection,
    find_serving,
    list_promoted,
    ready_revisions,
    rejection_by_user,
    was_proven,
)
from enginewright.plan.history.spec_hash import is_applied_of_spec, is_of_spec
from enginewright.plan.rollout.bring_up import BringUp
from enginewright.plan.rollout.canary.canary import bring_up
from enginewright.plan.rollout.canary.rollback import look_back
from enginewright.plan.rollout.failures import STAGE
from enginewright.plan.rollout.pod_counts import count_desired
from enginewright.plan.rollout.revisions import with_templates
from enginewright.plan.types import Facts


def find_requested_revision(facts: Facts, stored: Mapping[str, Revision]) -> Revision | None:
    """Return the revision that the spec requested before, if the spec is unchanged."""
    target = facts.model.status.target
    if target is None or not is_of_spec(facts, target.revision, target.spec_hash):
        return None
    revision = stored.get(target.revision)
    return with_templates(facts, revision) if revision else None


def bring_up_requested(
    facts: Facts,
    stored: Mapping[str, Revision],
    requested: Revision,
    deployments: Collection[DeploymentView],
    left_to_others: Collection[str],
    *,
    complete: bool,
) -> BringUp:
    """Return what becomes of the requested revision, which is `complete` if it serves with all its pods.

    `deployments` are those that serve, one of each class. For reasons in `left_to_others` another backend is tried
    instead of a rollback.
    """
    before = find_serving(facts)
    stable = stored.get(before.last_complete) if before else None
    back = find_restored_revision(facts, stored, requested.name)
    promotions = [name for name in list_promoted(facts.revisions) if name != requested.name]
    if stable is None and back is None and find_reported_rejection(facts, requested.name):
        # it is not known what has served
        carried = (one.revision for one in facts.deployments if one.revision != requested.name)
        stable = _first((*promotions, *carried), stored)
    was_active = stable is None or stable.name == requested.name
    if back is not None and was_active:
        stable = back  # the revision that serves is rejected
    elif stable is not None and not was_active:
        # the revision that serves may be rejected as well
        stable = find_restored_revision(facts, stored, stable.name) or stable
    elif stable is not None and was_active and facts.model.spec.rollout.on_failure == "Rollback":
        previous = _first(promotions, stored)
        if previous and was_proven(facts, previous.name):
            return look_back(facts, requested, with_templates(facts, previous), deployments)
    return bring_up(
        facts,
        requested,
        stable,
        deployments,
        rolled_out=complete and back is None,
        left_to_others=left_to_others,
        restores=back is not None and was_active,
    )


def _first(names: Iterable[str], stored: Mapping[str, Revision]) -> Revision | None:
    return next((stored[name] for name in names if name in stored), None)


def keep_revision(
    facts: Facts,
    stored: Mapping[str, Revision],
    deployments: Mapping[str, DeploymentView],
    brought: BringUp | None,
) -> Revision | None:
    """Return the revision to apply while no new one can be.

    A rollout continues while its spec is unchanged: the obstacle is outside the spec. Otherwise, or if
    the backend was rejected because its pods failed, it is the last complete revision.
    """
    status, spec = facts.model.status, facts.model.spec
    carried = {deployment.revision for deployment in facts.deployments}
    by_number = sorted(facts.revisions, key=lambda revision: revision.number, reverse=True)
    names = [view.revision for view in by_number if view.revision in carried]
    before = find_serving(facts)
    if before and (last := stored.get(before.last_complete)):
        # not preferred if it would have no pods
        has_pods = any(count_desired(facts, last, deployments).values())
        names.insert(0 if has_pods else len(names), last.name)
    if spec.rollout.strategy == "Recreate":  # which would stop ready pods of other revisions
        ready = ready_revisions(facts.pods)
        names.sort(key=lambda name: name not in ready)
    failed = {backend.revision for backend in status.rejected_backends if backend.inputs_hash}
    rejected = brought.revision.name if brought and brought.rejection else ""
    failed.add(rejected)
    if rejected:  # also if no Deployment has them, as after a restoration from a backup
        names += list_promoted(facts.revisions)
    applied = status.applied
    if (
        applied
        and applied.revision not in failed
        and not spec.rollout.paused
        and is_applied_of_spec(facts)
    ):
        names.insert(0, applied.revision)
    # while the requested revision is not known, or has a canary, one may go back from what serves
    for leaves in (before.last_complete if before else "", rejected):
        if chosen := find_restored_revision(facts, stored, leaves):
            names.insert(0, chosen.name)
    names.sort(key=lambda name: name == rejected)
    kept = _first(names, stored)
    return with_templates(facts, kept) if kept else None


def find_restored_revision(
    facts: Facts, stored: Mapping[str, Revision], rejected: str
) -> Revision | None:
    """Return the revision that replaces one that a user has rolled back or that failed while it served, if any.

    It is the one that the annotation names, else the last complete one, else the one before it.
    """
    annotations = facts.model.metadata.annotations
    failure = find_reported_rejection(facts, rejected) if rejected else None
    failed = failure and failure.stage == STAGE and annotations.get(PROMOTE) != rejected
    if not rejected or not (failed or rejection_by_user(facts, rejected)):
        return None
    back_from, _, back_to = annotations.get(ROLLBACK, "").partition(" ")
    before = find_serving(facts)
    names = (
        back_to if back_from == rejected else "",
        before.last_complete if before else "",
        *list_promoted(facts.revisions),
    )
    return _first((name for name in names if name != rejected), stored)


def describe_ignored_rollback(
    model: InferenceModel, stored: Mapping[str, Revision], applied: str, rejected: str
) -> str:
    """Return what a user's rollback asks for and does not get, by the applied and the rejected revision."""
    back_from, _, back_to = model.metadata.annotations.get(ROLLBACK, "").partition(" ")
    if not back_from or back_from not in (applied, rejected):
        return ""
    ignored = []
    if back_to and back_to not in stored:
        ignored.append(f"revision {back_to} of the annotation {ROLLBACK} is not kept")
    if back_from == applied:
        ignored.append(f"revision {back_from} is not rolled back: no earlier good revision is kept")
    return "; ".join(ignored)
