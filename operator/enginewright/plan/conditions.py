"""The truth table: from where a model stands to its conditions. docs/conditions.md is its text."""

from dataclasses import dataclass
from typing import Final

from enginewright.api.conditions import (
    ConditionStatus,
    ConditionType,
    StatusReason,
    WantedCondition,
)
from enginewright.api.inference_engine import EngineFacts
from enginewright.contract.reasons import OF_THE_MODEL, Reason
from enginewright.plan.engines_wanted import Engines
from enginewright.plan.obstacle import Obstacle
from enginewright.plan.prepare import Outcome
from enginewright.plan.proofs import Proofs, Statement
from enginewright.plan.rollout import Progress, Rollout

# Failures of pods that are about where nodes run.
_ABOUT_PLACEMENT: Final = frozenset(
    {
        Reason.PROVIDER_MISSING,
        Reason.PROVIDER_REFUSED,
        Reason.DRIVER_MISSING,
        Reason.DRIVER_TOO_OLD,
        Reason.NODE_FALLBACK,
        Reason.BACKEND_FALLBACK,
        Reason.FALLBACK_OVER_BUDGET,
        Reason.SESSION_REPLACED,
        Reason.ENGINE_INCOMPATIBLE,
        Reason.ENGINE_VERSION_MISMATCH,
        Reason.ENGINE_CORRUPT,
    }
)


@dataclass(frozen=True)
class Verdict:
    """Why a model is ready, is on its way, or is stalled."""

    status: ConditionStatus  # of Ready
    reason: str
    message: str
    stalled: bool = False


@dataclass(frozen=True)
class Standing:
    """Where a model stands: all that its conditions are made of."""

    paused: bool
    obstacle: Obstacle | None
    outcome: Outcome | None
    engines: Engines | None
    rollout: Rollout
    proofs: Proofs | None  # None: nothing serves that has been looked at


def conditions(standing: Standing) -> tuple[WantedCondition, ...]:
    """Return the conditions of this version, all of them, in their order."""
    verdict = _verdict(standing)
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
        _available(standing.rollout),
        _validated(standing.outcome),
        _engines_ready(standing.outcome, standing.engines),
        _stated(ConditionType.PARITY_VERIFIED, _parity(standing)),
        _stated(ConditionType.PLACEMENT_VERIFIED, _placement(standing)),
        _stated(ConditionType.FALLBACK_ACTIVE, _fallback(standing)),
    )


def _condition(
    kind: ConditionType, status: ConditionStatus, reason: str, message: str
) -> WantedCondition:
    return WantedCondition(type=kind, status=status, reason=reason, message=message)


def _verdict(standing: Standing) -> Verdict:
    serves = _serves(standing.rollout)
    if verdict := _not_prepared(standing, serves):
        return verdict
    if standing.engines and not standing.engines.complete:
        return _engines_missing(standing.engines, serves)
    wanted = standing.rollout.wanted
    if standing.paused and standing.rollout.applied != wanted:
        message = f"spec.rollout.paused holds back revision {wanted}{serves}"
        return Verdict("False", StatusReason.SUSPENDED, message, stalled=True)
    progress = standing.rollout.progress
    if progress is None:
        return Verdict("False", StatusReason.ROLLING_OUT, "the first revision is about to start")
    if progress.complete:
        return _complete(standing, progress)
    return _rolling_out(standing, progress, serves)


def _not_prepared(standing: Standing, serves: str) -> Verdict | None:
    outcome = standing.outcome
    if obstacle := standing.obstacle:
        return Verdict("False", obstacle.reason, obstacle.message + serves, obstacle.stalled)
    if outcome and outcome.failure:
        message = outcome.failure.message + serves
        if not outcome.failure.lasting:
            return Verdict("False", outcome.failure.reason, message + _again(outcome))
        return Verdict("False", outcome.failure.reason, message, stalled=True)
    if outcome is None or outcome.prepared is None:
        message = f"preparing the model: {outcome.message if outcome else 'next'}{serves}"
        waits_for = outcome.waits_for if outcome else ""
        return Verdict("False", waits_for or StatusReason.PREPARING, message)
    return None


def _engines_missing(engines: Engines, serves: str) -> Verdict:
    if failure := engines.failure:
        return Verdict("False", failure.reason, failure.message + serves, stalled=failure.lasting)
    return Verdict("False", engines.reason, engines.message + serves)


def _complete(standing: Standing, progress: Progress) -> Verdict:
    rollout = standing.rollout
    if rollout.asked == 0:
        return Verdict("True", StatusReason.SCALED_TO_ZERO, "no pods are asked for")
    if standing.proofs and (broken := standing.proofs.broken):
        return Verdict("False", broken.reason, broken.message)
    return Verdict("True", StatusReason.SERVING, f"revision {rollout.applied}, {progress.message}")


def _rolling_out(standing: Standing, progress: Progress, serves: str) -> Verdict:
    rollout = standing.rollout
    if progress.failure:
        reason, message = progress.failure.reason, progress.failure.message + serves
        return Verdict("False", reason, message, stalled=_is_hopeless(progress, reason))
    if rollout.serving is None and standing.proofs and (broken := standing.proofs.broken):
        return Verdict(
            "False", broken.reason, broken.message, stalled=_is_hopeless(progress, broken.reason)
        )
    message = f"revision {rollout.applied}, {progress.message}{serves}"
    if progress.refused:
        message = f"{progress.refused}{serves}"
        return Verdict("False", StatusReason.FAILED_CREATE, message, stalled=progress.stuck)
    if progress.stuck:
        return Verdict("False", StatusReason.ROLLOUT_FAILED, message, stalled=True)
    if progress.missing:
        return Verdict("False", progress.missing, message)
    steady = rollout.serving is not None and rollout.serving.revision == rollout.applied
    return Verdict(
        "False", StatusReason.PROGRESSING if steady else StatusReason.ROLLING_OUT, message
    )


def _is_hopeless(progress: Progress, reason: str) -> bool:
    """Return whether Kubernetes gave up, or every other pod would find the same."""
    return progress.stuck or (reason in OF_THE_MODEL and not progress.tries_others)


def _again(outcome: Outcome) -> str:
    """Add that it is tried again, now or later."""
    return f"; trying again: {outcome.message}" if outcome.message else "; it is tried again"


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
        message = "the model of this spec has not been validated yet"
        return _condition(kind, "Unknown", StatusReason.NOT_YET_VERIFIED, message)
    if outcome.failure:
        return _condition(kind, "False", outcome.failure.reason, outcome.failure.message)
    if outcome.prepared:
        held = outcome.prepared
        message = f"opset {held.opset}, IR version {held.ir_version}, {held.nodes} nodes"
        if held.changes:
            message += f"; {held.changes}"
        return _condition(kind, "True", StatusReason.PREPARED, message)
    return _condition(kind, "Unknown", StatusReason.PREPARING, "the model is not validated yet")


def _stated(kind: ConditionType, statement: Statement) -> WantedCondition:
    return _condition(kind, statement.status, statement.reason, statement.message)


def _engines_ready(outcome: Outcome | None, engines: Engines | None) -> WantedCondition:
    kind = ConditionType.ENGINES_READY
    if outcome is None:
        message = "the model of this spec has not been validated yet"
        return _condition(kind, "Unknown", StatusReason.NOT_YET_VERIFIED, message)
    if engines is None:
        message = "engines are built once the model is prepared"
        return _condition(kind, "Unknown", StatusReason.NOT_YET_VERIFIED, message)
    if not engines.needed:
        message = "the backend runs the prepared model itself"
        return _condition(kind, "True", StatusReason.NO_ENGINE_NEEDED, message)
    failure = engines.failure
    if failure and not failure.placement:
        return _condition(kind, "False", failure.reason, failure.message)
    if engines.complete or failure:
        built = "; ".join(_engine_in_words(each) for each in engines.facts)
        return _condition(kind, "True", StatusReason.BUILT, built)
    return _condition(kind, "False", engines.reason, engines.message)


def _engine_in_words(engine: EngineFacts) -> str:
    capabilities = ", ".join(engine.compute_capabilities)
    return (
        f"{engine.size_bytes / 1e6:.1f} MB for compute capability {capabilities}, built in"
        f" {engine.build_milliseconds / 1e3:.1f} s, {engine.nodes_accelerated} of"
        f" {engine.nodes_total} nodes, sha256 {engine.sha256[:12]}"
    )


_NOT_YET: Final = Statement("Unknown", StatusReason.NOT_YET_VERIFIED, "nothing serves yet")


def _parity(standing: Standing) -> Statement:
    failure = _failure(standing)
    if failure and failure.reason == Reason.PARITY_FAILED:
        return failure
    return standing.proofs.parity if standing.proofs else _NOT_YET


def _placement(standing: Standing) -> Statement:
    failure = _failure(standing)
    if failure and failure.reason in _ABOUT_PLACEMENT:
        return failure
    return standing.proofs.placement if standing.proofs else _NOT_YET


def _fallback(standing: Standing) -> Statement:
    return standing.proofs.fallback if standing.proofs else _NOT_YET


def _failure(standing: Standing) -> Statement | None:
    """Return why what is to be served first cannot be; what serves on speaks for itself."""
    if standing.rollout.ready_replicas:
        return None
    if standing.outcome and standing.outcome.failure:
        return Statement("False", standing.outcome.failure.reason, standing.outcome.failure.message)
    if standing.engines and standing.engines.failure and standing.engines.failure.placement:
        return Statement("False", standing.engines.failure.reason, standing.engines.failure.message)
    progress = standing.rollout.progress
    if progress and progress.failure:
        return Statement("False", progress.failure.reason, progress.failure.message)
    return None
