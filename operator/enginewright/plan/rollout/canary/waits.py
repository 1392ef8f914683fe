"""What a new revision waits for, as `status.target` has it: a reason and a message."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import TargetPhase, TargetRevision
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.pods import Failure, serving_pods
from enginewright.plan.prepare.signature import SignatureChange, compare
from enginewright.plan.rollout.canary import shadow
from enginewright.plan.rollout.canary.analysis import CanaryAnalysis
from enginewright.plan.rollout.canary.comparison import have_started, waits_for
from enginewright.plan.rollout.canary.transitions import COMPARED, Stage
from enginewright.plan.rollout.failures import PodFailures
from enginewright.plan.rollout.replicas import asks_for_pods, replicas_by_class
from enginewright.plan.types import Facts

_SHOWN: Final = 5  # differences of signatures in a message


@dataclass(frozen=True)
class Wait:
    """What a revision waits for, as `status.target` has it."""

    reason: str
    message: str


WITHOUT_PODS: Final = Wait(
    StatusReason.SCALED_TO_ZERO,
    "it is verified beside the serving revision once a pod of that is ready",
)


class ServingPods(Enum):
    """Whether there are pods of the serving revision to compare a canary with."""

    PRESENT = "present"
    STARTING = "starting"  # again, after there were none
    NONE = "none"


def pods_to_compare_with(
    facts: Facts,
    wanted: Revision,
    stable: Revision | None,
    before: TargetRevision | None,
    deployments: Iterable[DeploymentView],
) -> ServingPods:
    """Return whether there are pods to compare `wanted` with; `before`: what the status has of it."""
    counts = _served_classes(wanted, deployments)
    if _has_no_pods(facts, wanted, counts):
        return ServingPods.NONE
    if stable is None or before is None or before.reason != StatusReason.SCALED_TO_ZERO:
        return ServingPods.PRESENT
    started = have_started(facts, serving_pods(facts.pods, stable.name))
    return ServingPods.STARTING if any(counts.values()) and not started else ServingPods.PRESENT


def _has_no_pods(facts: Facts, wanted: Revision, counts: Mapping[str, int]) -> bool:
    """Return whether its classes serve with no pods: none are requested, or were until now on those."""
    spec = facts.model.spec
    names = [each.name for each in wanted.snapshot.classes]
    if not counts or not asks_for_pods(spec, names):
        return bool(counts)
    # pods that only classes on which nothing serves yet are to have come with the revision
    asked = replicas_by_class(spec, [each.class_name for each in spec.accelerators] or names)
    return not any(counts.values()) and any(asked.get(name) for name in counts)


def _served_classes(wanted: Revision, deployments: Iterable[DeploymentView]) -> dict[str, int]:
    """Return how many pods serve, or are to, on each class of a revision on which anything does."""
    names = {each.name for each in wanted.snapshot.classes}
    return {
        each.accelerator_class: each.desired
        for each in deployments
        if each.accelerator_class in names
    }


def why_held(facts: Facts, wanted: Revision, stable: Revision | None) -> Wait | None:
    """Return why nothing of a revision may start; None: it may."""
    rollout = facts.model.spec.rollout
    if rollout.paused:
        return Wait(StatusReason.SUSPENDED, "spec.rollout.paused is true")
    if stable is None or rollout.allow_signature_change:
        return None
    breaking = _differences(wanted, stable).breaking
    if not breaking:
        return None
    more = f" and {len(breaking) - _SHOWN} more" if len(breaking) > _SHOWN else ""
    message = (
        f"it breaks clients of revision {stable.name}: {'; '.join(breaking[:_SHOWN])}{more}; restore"
        " them, or allow it with rollout.allowSignatureChange: true"
    )
    return Wait(StatusReason.SIGNATURE_CHANGED, message)


def widened(wanted: Revision, stable: Revision | None) -> str:
    """Return what more clients may send or get, as a sentence; empty: nothing."""
    compatible = _differences(wanted, stable).compatible
    return f"clients may use more: {'; '.join(compatible[:_SHOWN])}" if compatible else ""


def _differences(wanted: Revision, stable: Revision | None) -> SignatureChange:
    if stable is None or stable.signature is None or wanted.signature is None:
        return SignatureChange()
    return compare(stable.signature, wanted.signature)


def why_not_yet(
    stage: Stage,
    failures: PodFailures,
    refused: Failure | None,
    analysis: CanaryAnalysis,
    *,
    shadowed: bool,
) -> Wait | None:
    """Return what a revision that is brought up waits for; None: for nothing but time.

    Args:
        stage: that it is in.
        failures: of its pods.
        refused: why the sidecar of a ready pod of the canary would not admit it.
        analysis: of the canary.
        shadowed: whether enough answers to clients' requests were compared.
    """
    # while it is promoted, Ready reports failures
    if (found := failures.first or refused) and stage.phase in COMPARED:
        return Wait(found.reason, found.finding.message)
    if failures.waits_for:
        return Wait(failures.reason, failures.waits_for)
    if stage.phase in COMPARED and analysis.silent:
        text = (
            f"the sidecars of {analysis.silent} pods have not responded to the operator for five"
            " minutes: check that they run and that no NetworkPolicy blocks its access to port 8081"
        )
        return Wait(StatusReason.SIDECAR_UNREACHABLE, text)
    if stage.phase in COMPARED and (text := waits_for(analysis.result)):
        return Wait("", text)
    if stage.phase is TargetPhase.VERIFYING and not shadowed:
        return Wait("", shadow.WAITS)
    return None
