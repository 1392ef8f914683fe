"""What a pod that is not ready waits for outside of itself, with its own reason: messages of two pods are never mixed.

The same for pods that serve and pods of Jobs.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from enginewright_contract.reasons import Reason

from enginewright.api.conditions import StatusReason
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.nodes import NodeView
from enginewright.observed.pods import PodView
from enginewright.plan import pods

_IGNORED_AFTER: Final = timedelta(minutes=1)  # in which a scheduler that runs looks at a pod


@dataclass(frozen=True)
class Wait:
    """What a pod, a Job or a revision waits for."""

    reason: str  # may be empty: the message says enough
    message: str


def find_wait(nodes: Collection[NodeView], pod: PodView, now: datetime) -> Wait | None:
    """Return what prevents a pod from starting or going on: its node, a scheduler, a volume, an image."""
    if node := find_down_node(nodes, pod):
        text = (
            f"node {node.name} is NotReady, and with it a pod: it goes on once the node is Ready, or on"
            " another node once the pod is deleted"
        )
        return Wait(StatusReason.NODE_NOT_READY, text)
    since = find_ignored_since(pod)
    if since is not None and since <= now:
        named = f"scheduler {pod.scheduler}" if pod.scheduler else "the scheduler"
        text = f"{named} has not looked at a pod: check that it runs and what its log says"
        return Wait(Reason.CAPACITY_BLOCKED, text)
    text = pods.waiting_for(pod)
    return Wait(_name_missing(pod), text) if text else None


def find_down_node(nodes: Collection[NodeView], pod: PodView) -> NodeView | None:
    """Return the node of a pod that is still wanted, if that is NotReady."""
    if not pod.node or pod.leaving:
        return None
    return next((node for node in nodes if node.is_down and node.name == pod.node), None)


def waits_for_node(pod: PodView) -> bool:
    """Return whether a pod that is still wanted has no node: the scheduler has found none, or has not looked."""
    return not pod.node and not pod.leaving


def find_ignored_since(pod: PodView) -> datetime | None:
    """Return from when on a pod that waits for a node is one that no scheduler looks at, unless one has."""
    if not waits_for_node(pod) or pod.unschedulable:
        return None
    return datetime.fromisoformat(pod.created) + _IGNORED_AFTER


def find_refusal(deployments: Iterable[DeploymentView]) -> Wait | None:
    """Return why the API server rejects pods, if so: a quota, Pod Security, a missing service account."""
    for deployment in deployments:
        if deployment.refused:
            why = pods.explain_refusal(deployment.refused.message)
            text = f"cannot create pods of class {deployment.accelerator_class}: {why}"
            return Wait(StatusReason.FAILED_CREATE, text)
    return None


def _name_missing(pod: PodView) -> str:
    """Return as a reason what a pod waits for before it may start, a volume or a node, if anything."""
    return pods.missing_claim(pod) or (Reason.CAPACITY_BLOCKED if pod.unschedulable else "")
