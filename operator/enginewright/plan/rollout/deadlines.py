"""How long pods may take: each has `rollout.progressTimeout` from when it gets its node, however long it waited for one.

A Deployment's own deadline counts from its last progress: also while its pods wait, and on after they have waited.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.deployment import progress_seconds
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView


def is_late(model: InferenceModel, now: datetime, pod: PodView) -> bool:
    """Return whether a pod has its node for longer than it may take to be ready, or ready again."""
    due = _due(model, pod)
    return due is not None and due <= now


def waits_too_long(model: InferenceModel, now: datetime, pod: PodView) -> bool:
    """Return whether a pod waits for a node for longer than it may take to start on one."""
    return waits_for_node(pod) and _limit(model, pod.created) <= now


def waits_for_node(pod: PodView) -> bool:
    """Return whether the scheduler has found no node for a pod that is still wanted."""
    return bool(pod.unschedulable) and not pod.leaving


def is_refused_too_long(model: InferenceModel, now: datetime, deployment: DeploymentView) -> bool:
    """Return whether the API server rejects a Deployment's pods for longer than they may take to start."""
    due = _find_refused_due(model, deployment)
    return due is not None and due <= now


def seconds_to_next(
    model: InferenceModel,
    now: datetime,
    pods: Iterable[PodView],
    deployments: Iterable[DeploymentView] = (),
) -> float | None:
    """Return in how many seconds the next of the above holds of one of them, if any will."""
    due = [_limit(model, pod.created) if waits_for_node(pod) else _due(model, pod) for pod in pods]
    due += [_find_refused_due(model, deployment) for deployment in deployments]
    left = ((moment - now).total_seconds() for moment in due if moment is not None)
    return min((seconds for seconds in left if seconds > 0), default=None)


def _due(model: InferenceModel, pod: PodView) -> datetime | None:
    """Return until when a pod is to be ready, if it has a node and is not."""
    if pod.ready or pod.leaving or not pod.scheduled_at:
        return None
    # A pod that starts has been unready since the kubelet saw it. Whether one was ready before is not asked, as
    # `Initialized` is as new as in one that starts where its node has restarted.
    since = (pod.scheduled_at, pod.ready_changed)
    return max(_limit(model, moment) for moment in since if moment)


def _find_refused_due(model: InferenceModel, deployment: DeploymentView) -> datetime | None:
    """Return until when a Deployment's pods are to be allowed, if the API server rejects them."""
    refused = deployment.refused
    return _limit(model, refused.since) if refused and refused.since else None


def _limit(model: InferenceModel, since: str) -> datetime:
    return datetime.fromisoformat(since) + timedelta(seconds=progress_seconds(model))
