"""The objects of a rollout: what is applied for serving and for a canary, and what is removed."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from enginewright.manifests.deployment import claim_templates, serving_deployment
from enginewright.manifests.labels import CLASS
from enginewright.manifests.names import deployment_name, revision_name
from enginewright.manifests.service import disruption_budget, service
from enginewright.manifests.snapshot import Revision, controller_revision
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.revisions import RevisionView
from enginewright.plan.history.outcomes import is_rejected_for_spec, promoted
from enginewright.plan.history.served import served_before
from enginewright.plan.rollout import autoscaling
from enginewright.plan.rollout.bring_up import BringUp
from enginewright.plan.types import Facts, ObjectRef

KEPT_REVISIONS: Final = 5


def serving_objects(
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
    yield service(model, tls=revision.snapshot.tls_secret is not None)
    for accelerator, count in counts.items():
        # an existing one keeps its name, also if an earlier version chose it
        existing = deployments.get(accelerator)
        name = existing.name if existing else deployment_name(model.metadata.name, accelerator)
        yield disruption_budget(model, accelerator, name=name)
        yield from claim_templates(model, revision, accelerator)
        applied = autoscaling.applied_count(facts, accelerator, existing, count)
        yield serving_deployment(model, revision, accelerator, name=name, replicas=applied)


def canary_objects(facts: Facts, brought: BringUp, applied: Revision) -> Iterable[dict[str, Any]]:
    """Yield the canary's objects, the revision first."""
    if not brought.canaries:
        return
    numbers = {each.revision: each.number for each in facts.revisions}
    if brought.revision.name not in numbers and brought.revision is not applied:
        # after the number of the applied one, which may be created in the same pass
        number = max(numbers.values(), default=0) + 1 + (applied.name not in numbers)
        yield controller_revision(facts.model, brought.revision, number)
    yield from brought.deployments(facts)


def removals(facts: Facts, deployments: Iterable[DeploymentView]) -> Iterable[ObjectRef]:
    """Yield Deployments with their budgets."""
    namespace = facts.model.metadata.namespace
    for each in deployments:
        yield ObjectRef("apps/v1", "Deployment", namespace, each.name)
        yield ObjectRef("policy/v1", "PodDisruptionBudget", namespace, each.name)


def has_rejected(deployment: DeploymentView, brought: BringUp | None) -> bool:
    """Return whether a Deployment has a rejected revision of which nothing serves."""
    return (
        brought is not None
        and brought.rejection is not None
        and deployment.revision == brought.revision.name
        and not deployment.available
    )


def other_budgets(facts: Facts) -> Iterable[ObjectRef]:
    """Yield budgets without their Deployment: pods matched by two budgets cannot be evicted."""
    names = {each.name for each in facts.deployments}
    covered = {each.accelerator_class for each in facts.deployments}
    for each in facts.budgets:
        if each.name not in names and each.label(CLASS) in covered:
            yield ObjectRef("policy/v1", "PodDisruptionBudget", each.namespace, each.name)


def old_revisions(facts: Facts, keep: Collection[str]) -> Iterable[ObjectRef]:
    """Yield the revisions that are not needed any more, of which those that failed for another spec go first.

    Needed are those in `keep`, what served and what runs, what was rejected for the current spec or may be tried again, and two
    that were promoted: the active one, and the one to which it can go back.
    """
    model = facts.model
    serving = served_before(facts)
    readable = [each for each in facts.revisions if each.kept]
    pinned = {
        *keep,
        *((serving.revision, serving.last_complete) if serving else ()),
        *(each.revision for each in (*facts.deployments, *facts.canaries)),
        *(each.revision for each in model.status.rejected_backends),
        *(each.revision for each in facts.revisions if is_rejected_for_spec(facts, each)),
        *promoted(readable)[:2],
    }
    unpinned = [each for each in facts.revisions if each.revision not in pinned]
    unpinned.sort(key=lambda each: (not _is_superseded(each), each.number), reverse=True)
    for each in unpinned[KEPT_REVISIONS - 1 :]:
        name = revision_name(model.metadata.name, each.revision)
        yield ObjectRef("apps/v1", "ControllerRevision", model.metadata.namespace, name)


def _is_superseded(revision: RevisionView) -> bool:
    return revision.outcome is not None and revision.outcome.state == "Superseded"
