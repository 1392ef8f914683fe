"""Which revision is brought up, and beside which one: the one that a failure would return to."""

from collections.abc import Collection, Mapping

from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.history.outcomes import promoted, recorded_rejection, was_proven
from enginewright.plan.history.removed_fields import is_of_spec
from enginewright.plan.history.served import served_before
from enginewright.plan.history.spec_hash import spec_hash
from enginewright.plan.rollout.applied_revision import restored_revision
from enginewright.plan.rollout.bring_up import BringUp
from enginewright.plan.rollout.canary.canary import bring_up
from enginewright.plan.rollout.canary.rollback import look_back
from enginewright.plan.rollout.revisions import with_templates
from enginewright.plan.types import Facts


def requested_revision(
    facts: Facts, known: Mapping[str, Revision], wanted: Revision | None
) -> Revision | None:
    """Return the wanted revision; while that is not known, the one before if the spec is unchanged; None: none."""
    target = facts.model.status.target
    if wanted is None and target and is_of_spec(facts, target.revision, target.spec_hash):
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
    if stable is None and back is None and recorded_rejection(facts, wanted.name):
        stable = _other(facts, known, wanted.name)
    was_active = stable is None or stable.name == wanted.name
    if back is not None and was_active:
        stable = back  # the revision that serves is rejected
    elif stable is not None and not was_active:
        # likewise, and another is wanted
        stable = restored_revision(facts, known, stable.name) or stable
    elif stable is not None and was_active and facts.model.spec.rollout.on_failure == "Rollback":
        others = (name for name in promoted(facts.revisions) if name != wanted.name)
        previous = next((known[name] for name in others if name in known), None)
        if previous and was_proven(facts, previous.name):
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


def _other(facts: Facts, known: Mapping[str, Revision], rejected: str) -> Revision | None:
    """Return what serves instead of a rejected revision if it is not known what has served; None: nothing."""
    carried = (each.revision for each in facts.deployments)
    names = (each for each in (*promoted(facts.revisions), *carried) if each != rejected)
    return next((known[name] for name in names if name in known), None)
