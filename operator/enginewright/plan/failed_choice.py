"""Whether the revision with the fastest backends has failed, so that the engines serve from now on.

It is recorded in the status: the same revision would fail again.
"""

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import RolloutFailure
from enginewright.plan.choice import Choice
from enginewright.plan.rollout import RolloutPlan
from enginewright.plan.types import Facts


def failed_choice(
    facts: Facts, choice: Choice | None, rollout: RolloutPlan
) -> RolloutFailure | None:
    """Return the failure to record; None: there is none, or it was the user who rejected the revision."""
    if facts.model.spec.build.choose != "Fastest":
        return None
    if choice is None:  # not known now
        return facts.model.status.failed_choice
    if not choice.chosen:
        return choice.failed
    if rejection := rollout.rejection:
        by_user = rejection.reason == StatusReason.ROLLED_BACK_BY_USER
        return None if by_user or rejection.revision != rollout.wanted else rejection
    progress = rollout.progress
    if progress is None or progress.lasting is None or rollout.applied != rollout.wanted:
        return None
    failed = progress.lasting
    return RolloutFailure(
        revision=rollout.applied or "",
        stage=failed.stage,
        reason=failed.reason,
        message=failed.finding.message,
        exit_code=failed.exit_code,
    )
