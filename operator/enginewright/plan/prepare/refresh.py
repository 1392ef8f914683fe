"""Preparing, and refreshing in the background while a model serves: a failed refresh changes nothing."""

from dataclasses import dataclass, replace
from datetime import datetime

from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import SourceState
from enginewright.plan.prepare.prepare import PrepareOutcome, is_prepared, prepare
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.resolve.sources import (
    find_refresh,
    record_fetch,
    refresh_failed,
    refresh_source,
    seconds_to_refresh,
)
from enginewright.plan.types import Facts


@dataclass(frozen=True)
class Preparing:
    """What is prepared, and from which content."""

    target: Target
    outcome: PrepareOutcome
    source: SourceState | None
    refresh: PrepareOutcome | None = None  # of the Job that fetches again


def prepare_and_refresh(facts: Facts, target: Target) -> Preparing:
    """Return the state of preparing the pinned content, or that of a refresh."""
    has_artefact, refreshed = is_prepared(facts, target), None
    if refresh := find_refresh(facts.model, facts.now):
        source = refresh_source(facts.model, facts.revisions, refresh, prepared=has_artefact)
        resolved = resolve(facts, source)
        refreshed = resolved if isinstance(resolved, Target) else None
    if has_artefact:
        return _refresh_in_background(facts, target, refreshed)
    target = refreshed or target
    outcome = prepare(facts, target, shares=refreshed is None)
    state = _source(facts.model, facts.now, target, outcome)
    failure = outcome.failure
    if refreshed and state and failure and failure.lasting:
        # what is pinned is fetched again
        state = refresh_failed(facts.model, facts.now, state, failure)
    return Preparing(target, _requeue_for_refresh(outcome, facts.model, facts.now), _idle(state))


def _refresh_in_background(facts: Facts, target: Target, refreshed: Target | None) -> Preparing:
    """Keep the prepared model, and fetch from the addresses again if a refresh is requested."""
    before = facts.model.status.source
    refresh = None
    if refreshed:
        memory = before.refreshing if before else None
        refresh = prepare(facts, refreshed, memory, shares=False)
        if refresh.prepared:
            state = _source(facts.model, facts.now, refreshed, refresh)
            return Preparing(refreshed, refresh, state)
    running = refresh.preparation.job if refresh and refresh.preparation else ""
    outcome = prepare(facts, target, keep=running)
    source = _source(facts.model, facts.now, target, outcome)
    if refresh is None or source is None:
        outcome = _requeue_for_refresh(outcome, facts.model, facts.now)
        return Preparing(target, outcome, _idle(source))
    if refresh.failure and refresh.failure.lasting:
        state = refresh_failed(facts.model, facts.now, source, refresh.failure)
        return Preparing(target, outcome, state)
    source = source.model_copy(update={"refreshing": refresh.preparation})
    return Preparing(target, outcome, source, refresh)


def _requeue_for_refresh(
    outcome: PrepareOutcome, model: InferenceModel, now: datetime
) -> PrepareOutcome:
    waits = (outcome.requeue_after, seconds_to_refresh(model, now))
    soonest = min((wait for wait in waits if wait is not None and wait > 0), default=None)
    return replace(outcome, requeue_after=soonest)


def _idle(source: SourceState | None) -> SourceState | None:
    return source.model_copy(update={"refreshing": None}) if source else None


def _source(
    model: InferenceModel, now: datetime, target: Target, outcome: PrepareOutcome
) -> SourceState | None:
    source = model.status.source
    if outcome.prepared and (outcome.fetched is not None or source is None):
        data = outcome.fetched or {}
        return record_fetch(model, now, outcome.prepared, data, target.source.refresh)
    return source
