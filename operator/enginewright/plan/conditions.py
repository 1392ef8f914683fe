"""The truth table: from where a model stands to its conditions. docs/conditions.md is its text."""

from dataclasses import dataclass

from enginewright.api.conditions import (
    ConditionStatus,
    ConditionType,
    StatusReason,
    WantedCondition,
)
from enginewright.plan.prepare import Outcome
from enginewright.plan.resolve import Obstacle
from enginewright.plan.rollout import Rollout


@dataclass(frozen=True)
class Verdict:
    """Why a model is ready, is on its way, or is stalled."""

    status: ConditionStatus  # of Ready
    reason: str
    message: str
    stalled: bool = False


def conditions(
    *, paused: bool, obstacle: Obstacle | None, outcome: Outcome | None, rollout: Rollout
) -> tuple[WantedCondition, ...]:
    """Return the conditions of this version, all of them, in their order."""
    verdict = _verdict(paused=paused, obstacle=obstacle, outcome=outcome, rollout=rollout)
    reconciling = verdict.status != "True" and not verdict.stalled
    return (
        _condition(ConditionType.READY, verdict.status, verdict.reason, verdict.message),
        _condition(
            ConditionType.RECONCILING,
            "True" if reconciling else "False",
            verdict.reason,
            verdict.message if reconciling else "",
        ),
        _condition(
            ConditionType.STALLED,
            "True" if verdict.stalled else "False",
            verdict.reason,
            verdict.message if verdict.stalled else "",
        ),
        _available(rollout),
        _validated(outcome),
    )


def _condition(
    kind: ConditionType, status: ConditionStatus, reason: str, message: str
) -> WantedCondition:
    return WantedCondition(type=kind, status=status, reason=reason, message=message)


def _verdict(
    *, paused: bool, obstacle: Obstacle | None, outcome: Outcome | None, rollout: Rollout
) -> Verdict:
    serves = _serves(rollout)
    if obstacle:
        return Verdict("False", obstacle.reason, obstacle.message + serves, obstacle.stalled)
    if outcome and outcome.failure:
        message = outcome.failure.message + serves
        if outcome.retries:
            return Verdict("False", outcome.failure.reason, message + _again(outcome, message))
        return Verdict("False", outcome.failure.reason, message, stalled=True)
    if outcome is None or outcome.prepared is None:
        message = f"preparing the model: {outcome.message if outcome else 'next'}{serves}"
        return Verdict("False", StatusReason.PREPARING, message)
    if paused and rollout.applied != rollout.wanted:
        message = f"spec.rollout.paused holds back revision {rollout.wanted}{serves}"
        return Verdict("False", StatusReason.SUSPENDED, message, stalled=True)
    return _rolled_out(rollout, serves)


def _rolled_out(rollout: Rollout, serves: str) -> Verdict:
    progress = rollout.progress
    if progress is None:
        return Verdict("False", StatusReason.ROLLING_OUT, "the first revision is about to start")
    if progress.complete:
        if rollout.replicas == 0:
            return Verdict("True", StatusReason.SCALED_TO_ZERO, "no pods are asked for")
        return Verdict(
            "True", StatusReason.SERVING, f"revision {rollout.applied}, {progress.message}"
        )
    if progress.failure:
        reason, message = progress.failure.reason, progress.failure.message + serves
        return Verdict("False", reason, message, stalled=progress.stuck)
    message = f"revision {rollout.applied}, {progress.message}{serves}"
    if progress.stuck:
        return Verdict("False", StatusReason.ROLLOUT_FAILED, message, stalled=True)
    steady = rollout.serving is not None and rollout.serving.revision == rollout.applied
    return Verdict(
        "False", StatusReason.PROGRESSING if steady else StatusReason.ROLLING_OUT, message
    )


def _again(outcome: Outcome, message: str) -> str:
    """Add that it is tried again, unless the remedy says so already."""
    if outcome.message:
        return f"; trying again: {outcome.message}"
    return "" if "tried again" in message else "; it is tried again"


def _serves(rollout: Rollout) -> str:
    """Add what keeps serving meanwhile, where that is another revision."""
    serving = rollout.serving
    if serving is None or rollout.ready_replicas == 0 or serving.revision == rollout.wanted:
        return ""
    return f"; revision {serving.revision} serves on"


def _available(rollout: Rollout) -> WantedCondition:
    if rollout.ready_replicas > 0:
        message = "at least one pod answers requests"
        return _condition(ConditionType.AVAILABLE, "True", StatusReason.SERVING, message)
    return _condition(
        ConditionType.AVAILABLE, "False", StatusReason.NOTHING_SERVES, "no pod is ready"
    )


def _validated(outcome: Outcome | None) -> WantedCondition:
    kind = ConditionType.VALIDATED
    if outcome is None:
        message = "the model of this spec is not looked at yet"
        return _condition(kind, "Unknown", StatusReason.NOT_YET_VERIFIED, message)
    if outcome.failure:
        return _condition(kind, "False", outcome.failure.reason, outcome.failure.message)
    if outcome.prepared:
        held = outcome.prepared
        message = f"opset {held.opset}, IR version {held.ir_version}, {held.nodes} nodes"
        return _condition(kind, "True", StatusReason.PREPARED, message)
    return _condition(kind, "Unknown", StatusReason.PREPARING, "the model is not validated yet")
