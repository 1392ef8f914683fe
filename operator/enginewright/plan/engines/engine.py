"""The plan for one InferenceEngine: look in the store and build it, record that and who uses it, report, or remove it.

Results are recorded in the status, so that the deletion of a Job has no effect: a built engine is not
built again, and a build that failed permanently is not repeated until spec.build changes.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import InferenceEngineStatus
from enginewright.manifests.names import lookup_job_name
from enginewright.plan.engines.build import BuildFacts, build_state, is_requested
from enginewright.plan.engines.status import (
    EngineState,
    ready_events,
    status_of,
)
from enginewright.plan.engines.users import recorded_use, seconds_left, unused_since
from enginewright.plan.prepare.shared import kept_records
from enginewright.plan.types import (
    EventIntent,
    ObjectRef,
    Plan,
    image_not_pushed,
)

_RECORDED_WITHIN: Final = timedelta(hours=1)


@dataclass(frozen=True)
class Ended:
    """A Job to count in metrics: one that made the engine available, or one that failed."""

    reason: str  # empty: the engine is available
    cached: bool = False  # it was found in the store
    build_seconds: float = 0.0


@dataclass(frozen=True)
class EnginePlan(Plan):
    """What to do now, and what to count after the status is written."""

    ended: Ended | None = None
    removed: EventIntent | None = (
        None  # the InferenceEngine is to be deleted, and nothing else done
    )


def plan_engine(facts: BuildFacts) -> EnginePlan:
    """Return what to do for one InferenceEngine now."""
    if facts.engine.metadata.deletion_timestamp:
        return EnginePlan((), (), {}, (), None)  # its Jobs are garbage collected
    if not is_requested(facts) and not facts.engine.status.conditions and _is_new(facts):
        # its model has just created it and will reference it in its status
        return EnginePlan((), (), facts.engine.status.manifest(), (), None)
    since = unused_since(facts.engine, facts.now, needed=_is_needed(facts))
    left = seconds_left(since, facts.config.store.gc, facts.now)
    if since is not None and left is not None and left <= 0:
        return EnginePlan((), (), {}, (), None, removed=_removed(since))
    engine_state = build_state(facts)
    used = recorded_use(facts.engine.status, facts.users, facts.now)
    recorded = {
        "users": used.users,
        "last_used": used.last_used,
        "unused_since": since,
        "prepared": kept_records(
            facts.engine.status.prepared, facts.prepared, facts.engine.spec.prepared_key
        ),
    }
    status = status_of(facts.engine, engine_state, facts.now).model_copy(update=recorded)
    return EnginePlan(
        apply=engine_state.apply,
        delete=_unwanted(facts, engine_state),
        status=status.manifest(),
        events=(*ready_events(facts.engine, status), *_of_image(facts.engine.status, status)),
        requeue_after=_earliest(engine_state.requeue_after, used.due_in, left),
        ended=_ended(facts.engine.status, status),
        awaits_turn=engine_state.awaits_turn,
    )


def _of_image(before: InferenceEngineStatus, now: InferenceEngineStatus) -> tuple[EventIntent, ...]:
    """Return an Event when the engine has come without the OCI image that it should have."""
    if before.engine or now.engine is None or not now.engine.image_failure:
        return ()
    return (image_not_pushed("the engine", now.engine.image_failure),)


def _earliest(*delays: float | None) -> float | None:
    return min((each for each in delays if each is not None), default=None)


def _is_new(facts: BuildFacts) -> bool:
    """Return whether the model that has created the engine may not have recorded that yet."""
    created = facts.engine.metadata.creation_timestamp
    return created is None or facts.now - created < _RECORDED_WITHIN


def _is_needed(facts: BuildFacts) -> bool:
    """Return whether a model uses the engine or may do so again, or a Job works on it."""
    works = any(not job.ended for job in facts.jobs)
    return bool(facts.users) or facts.tried_again or works


def _removed(since: datetime) -> EventIntent:
    message = (
        f"nothing has needed it since {since:%Y-%m-%d %H:%M} UTC: the InferenceEngine is removed"
    )
    return EventIntent("Normal", StatusReason.ENGINE_REMOVED, message)


def _unwanted(facts: BuildFacts, engine_state: EngineState) -> tuple[ObjectRef, ...]:
    """Return the Jobs that are not needed and, when a new one is created, those of earlier attempts."""
    engine, status = facts.engine.metadata, engine_state.status
    looked = lookup_job_name(engine.name, status.build_hash, status.attempt)
    kept = {status.job, looked} if status.job else set()
    return tuple(
        ObjectRef("batch/v1", "Job", engine.namespace, name)
        for job in facts.jobs
        if (name := job.name) == engine_state.end
        or (name not in kept and (engine_state.apply or not job.ended))
    )


def _ended(before: InferenceEngineStatus, now: InferenceEngineStatus) -> Ended | None:
    built, failure = now.engine, now.failure
    if built and before.engine is None:
        return Ended("", cached=built.cached, build_seconds=built.build_milliseconds / 1000)
    # A failure with the same time has already been counted.
    if failure and failure.time and (before.failure is None or before.failure.time != failure.time):
        return Ended(failure.reason)
    return None
