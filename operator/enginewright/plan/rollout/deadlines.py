"""How long pods may take: each has `rollout.progressTimeout` from when it gets its node, however long it waited for one.

Nor does the time count for which its node is NotReady. A Deployment's own deadline counts from its last progress: also
while its pods wait, and on after they have waited.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.deployment import progress_seconds
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.plan.types import Facts
from enginewright.plan.waits import find_down_node, find_ignored_since, waits_for_node


def is_late(facts: Facts, pod: PodView) -> bool:
    """Return whether a pod has its node for longer than it may take to be ready, or ready again."""
    due = _due(facts, pod)
    return due is not None and due <= facts.now


def waits_too_long(facts: Facts, pod: PodView) -> bool:
    """Return whether a pod waits for a node for longer than it may take to start on one."""
    return waits_for_node(pod) and _limit(facts.model, pod.created) <= facts.now


def is_refused_too_long(facts: Facts, deployment: DeploymentView) -> bool:
    """Return whether the API server rejects a Deployment's pods for longer than they may take to start."""
    due = _find_refused_due(facts.model, deployment)
    return due is not None and due <= facts.now


def seconds_to_next(
    facts: Facts, pods: Iterable[PodView], deployments: Iterable[DeploymentView] = ()
) -> float | None:
    """Return in how many seconds the next of the above holds of one of them, if any will."""
    due = [moment for pod in pods for moment in _list_due(facts, pod)]
    due += [_find_refused_due(facts.model, deployment) for deployment in deployments]
    left = ((moment - facts.now).total_seconds() for moment in due if moment is not None)
    return min((seconds for seconds in left if seconds > 0), default=None)


def _list_due(facts: Facts, pod: PodView) -> Iterator[datetime | None]:
    if waits_for_node(pod):
        yield _limit(facts.model, pod.created)
        yield find_ignored_since(pod)
    yield _due(facts, pod)


def _due(facts: Facts, pod: PodView) -> datetime | None:
    """Return until when a pod is to be ready, if it has a node that is Ready, and is not."""
    if pod.ready or pod.leaving or not pod.node or find_down_node(facts.nodes, pod):
        return None
    # A pod that starts has been unready since the kubelet saw it. Whether one was ready before is not asked, as
    # `Initialized` is as new as in one that starts where its node has restarted.
    own = (node.ready_since for node in facts.nodes if node.name == pod.node)
    since = (pod.scheduled_at, pod.ready_changed, *own)
    return max(_limit(facts.model, moment) for moment in since if moment)


def _find_refused_due(model: InferenceModel, deployment: DeploymentView) -> datetime | None:
    """Return until when a Deployment's pods are to be allowed, if the API server rejects them."""
    refused = deployment.refused
    return _limit(model, refused.since) if refused and refused.since else None


def _limit(model: InferenceModel, since: str) -> datetime:
    return datetime.fromisoformat(since) + timedelta(seconds=progress_seconds(model))
