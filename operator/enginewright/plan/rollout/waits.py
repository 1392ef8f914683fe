"""What a pod that is not ready waits for outside of itself, with its own reason: messages of two pods are never mixed."""

from collections.abc import Iterable
from dataclasses import dataclass

from enginewright_contract.reasons import Reason

from enginewright.api.conditions import StatusReason
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.plan import pods
from enginewright.plan.rollout.deadlines import find_down_node, is_ignored
from enginewright.plan.types import Facts


@dataclass(frozen=True)
class Wait:
    """What a pod or a revision waits for, as `status.target` has it."""

    reason: str  # may be empty: the message says enough
    message: str


def find_wait(facts: Facts, pod: PodView) -> Wait | None:
    """Return what prevents a pod from starting or going on: its node, a scheduler, a volume, an image."""
    if node := find_down_node(facts.nodes, pod):
        text = (
            f"node {node.name} is NotReady, and with it a pod: it goes on once the node is Ready, or on"
            " another node once the pod is deleted"
        )
        return Wait(StatusReason.NODE_NOT_READY, text)
    if is_ignored(pod, facts.now):
        named = f"scheduler {pod.scheduler}" if pod.scheduler else "the scheduler"
        text = f"{named} has not looked at a pod: check that it runs and what its log says"
        return Wait(Reason.CAPACITY_BLOCKED, text)
    text = pods.waiting_for(pod)
    return Wait(_name_missing(pod), text) if text else None


def _name_missing(pod: PodView) -> str:
    """Return as a reason what a pod waits for before it may start, a volume or a node, if anything."""
    return pods.missing_claim(pod) or (Reason.CAPACITY_BLOCKED if pod.unschedulable else "")


def find_refusal(deployments: Iterable[DeploymentView]) -> Wait | None:
    """Return why the API server rejects pods, if so: a quota, Pod Security, a missing service account."""
    for deployment in deployments:
        if deployment.refused:
            why = pods.explain_refusal(deployment.refused.message)
            text = f"cannot create pods of class {deployment.accelerator_class}: {why}"
            return Wait(StatusReason.FAILED_CREATE, text)
    return None
