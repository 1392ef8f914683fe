"""Which candidate backends do not serve, so that policy Allow goes on to the next one.

The memory is the status: a rejection holds for what was tried, and ends when that changes.
"""

from typing import Final

from enginewright.api.inference_model_status import RejectedBackend
from enginewright.contract.reasons import Reason
from enginewright.plan.engines_wanted import Engines
from enginewright.plan.prepare import Outcome
from enginewright.plan.resolve import Target
from enginewright.plan.rollout import Rollout
from enginewright.plan.types import Facts

# Failures that another backend may not have.
_OF_A_BACKEND: Final = frozenset(
    {
        Reason.PROVIDER_MISSING,
        Reason.PROVIDER_REFUSED,
        Reason.DRIVER_MISSING,
        Reason.DRIVER_TOO_OLD,
        Reason.OPSET_UNSUPPORTED,
        Reason.IR_VERSION_UNSUPPORTED,
        Reason.UNSUPPORTED_OPERATOR,
        Reason.PRECISION_UNSUPPORTED,
        Reason.SHAPE_PROFILE_MISSING,
        Reason.BUILD_FAILED,
        Reason.ENGINE_INCOMPATIBLE,
        Reason.ENGINE_VERSION_MISMATCH,
        Reason.BACKEND_CRASHED,
        Reason.PARITY_FAILED,
    }
)


def rejected_backends(
    facts: Facts,
    target: Target | None,
    outcome: Outcome | None,
    engines: Engines | None,
    rollout: Rollout,
) -> tuple[RejectedBackend, ...]:
    """Return the rejections that hold from now on."""
    known = facts.model.status.rejected_backends
    if target is None:
        return known  # an obstacle says nothing of them
    if target.promise.policy != "Allow":
        return ()
    others = tuple(each for each in known if each.backend != target.backend)
    found = None if target.last else _lasting(outcome, engines, rollout)
    if found is None:
        return others
    reason, message = found
    this = RejectedBackend(
        backend=target.backend,
        inputs_hash=target.candidate_hash,
        reason=reason,
        message=message,
    )
    return (*others, this)


def _lasting(
    outcome: Outcome | None, engines: Engines | None, rollout: Rollout
) -> tuple[str, str] | None:
    found: tuple[str, str] | None = None
    if outcome and outcome.failure and outcome.failure.lasting:
        found = outcome.failure.reason, outcome.failure.message
    elif engines and engines.failure and engines.failure.lasting:
        found = engines.failure.reason, engines.failure.message
    elif (
        rollout.applied == rollout.wanted
        and (progress := rollout.progress)
        and progress.failure
        and progress.repeated
    ):
        found = progress.failure.reason, progress.failure.message
    return found if found and found[0] in _OF_A_BACKEND else None
