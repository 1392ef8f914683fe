"""Rejections: why a new revision is not rolled out, or one that served goes back, and what runs instead."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final

from enginewright.analysis.result import AnalysisResult
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import RolloutFailure
from enginewright.manifests.labels import PROMOTE
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.history.outcomes import (
    find_reported_rejection,
    find_serving,
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
from enginewright.plan.rollout.failures import PodFailures, pods_of, regression
from enginewright.plan.types import Facts

_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)
_HOLDS_DEVICES: Final = timedelta(days=1)  # while it fails, with nothing to go back to
_GIVES_BACK: Final = (
    "its pods have failed for a day and have left their devices, until the spec changes or `enginewright"
    " promote` starts them again"
)


def rejection(
    facts: Facts,
    revision: str,
    stable: str,
    failures: PodFailures,
    left_to_others: Collection[str],
    analysis: AnalysisResult,
) -> RolloutFailure | None:
    """Return why `revision` does not replace `stable`: a user, an earlier failure, or one that shows now."""
    if by_user := (
        rejection_of_spec_by_user(facts, revision, stable) or rejection_by_user(facts, revision)
    ):
        return by_user
    if _insists(facts, revision):
        return None
    recreates = facts.model.spec.rollout.strategy == "Recreate"
    # going back would stop pods that serve first
    stops = recreates and any(pod.ready for pod in pods_of(facts.pods, revision))
    # a write may have been refused before a Deployment went back
    carried = {deployment.revision for deployment in facts.deployments}
    earlier = find_reported_rejection(facts, revision)
    if earlier and not (stops and carried == {revision}):
        return earlier
    if stops or (failures.lasting and failures.lasting.reason in left_to_others):
        return None
    return failures.lasting or failure(revision, analysis)


def find_first_rejection(
    facts: Facts, revision: str, failures: PodFailures, left_to_others: Collection[str]
) -> RolloutFailure | None:
    """Return why `revision`, before which nothing has served, has no pods any more: they have failed for long."""
    if is_given_up(facts, revision):
        return find_reported_rejection(facts, revision)
    lasting = failures.lasting
    if lasting is None or lasting.reason in left_to_others or _insists(facts, revision):
        return None
    placed = [pod for pod in pods_of(facts.pods, revision) if pod.node]
    since = [datetime.fromisoformat(pod.scheduled_at) for pod in placed]
    if (
        any(pod.ready for pod in placed)
        or max(since, default=facts.now) + _HOLDS_DEVICES > facts.now
    ):
        return None
    return lasting.model_copy(update={"message": f"{lasting.message}; {_GIVES_BACK}"})


def is_given_up(facts: Facts, revision: str) -> bool:
    """Return whether a revision was rejected before anything has served, and is not to be tried again."""
    return (
        find_serving(facts) is None
        and find_reported_rejection(facts, revision) is not None
        and not _insists(facts, revision)
        and not any(pod.ready for pod in pods_of(facts.pods, revision))
    )


def _insists(facts: Facts, revision: str) -> bool:
    """Return whether a user wants a revision even if it was rejected."""
    return facts.model.metadata.annotations.get(PROMOTE) == revision


def reject(
    facts: Facts,
    revision: Revision,
    stable: Revision | None,
    rejection: RolloutFailure,
    failures: PodFailures,
    *,
    restores: bool = False,
) -> BringUp:
    """Return the plan for a rejected revision: with `onFailure: Pause` its pods stay, without requests.

    Those that a user rolls back do not. If a revision that was active is rejected, a pod of the one
    that it `restores` gets requests until that is complete.
    """
    if restores and stable is not None:
        blocked = makes_way(facts, stable.name)
        return BringUp(
            revision,
            promotes=False,
            rejection=rejection,
            canaries={
                canary.accelerator_class: canary.desired
                for canary in facts.canaries
                if canary.revision == stable.name and canary.accelerator_class not in blocked
            },
            restored=stable,
            labels=tuple(service_labels(facts.pods, stable.name)),
        )
    by_user = rejection.reason == StatusReason.ROLLED_BACK_BY_USER
    pauses = facts.model.spec.rollout.on_failure == "Pause" and not by_user
    kept = [canary for canary in facts.canaries if pauses and canary.revision == revision.name]
    return BringUp(
        revision,
        promotes=False,
        rejection=rejection,
        failures=failures,
        canaries={view.accelerator_class: view.desired for view in kept},
        stable_key=stable.snapshot.prepared_key if stable else None,
        labels=tuple(service_labels(facts.pods, "")),
        shadow=tuple(shadow.orders(facts, stable, "")),
    )


def look_back(
    facts: Facts, active: Revision, previous: Revision, deployments: Collection[DeploymentView]
) -> BringUp:
    """Return what becomes of the active revision, which `previous` replaces if only that passes now."""
    is_tried = any(canary.revision == previous.name for canary in facts.canaries)
    insists = _insists(facts, active.name)
    failed = None if insists else regression(facts, active.name, is_tried=is_tried)
    if failed is None:
        return BringUp(active, promotes=True)
    classes = {device_class.name for device_class in previous.snapshot.classes}
    desired = (deployment.accelerator_class for deployment in deployments if deployment.desired)
    counts = {name: 1 for name in desired if name in classes}
    pods = canary_pods(facts.pods, previous.name)
    passes = bool(counts) and is_available(facts, previous.name, pods, counts)
    left = 0.0
    if passes and failed.under_requests:
        left = seconds_left(facts.model.spec, facts.now, pods, _LONG_AGO, at_least=failed.interval)
    if passes and left <= 0:
        return reject(facts, active, previous, failed.failure, PodFailures(), restores=True)
    return BringUp(
        active,
        promotes=True,
        canaries=counts,
        restored=previous,
        labels=tuple(service_labels(facts.pods, previous.name if failed.under_requests else "")),
        requeue_after=left if left > 0 else _seconds_until(facts.now, failed.until),
    )


def _seconds_until(now: datetime, moment: datetime | None) -> float | None:
    return (moment - now).total_seconds() if moment else None
