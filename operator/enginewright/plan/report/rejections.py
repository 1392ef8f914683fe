"""Which candidate backends and choices cannot serve, as the status records it: the same would fail again.

After a rejected backend, policy Allow proceeds to the next one; a rejection holds for the inputs that were tried, until
they change or it is readmitted. Once a choice has failed, the engines serve.
"""

from dataclasses import dataclass

from enginewright_contract.reasons import Fault, Reason, has_fault, reason_named

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import RejectedBackend, RolloutFailure
from enginewright.plan.engines.choice import Choice
from enginewright.plan.engines.wanted import Engines
from enginewright.plan.prepare.prepare import PrepareOutcome
from enginewright.plan.resolve.backends import rejection_recorded
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.rollout.failures import lasting_on
from enginewright.plan.rollout.rollout import RolloutPlan
from enginewright.plan.types import Facts


def reasons_for_others(target: Target) -> frozenset[Reason]:
    """Return the reasons for which another backend is tried if pods fail, if there is another."""
    if target.promise.policy != "Allow" or target.last:
        return frozenset()
    return frozenset(reason for reason in Reason if reason.facets.other_backend)


def update_rejections(
    facts: Facts,
    target: Target | None,
    outcome: PrepareOutcome | None,
    engines: Engines | None,
    rollout: RolloutPlan,
    *,
    apart: bool,
) -> tuple[RejectedBackend, ...]:
    """Return the rejections that hold from now on.

    It is `apart` if an interim or a chosen backend is rolled out, whose pods say nothing of the engines' backend.
    """
    records = tuple(facts.model.status.rejected_backends)
    if target is None:
        return records  # an obstacle does not affect them
    if target.promise.policy != "Allow":
        return ()
    records = tuple(
        rejection_recorded(facts, target.classes, record)
        if record.inputs_hash and record.rejected_at is None  # by an earlier release
        else record
        for record in records
    )
    if outcome and outcome.prepared is None:  # its artefact may have been lost
        records = tuple(_without(record, target.artifact_hash) for record in records)
    others = tuple(record for record in records if record.backend != target.backend)
    before = next((record for record in records if record.backend == target.backend), None)
    if before and before.inputs_hash:
        before = None if target.last else _candidate_again(before, target)
    own = None if apart else rollout
    failure = None if target.last else _lasting(outcome, engines, own, before)
    if failure is None:
        return others if before is None or (own and _serves(own)) else (*others, before)
    this = RejectedBackend(
        backend=target.backend,
        inputs_hash=target.candidate_hash,
        reason=failure.reason,
        message=failure.message,
        revision=failure.revision,
        prepared=outcome.prepared if outcome else None,
    )
    return (*others, rejection_recorded(facts, target.classes, this))


def _candidate_again(rejected: RejectedBackend, target: Target) -> RejectedBackend:
    """Return the record of a backend that is a candidate again; with other inputs, without those of its failure."""
    update: dict[str, object] = {"inputs_hash": ""}
    if rejected.inputs_hash != target.candidate_hash:
        update |= {"rejected_at": None, "retry": ""}
    return rejected.model_copy(update=update)


def _without(rejected: RejectedBackend, artifact_hash: str) -> RejectedBackend:
    """Return the rejection without a prepared model of these inputs."""
    prepared = rejected.prepared
    if prepared is None or prepared.inputs_hash != artifact_hash:
        return rejected
    return rejected.model_copy(update={"prepared": None})


def _serves(rollout: RolloutPlan) -> bool:
    serving = rollout.serving
    return serving is not None and serving.last_complete == rollout.requested


@dataclass(frozen=True)
class _Lasting:
    """Why a backend cannot serve: a failure that would repeat."""

    reason: str
    message: str
    revision: str = ""  # whose pods failed


def _lasting(
    outcome: PrepareOutcome | None,
    engines: Engines | None,
    rollout: RolloutPlan | None,
    before: RejectedBackend | None,
) -> _Lasting | None:
    """Return the failure for which a candidate is rejected.

    One that is a candidate again, after the rejection `before`, is also rejected for failures of its source: the
    backend that serves instead is already prepared and does not need it. With the same inputs as before it is also
    rejected for a lack of capacity: an unchanged model is not to wait for a spare device.
    """
    lasting: _Lasting | None = None
    if outcome and outcome.failure and outcome.failure.lasting:
        lasting = _Lasting(outcome.failure.reason, outcome.failure.sentence)
    elif engines and engines.failure and engines.failure.lasting:
        lasting = _Lasting(engines.failure.reason, engines.failure.sentence)
    elif rollout is None:
        return None
    elif (brought := rollout.bring_up) and brought.replaces:
        if failure := brought.failures.lasting:
            lasting = _Lasting(failure.reason, failure.message, brought.revision.name)
        elif before and before.rejected_at and brought.failures.blocked:
            lasting = _Lasting(before.reason, before.message, brought.revision.name)
    elif (
        rollout.applied == rollout.requested
        and (progress := rollout.progress)
        and (failed := progress.lasting)
    ):
        lasting = _Lasting(failed.reason, failed.finding.message, rollout.applied or "")
    if lasting is None or (before and has_fault(lasting.reason, Fault.SOURCE)):
        return lasting
    reason = reason_named(lasting.reason)
    return lasting if reason and reason.facets.other_backend else None


def find_failed_choice(
    facts: Facts, engines: Engines | None, choice: Choice | None, rollout: RolloutPlan
) -> RolloutFailure | None:
    """Return the failure to record, if there is one that is no rejection by the user."""
    if facts.model.spec.build.choose != "Fastest" or (engines and not engines.needed):
        return None
    if choice is None or choice.waits:  # not known now
        return facts.model.status.failed_choice
    if not choice.chosen:
        return choice.failed
    if rejection := rollout.rejection:
        by_user = rejection.reason == StatusReason.ROLLED_BACK_BY_USER
        return None if by_user or rejection.revision != rollout.requested else rejection
    return _failing(facts, choice, rollout) if rollout.applied == rollout.requested else None


def _failing(facts: Facts, choice: Choice, rollout: RolloutPlan) -> RolloutFailure | None:
    """Return why the applied revision, which never served, is given up: what its pods of the chosen backends show.

    With `fallback.policy: Allow` also what those of engines show, as only the engines' revision rejects their backend.
    """
    policy, revision = facts.model.spec.fallback.policy, rollout.applied or ""
    others = {device_class.class_name for device_class in choice.classes} - choice.chosen.keys()
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
