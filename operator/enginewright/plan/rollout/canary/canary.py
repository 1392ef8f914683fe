"""Bringing up a new revision beside the one that serves, until it replaces it or is rejected, and what it waits for.

Its pods get requests only after their sidecars' checks have passed and golden inferences show no regression; they
replace the serving ones only after they have kept passing for `canary.hold`. `status.target` says what it waits for.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Final

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.inference_model_status import (
    InferenceModelStatus,
    TargetPhase,
    TargetRevision,
)
from enginewright.api.scalars import whole_second
from enginewright.manifests.labels import PROMOTE
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.plan.history.outcomes import was_proven
from enginewright.plan.history.spec_hash import spec_hash
from enginewright.plan.pods import Failure, misses_artefact, serving_pods
from enginewright.plan.prepare.signature import SignatureChange, compare
from enginewright.plan.rollout.bring_up import BringUp
from enginewright.plan.rollout.canary import shadow
from enginewright.plan.rollout.canary.analysis import (
    CanaryAnalysis,
    analyse,
    describe_answers,
    have_started,
    promotion_basis,
    seconds_left,
    wait_for_user,
    waits_for,
)
from enginewright.plan.rollout.canary.pods import (
    are_known,
    canary_pods,
    first_refusal,
    is_available,
    is_behind_service,
    plan_counts,
    service_labels,
    serving_canaries,
)
from enginewright.plan.rollout.canary.rollback import find_first_rejection, reject, rejection
from enginewright.plan.rollout.canary.transitions import COMPARED, Seen, Stage, advance
from enginewright.plan.rollout.failures import PodFailures, pod_failures
from enginewright.plan.rollout.pod_counts import asks_for_pods, replicas_by_class
from enginewright.plan.types import Facts
from enginewright.plan.waits import Wait

_SHOWN: Final = 5  # differences of signatures in a message
_INTERVAL: Final = 5.0  # seconds between two looks at measurements


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
    revision: Revision,
    stable: Revision | None,
    before: TargetRevision | None,
    deployments: Iterable[DeploymentView],
) -> ServingPods:
    """Return whether there are pods to compare `revision` with; `before` is what the status has of it."""
    names = {device_class.name for device_class in revision.snapshot.classes}
    counts = {one.accelerator_class: one.desired for one in deployments}
    counts = {name: count for name, count in counts.items() if name in names}
    if _has_no_pods(facts.model, revision, counts):
        return ServingPods.NONE
    if stable is None or before is None or before.reason != StatusReason.SCALED_TO_ZERO:
        return ServingPods.PRESENT
    started = have_started(facts, serving_pods(facts.pods, stable.name))
    return ServingPods.STARTING if any(counts.values()) and not started else ServingPods.PRESENT


def _has_no_pods(model: InferenceModel, revision: Revision, counts: Mapping[str, int]) -> bool:
    """Return whether its classes serve with no pods: none are requested, or were until now on those."""
    spec = model.spec
    names = [device_class.name for device_class in revision.snapshot.classes]
    if not counts or not asks_for_pods(spec, names):
        return bool(counts)
    # pods that only classes on which nothing serves yet are to have come with the revision
    asked = replicas_by_class(
        spec, [accelerator.class_name for accelerator in spec.accelerators] or names
    )
    return not any(counts.values()) and any(asked.get(name) for name in counts)


def why_held(spec: InferenceModelSpec, revision: Revision, stable: Revision | None) -> Wait | None:
    """Return why nothing of a revision may start, if so."""
    rollout = spec.rollout
    if rollout.paused:
        return Wait(StatusReason.SUSPENDED, "spec.rollout.paused is true")
    if stable is None or rollout.allow_signature_change:
        return None
    breaking = _differences(revision, stable).breaking
    if not breaking:
        return None
    more = f" and {len(breaking) - _SHOWN} more" if len(breaking) > _SHOWN else ""
    message = (
        f"it breaks clients of revision {stable.name}: {'; '.join(breaking[:_SHOWN])}{more}; restore"
        " them, or allow it with rollout.allowSignatureChange: true"
    )
    return Wait(StatusReason.SIGNATURE_CHANGED, message)


def describe_widening(revision: Revision, stable: Revision | None) -> str:
    """Return what more clients may send or get, as a sentence, if anything."""
    compatible = _differences(revision, stable).compatible
    return f"clients may use more: {'; '.join(compatible[:_SHOWN])}" if compatible else ""


def _differences(revision: Revision, stable: Revision | None) -> SignatureChange:
    if stable is None or stable.signature is None or revision.signature is None:
        return SignatureChange()
    return compare(stable.signature, revision.signature)


def why_not_yet(
    stage: Stage,
    failures: PodFailures,
    refused: Failure | None,
    analysis: CanaryAnalysis,
    *,
    shadowed: bool,
) -> Wait | None:
    """Return what a revision waits for, other than time; `refused` is why a ready canary pod is not admitted."""
    # while it is promoted, Ready reports failures
    failure = failures.first or refused
    # an artefact that is missing is rebuilt before anything else
    if failure and stage.phase in COMPARED and not misses_artefact(failure):
        return Wait(failure.reason, failure.finding.message)
    if failures.waits:
        return failures.waits
    if stage.phase in COMPARED and analysis.silent:
        text = (
            f"the sidecars of {analysis.silent} pods have not responded to the operator for five"
            " minutes: check that they run and that no NetworkPolicy or mesh blocks its access to port 8081"
        )
        return Wait(StatusReason.SIDECAR_UNREACHABLE, text)
    if stage.phase in COMPARED and (text := waits_for(analysis.result)):
        return Wait("", text)
    if stage.phase is TargetPhase.VERIFYING and not shadowed:
        return Wait("", shadow.WAITS)
    return None


@dataclass(frozen=True)
class _CandidateRevision:
    """The revision that is brought up, and what is known of it."""

    revision: Revision
    stable: Revision | None  # that it replaces
    before: TargetRevision | None  # what the status has of it
    since: datetime  # when its step began
    stage: Stage | None  # until now, if it was the target
    deployments: Collection[DeploymentView]  # that serve
    pods: Collection[PodView]  # of its canary
    failures: PodFailures
    analysis: CanaryAnalysis


def bring_up(
    facts: Facts,
    revision: Revision,
    stable: Revision | None,
    deployments: Collection[DeploymentView],
    *,
    rolled_out: bool,
    left_to_others: Collection[str],
    restores: bool,
) -> BringUp:
    """Return what becomes of `revision`, the revision that the spec requests.

    `stable` is the last one that was rolled out with all its pods, or the one to which a user rolls that one back;
    `deployments` serve, one of each class, and are `rolled_out` if all their pods are of `revision`. For reasons
    in `left_to_others` another backend is tried instead of a rollback. It `restores` the stable one if `revision`
    was rolled out with all its pods.
    """
    if rolled_out or (stable is not None and stable.name == revision.name):
        ended = tuple(shadow.orders(facts, stable, ""))
        return BringUp(revision, promotes=True, rolled_out=rolled_out, shadow=ended)
    before = facts.model.status.target
    before = before if before and before.revision == revision.name else None
    since = before.since if before else whole_second(facts.now)
    failures = pod_failures(
        facts,
        revision.name,
        [view for view in (*facts.canaries, *deployments) if view.revision == revision.name],
        stable=stable.name if stable else "",
        since=since,
    )
    pods = canary_pods(facts.pods, revision.name)
    analysis = analyse(facts, stable, pods, before)
    if stable is None:
        why = find_first_rejection(facts, revision.name, failures, left_to_others)
    else:
        why = rejection(
            facts, revision.name, stable.name, failures, left_to_others, analysis.result
        )
    if why:
        back = reject(facts, revision, stable, why, failures, restores=restores)
        return replace(back, comparisons=analysis.comparisons)
    stage = _stage(facts.model.status, revision.name, before, deployments)
    candidate = _CandidateRevision(
        revision, stable, before, since, stage, deployments, pods, failures, analysis
    )
    return _proceed(facts, candidate)


def _proceed(facts: Facts, candidate: _CandidateRevision) -> BringUp:
    revision, stable, analysis = candidate.revision, candidate.stable, candidate.analysis
    spec = facts.model.spec
    planned = _plan_pods(facts, candidate, candidate.before.step if candidate.before else 0)
    skips = stable is None or _skips_analysis(facts, revision.name)
    direct = skips or not planned
    serving = ServingPods.PRESENT
    promotes = candidate.stage is not None and candidate.stage.phase is TargetPhase.PROMOTING
    if not (skips or promotes):
        serving = pods_to_compare_with(
            facts, revision, stable, candidate.before, candidate.deployments
        )
    wait = _first_wait(spec, candidate, serving)
    shadowed = shadow.is_compared(facts, stable, revision.name)
    left = seconds_left(spec, facts.now, candidate.pods, candidate.since)
    refused = first_refusal(facts, candidate.pods)
    passes = refused is None and are_known(facts, candidate.pods)
    compared = candidate.stage is not None and candidate.stage.phase in COMPARED
    asks = wait_for_user(analysis.result) if compared and not direct else None
    stage = advance(
        candidate.stage,
        Seen(
            held=bool(wait or asks),
            direct=direct,
            available=passes and is_available(facts, revision.name, candidate.pods, planned),
            analysis=analysis.result.state,
            shadowed=shadowed,
            held_long_enough=left <= 0 and analysis.measured,
            steps=1 + len(spec.rollout.canary.steps),
        ),
    )
    mirrors = stage.phase is TargetPhase.VERIFYING and wait is None
    admits = is_behind_service(spec, stage)
    # The status is written after the labels: until verdicts are known again, what a process that has ended
    # admitted stays.
    keeps = mirrors and refused is None and spec.serving.route is None
    wait = (
        wait or asks or why_not_yet(stage, candidate.failures, refused, analysis, shadowed=shadowed)
    )
    return BringUp(
        revision,
        promotes=stage.phase is TargetPhase.PROMOTING,
        replaces=stable is not None,
        target=_target(facts, candidate, stage, wait),
        failures=candidate.failures,
        canaries=_canaries(facts, candidate, stage) if serving is ServingPods.PRESENT else {},
        stable_key=stable.snapshot.prepared_key if stable else None,
        labels=tuple(
            service_labels(facts.pods, revision.name if admits or keeps else "", admits=admits)
        ),
        shadow=tuple(shadow.orders(facts, stable, revision.name if mirrors else "")),
        requeue_after=_requeue_after(stage, left, serving),
        comparisons=analysis.comparisons,
        promoted_for="" if direct else promotion_basis(candidate.stage, stage, analysis.result),
    )


def _plan_pods(facts: Facts, candidate: _CandidateRevision, step: int) -> dict[str, int]:
    return plan_counts(facts, candidate.revision, candidate.deployments, step)


def _first_wait(
    spec: InferenceModelSpec, candidate: _CandidateRevision, serving: ServingPods
) -> Wait | None:
    no_pods = None if serving is ServingPods.PRESENT else WITHOUT_PODS
    held = why_held(spec, candidate.revision, candidate.stable)
    if candidate.stage is not None and candidate.stage.phase in COMPARED:
        return no_pods or held  # what holds a canary comes after pods
    return held or no_pods


def _canaries(facts: Facts, candidate: _CandidateRevision, stage: Stage) -> Mapping[str, int]:
    if stage.phase in COMPARED:
        return _plan_pods(facts, candidate, stage.step)
    if stage.phase is TargetPhase.PROMOTING:
        return serving_canaries(facts, candidate.revision.name, candidate.pods)
    return {}


def _target(
    facts: Facts, candidate: _CandidateRevision, stage: Stage, wait: Wait | None
) -> TargetRevision:
    before, revision, stable = candidate.before, candidate.revision, candidate.stable
    is_new = before is None or (before.phase, before.step) != (stage.phase, stage.step)
    messages = (
        wait.message if wait else describe_widening(revision, stable),
        shadow.unavailable(facts.model.spec, stable) if stage.phase in COMPARED else "",
    )
    return TargetRevision(
        revision=revision.name,
        phase=stage.phase,
        step=stage.step,
        since=whole_second(facts.now) if is_new else candidate.since,
        spec_hash=spec_hash(facts.model.spec),
        reason=wait.reason if wait else "",
        message="; ".join(filter(None, messages)),
        signature=revision.signature,
        answers=describe_answers(candidate.analysis.result) or (before.answers if before else ""),
    )


def _stage(
    status: InferenceModelStatus,
    revision: str,
    before: TargetRevision | None,
    deployments: Iterable[DeploymentView],
) -> Stage | None:
    """Return the stage in the status, which may be older than Deployments that have an analysed revision, or be lost."""
    applied = any(deployment.revision == revision for deployment in deployments)
    if before is None:
        is_lost = status.applied is None
        return Stage(TargetPhase.PROMOTING) if is_lost and applied else None
    if applied and before.phase is TargetPhase.ANALYZING:
        return Stage(TargetPhase.PROMOTING)
    return Stage(before.phase, before.step)


def _skips_analysis(facts: Facts, revision: str) -> bool:
    rollout = facts.model.spec.rollout
    return (
        rollout.strategy == "Recreate"
        or not rollout.canary.replicas
        or facts.model.metadata.annotations.get(PROMOTE) == revision
        or was_proven(facts, revision)
    )


def _requeue_after(stage: Stage, left: float, serving: ServingPods) -> float | None:
    """Return when to look again: at the measurements, at pods that start, or at the end of the hold."""
    if serving is ServingPods.STARTING:
        return _INTERVAL
    if serving is ServingPods.NONE or stage.phase not in COMPARED:
        return None
    return min(_INTERVAL, left) if left > 0 else _INTERVAL
