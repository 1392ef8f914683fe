"""Rejections: why a new revision is not rolled out, or one that served goes back, and what runs instead."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from enginewright.analysis.result import AnalysisResult
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import RolloutFailure
from enginewright.manifests.labels import PROMOTE
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.history.outcomes import (
    recorded_rejection,
    rejection_by_user,
    rejection_of_spec_by_user,
)
from enginewright.plan.rollout.bring_up import BringUp
from enginewright.plan.rollout.canary import shadow
from enginewright.plan.rollout.canary.analysis import failure, seconds_left
from enginewright.plan.rollout.canary.pods import (
    canary_pods,
    is_available,
    makes_way,
    service_labels,
)
from enginewright.plan.rollout.failures import PodFailures, pods_of, regression, trial_counts
from enginewright.plan.types import Facts

_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)


def rejection(
    facts: Facts,
    revision: str,
    stable: str,
    failures: PodFailures,
    left_to_others: Collection[str],
    analysis: AnalysisResult,
) -> RolloutFailure | None:
    """Return why `revision` does not replace `stable`: for an earlier failure, by a user, or for one found now."""
    return rejection_of_spec_by_user(facts, revision, stable) or _rejection(
        facts, revision, failures, left_to_others, analysis
    )


def _rejection(
    facts: Facts,
    revision: str,
    failures: PodFailures,
    left_to_others: Collection[str],
    analysis: AnalysisResult,
) -> RolloutFailure | None:
    if by_user := rejection_by_user(facts.model, facts.revisions, revision):
        return by_user
    if facts.model.metadata.annotations.get(PROMOTE) == revision:
        return None
    if known := recorded_rejection(facts.revisions, revision):
        return known
    found = failures.lasting
    if found is not None and found.reason in left_to_others:
        return None
    found = found or failure(revision, analysis)
    if found is None:
        return None
    recreates = facts.model.spec.rollout.strategy == "Recreate"
    # some of its pods serve: going back would stop them first
    return None if recreates and any(pod.ready for pod in pods_of(facts.pods, revision)) else found


def rejected(
    facts: Facts,
    wanted: Revision,
    stable: Revision | None,
    rejection: RolloutFailure,
    failures: PodFailures,
    *,
    restores: bool = False,
) -> BringUp:
    """Return that a revision is rejected; with `onFailure: Pause` its pods stay, without requests.

    Those that a user rolls back do not. If a revision that was active is rejected, a pod of the one
    that it `restores` gets requests until that is whole.
    """
    if restores and stable is not None:
        blocked = makes_way(facts, stable.name)
        mine = [each for each in facts.canaries if each.revision == stable.name]
        return BringUp(
            wanted,
            promotes=False,
            rejection=rejection,
            canaries={
                each.accelerator_class: each.desired
                for each in mine
                if each.accelerator_class not in blocked
            },
            canary=stable,
            labels=tuple(service_labels(facts.pods, stable.name)),
        )
    by_user = rejection.reason == StatusReason.ROLLED_BACK_BY_USER
    pauses = facts.model.spec.rollout.on_failure == "Pause" and not by_user
    kept = [each for each in facts.canaries if pauses and each.revision == wanted.name]
    return BringUp(
        wanted,
        promotes=False,
        rejection=rejection,
        failures=failures,
        canaries={each.accelerator_class: each.desired for each in kept},
        stable_key=stable.snapshot.prepared_key if stable else None,
        labels=tuple(service_labels(facts.pods, "")),
        shadow=tuple(shadow.orders(facts, stable, "")),
    )


def look_back(
    facts: Facts,
    active: Revision,
    previous: Revision | None,
    deployments: Collection[DeploymentView],
) -> BringUp:
    """Return what becomes of the active revision, to which `previous` is better if only that passes now."""
    insists = facts.model.metadata.annotations.get(PROMOTE) == active.name
    found = None if previous is None or insists else regression(facts, active.name)
    if previous is None or found is None:
        return BringUp(active, promotes=True)
    classes = {each.name for each in previous.snapshot.classes}
    counts = trial_counts(deployments, classes)
    pods = canary_pods(facts.pods, previous.name)
    passes = bool(counts) and is_available(facts.canaries, previous.name, pods, counts)
    left = (
        seconds_left(facts.model.spec, facts.now, pods, _LONG_AGO)
        if passes and found.under_requests
        else 0.0
    )
    if passes and left <= 0:
        return rejected(facts, active, previous, found.failure, PodFailures(), restores=True)
    return BringUp(
        active,
        promotes=True,
        canaries=counts,
        canary=previous,
        labels=tuple(service_labels(facts.pods, previous.name if found.under_requests else "")),
        requeue_after=left if left > 0 else None,
    )
