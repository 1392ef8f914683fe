"""Preparing, and fetching anew beside what serves: a refresh that fails takes nothing away."""

from dataclasses import dataclass, replace

from enginewright.api.inference_model_status import SourceState
from enginewright.plan.obstacle import Obstacle
from enginewright.plan.prepare import Outcome, is_prepared, prepare
from enginewright.plan.resolve import Target, resolve
from enginewright.plan.sources import (
    Source,
    asked_refresh,
    due_refresh,
    fetched,
    given_up,
    seconds_to_refresh,
)
from enginewright.plan.types import Facts


@dataclass(frozen=True)
class Preparing:
    """What is prepared, and from which bytes."""

    target: Target
    outcome: Outcome
    source: SourceState | None
    refresh: Outcome | None = None  # of the Job that fetches anew; None: none is wanted


def prepare_and_refresh(facts: Facts, target: Target) -> Preparing:
    """Return where preparing stands, with what is pinned or with what a refresh brings."""
    if is_prepared(facts, target):
        return _beside(facts, target)
    if asked := asked_refresh(facts):
        again = resolve(facts, Source(refresh=asked))
        target = target if isinstance(again, Obstacle) else again
    outcome = prepare(facts, target)
    return Preparing(target, outcome, _source(facts, target, outcome))


def _beside(facts: Facts, target: Target) -> Preparing:
    """Go on with what is prepared, and look at the addresses again where that is wanted."""
    wanted = asked_refresh(facts) or due_refresh(facts)
    again = resolve(facts, Source(refresh=wanted)) if wanted else None
    if not isinstance(again, Target):
        outcome = prepare(facts, target)
        source = _source(facts, target, outcome)
        if source and source.refreshing:
            source = source.model_copy(update={"refreshing": None})
        return Preparing(target, replace(outcome, requeue_after=seconds_to_refresh(facts)), source)
    source = facts.model.status.source or SourceState()
    refresh = prepare(facts, again, source.refreshing)
    if refresh.prepared:
        return Preparing(again, refresh, _source(facts, again, refresh))
    running = refresh.preparation.job if refresh.preparation else ""
    outcome = prepare(facts, target, beside=running)
    if refresh.failure and refresh.failure.lasting:
        return Preparing(target, outcome, given_up(facts, source, refresh.failure))
    source = source.model_copy(update={"refreshing": refresh.preparation})
    return Preparing(target, outcome, source, refresh)


def _source(facts: Facts, target: Target, outcome: Outcome) -> SourceState | None:
    """Return what is known of the addresses now."""
    source = facts.model.status.source
    if outcome.prepared and (outcome.published or source is None):
        data = outcome.published.data if outcome.published else {}
        return fetched(facts, outcome.prepared, data, target.source.refresh)
    return source
