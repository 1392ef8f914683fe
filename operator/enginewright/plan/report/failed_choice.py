"""Whether the revision with the fastest backends has failed, so that the engines serve from now on.

It is recorded in the status: the same revision would fail again.
"""

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import RolloutFailure
from enginewright.plan.engines.choice import Choice
from enginewright.plan.engines.wanted import Engines
from enginewright.plan.rollout.failures import lasting_on
from enginewright.plan.rollout.rollout import RolloutPlan
from enginewright.plan.types import Facts


def failed_choice(
    facts: Facts, engines: Engines | None, choice: Choice | None, rollout: RolloutPlan
) -> RolloutFailure | None:
    """Return the failure to record; None: there is none, or it was the user who rejected the revision."""
    if facts.model.spec.build.choose != "Fastest" or (engines and not engines.needed):
        return None
    if choice is None or choice.waits:  # not known now
        return facts.model.status.failed_choice
    if not choice.chosen:
        return choice.failed
    if rejection := rollout.rejection:
        by_user = rejection.reason == StatusReason.ROLLED_BACK_BY_USER
        return None if by_user or rejection.revision != rollout.wanted else rejection
    return _failing(facts, choice, rollout) if rollout.applied == rollout.wanted else None


def _failing(facts: Facts, choice: Choice, rollout: RolloutPlan) -> RolloutFailure | None:
    """Return why the applied revision, which never served, is given up: what its pods of the chosen backends show.

    With `fallback.policy: Allow` what those of engines show as well: only the engines' revision rejects their backend.
    """
    policy, revision = facts.model.spec.fallback.policy, rollout.applied or ""
    others = {each.class_name for each in choice.classes} - choice.chosen.keys()
    for name in (*choice.chosen, *(sorted(others) if policy == "Allow" else ())):
        if failed := lasting_on(facts, revision, name):
            on_class = f"on class {name}: " if name in others else ""
            return RolloutFailure(
                revision=revision,
                stage=failed.stage,
                reason=failed.reason,
                message=f"{on_class}{failed.finding.message}",
                exit_code=failed.exit_code,
            )
    return None
