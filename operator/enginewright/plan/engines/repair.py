"""Rebuilding what serves while a user pauses the model's move to other runtime images or classes.

The pause may last for days. If the store loses the artefact or an engine of what serves meanwhile, its pods could
not start again: these are rebuilt with those that the model has, beside the move.
"""

from dataclasses import dataclass, replace

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import EngineReference
from enginewright.plan.engines.wanted import Engines, request_engines
from enginewright.plan.prepare.prepare import PrepareOutcome, find_artefact, prepare
from enginewright.plan.prepare.refresh import Preparing
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.types import Facts


@dataclass(frozen=True)
class Repair:
    """The state of what serves while it is rebuilt."""

    outcome: PrepareOutcome
    engines: Engines | None = None  # once its artefact is there


def repair(facts: Facts, preparing: Preparing, engines: Engines | None) -> Repair | None:
    """Return what is rebuilt of what serves beside the move, if anything; nothing while a Job of the move runs."""
    if facts.paused_with is None or _runs(preparing, engines):
        return None
    held = facts.having(facts.paused_with)
    own = resolve(held)
    if not isinstance(own, Target):
        return None
    prepared, is_lost = find_artefact(held, own)
    if prepared is None:
        return None
    if is_lost:
        outcome = prepare(held, own)
        return None if outcome.prepared else Repair(outcome)
    rebuilt = request_engines(held, own, prepared)
    # those that do not serve, as with another device, are suspended like the move
    lacks_engine = any(reference.class_name not in rebuilt.keys for reference in rebuilt.references)
    if not lacks_engine or rebuilt.reason == StatusReason.SUSPENDED:
        return None
    return Repair(PrepareOutcome(prepared=prepared), rebuilt)


def spare_job(outcome: PrepareOutcome, repairing: Repair | None) -> PrepareOutcome:
    """Return the outcome without the deletion of a Job that rebuilds what serves."""
    if repairing is None or repairing.outcome.preparation is None:
        return outcome
    job = repairing.outcome.preparation.job
    return replace(outcome, delete=tuple(ref for ref in outcome.delete if ref.name != job))


def references(engines: Engines | None, repairing: Repair | None) -> tuple[EngineReference, ...]:
    """Return the engine of each class that must be built: one that serves before that of the move."""
    by_class = (
        {reference.class_name: reference for reference in engines.references} if engines else {}
    )
    if repairing and (own := repairing.engines):
        by_class |= {
            reference.class_name: reference
            for reference in own.references
            if reference.class_name not in own.keys
        }
    return tuple(by_class.values())


def _runs(preparing: Preparing, engines: Engines | None) -> bool:
    """Return whether a Job of the move may run, which ends first."""
    if engines and not engines.complete and engines.reason != StatusReason.SUSPENDED:
        return True
    jobs = filter(None, (preparing.outcome, preparing.refresh))
    return any(job.prepared is None and job.waits_for != StatusReason.SUSPENDED for job in jobs)
