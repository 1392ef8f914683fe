"""The plan for one InferenceEngine: look in the store and build it, record that and who uses it, report, or remove it.

Results are recorded in the status, so that the deletion of a Job has no effect: a built engine is not
built again, and a build that failed permanently is not repeated until spec.build changes.

A model uses the engines that its spec needs now, and those that its stored revisions run or could be
rolled back to. Where a revision is not known it may run any engine, so the model counts as a user of all:
what serves must never appear unused. A removed engine stays in the store until a collection removes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from enginewright_contract.task import ENGINE_STAGES, LOOKUP_STAGE

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import EngineUsers, InferenceEngine, InferenceEngineStatus
from enginewright.api.scalars import whole_second
from enginewright.manifests.engine_job import LOOKUP_COMPONENT
from enginewright.manifests.labels import COMPONENT, REQUESTED_BY
from enginewright.manifests.names import lookup_job_name
from enginewright.observed.jobs import JobView
from enginewright.observed.pods import of_job
from enginewright.observed.revisions import RevisionView
from enginewright.plan import pods
from enginewright.plan.engines.build import BuildFacts, build_state, is_requested
from enginewright.plan.engines.status import EngineState, ready_events, status_of
from enginewright.plan.prepare.shared import merge_records
from enginewright.plan.types import CollectionConfig, EventIntent, ObjectRef, Plan, image_not_pushed

_RECORDED_WITHIN: Final = timedelta(hours=1)
_RECORDED_EVERY: Final = timedelta(hours=1)  # in status.lastUsed
_NAMED: Final = 5


@dataclass(frozen=True)
class Ended:
    """A Job to count in metrics: one that made the engine available, or one that failed."""

    reason: str  # of the failure
    cached: bool = False  # it was found in the store
    build_seconds: float = 0.0


@dataclass(frozen=True)
class EnginePlan(Plan):
    """What to do now, and what to count after the status is written."""

    ended: Ended | None = None
    removed: EventIntent | None = None  # the InferenceEngine is deleted, and nothing else is done


def plan_engine(facts: BuildFacts) -> EnginePlan:
    """Return what to do for one InferenceEngine now."""
    if facts.engine.metadata.deletion_timestamp:
        return EnginePlan((), (), {}, (), None)  # its Jobs are garbage collected
    if not is_requested(facts) and not facts.engine.status.conditions and _is_new(facts):
        # its model has just created it and will reference it in its status
        return EnginePlan((), (), facts.engine.status.manifest(), (), None)
    since = find_unused_since(facts.engine, facts.now, needed=_is_needed(facts))
    left = _seconds_left(since, facts.config.store.gc, facts.now)
    if since is not None and left is not None and left <= 0:
        return EnginePlan((), (), {}, (), None, removed=_announce_removal(since))
    engine_state = build_state(facts)
    before, prepared_key = facts.engine.status, facts.engine.spec.prepared_key
    last_used, due_in = record_use(before, facts.users, facts.now)
    recorded = {
        "users": EngineUsers(count=len(facts.users), models=facts.users[:_NAMED]),
        "last_used": last_used,
        "unused_since": since,
        "prepared": merge_records(before.prepared, facts.prepared, prepared_key),
    }
    status = status_of(facts.engine, engine_state, facts.now).model_copy(update=recorded)
    waits = (engine_state.requeue_after, due_in, left)
    return EnginePlan(
        apply=engine_state.apply,
        delete=_find_obsolete_jobs(facts, engine_state),
        status=status.manifest(),
        events=(*ready_events(facts.engine, status), *_of_image(before, status)),
        requeue_after=min((wait for wait in waits if wait is not None), default=None),
        ended=_detect_end(before, status),
        awaits_turn=engine_state.awaits_turn,
    )


def _of_image(before: InferenceEngineStatus, now: InferenceEngineStatus) -> tuple[EventIntent, ...]:
    if before.engine or now.engine is None or not now.engine.image_failure:
        return ()
    return (image_not_pushed("the engine", now.engine.image_failure),)


def _is_new(facts: BuildFacts) -> bool:
    """Return whether the model that has created the engine may not have recorded that yet."""
    created = facts.engine.metadata.creation_timestamp
    return created is None or facts.now - created < _RECORDED_WITHIN


def _is_needed(facts: BuildFacts) -> bool:
    """Return whether a model uses the engine or may do so again, or a Job works on it."""
    works = any(not job.ended for job in facts.jobs)
    return bool(facts.users) or facts.tried_again or works


def _announce_removal(since: datetime) -> EventIntent:
    message = (
        f"nothing has needed it since {since:%Y-%m-%d %H:%M} UTC: the InferenceEngine is removed"
    )
    return EventIntent("Normal", StatusReason.ENGINE_REMOVED, message)


def _find_obsolete_jobs(facts: BuildFacts, engine_state: EngineState) -> tuple[ObjectRef, ...]:
    """Return the Jobs that are not needed and, when a new one is created, those of earlier attempts."""
    engine, status = facts.engine.metadata, engine_state.status
    engine_status = facts.engine.status  # as it is recorded
    looked = lookup_job_name(engine.name, status.build_hash, status.attempt)
    kept = {status.job, looked} if status.job else set()
    return tuple(
        ObjectRef("batch/v1", "Job", engine.namespace, job.name)
        for job in facts.jobs
        if job.name == engine_state.end
        or (job.name not in kept and (engine_state.apply or not job.ended))
        or (not job.ended and _is_recorded(engine_status, job) and _is_outlived(facts, job))
    )


def _is_recorded(status: InferenceEngineStatus, job: JobView) -> bool:
    """Return whether nothing more is to be learned from a Job of which a stage has ended."""
    if job.label(COMPONENT) == LOOKUP_COMPONENT:
        return status.stage not in ("", LOOKUP_STAGE)
    return status.engine is not None


def _is_outlived(facts: BuildFacts, job: JobView) -> bool:
    """Return whether only what a mesh has added to the Job's pod goes on."""
    last = LOOKUP_STAGE if job.label(COMPONENT) == LOOKUP_COMPONENT else ENGINE_STAGES[-1]
    return any(pods.outlives(pod, last) for pod in of_job(facts.pods, job.name))


def _detect_end(before: InferenceEngineStatus, now: InferenceEngineStatus) -> Ended | None:
    built, failure = now.engine, now.failure
    if built and before.engine is None:
        return Ended("", cached=built.cached, build_seconds=built.build_milliseconds / 1000)
    # A failure with the same time has already been counted.
    if failure and failure.time and (before.failure is None or before.failure.time != failure.time):
        return Ended(failure.reason)
    return None


@dataclass(frozen=True)
class EngineUse:
    """The engines that one model uses."""

    model: str
    names: frozenset[str] = frozenset()  # InferenceEngines that its spec needs
    keys: frozenset[str] = frozenset()  # engines that its revisions run
    is_known: bool = True  # it has no revision that may run any engine

    def includes(self, name: str, key: str) -> bool:
        """Return whether it may use an InferenceEngine of this name, whose engine has this key."""
        return name in self.names or key in self.keys or not self.is_known


def engine_use(
    model: str,
    names: Iterable[str],
    revisions: Iterable[RevisionView],
    carried: Iterable[str] = (),
) -> EngineUse:
    """Return the engines that a model uses by its spec (`names`) and its revisions; those of `carried` may be unknown."""
    stored = {revision.revision: revision.kept for revision in revisions}
    kept = {name: revision.snapshot for name, revision in stored.items() if revision}
    keys = {
        one.engine_key for snapshot in kept.values() for one in snapshot.classes if one.engine_key
    }
    return EngineUse(
        model=model,
        names=frozenset(names),
        keys=frozenset(keys),
        is_known=stored.keys() | set(carried) <= kept.keys(),
    )


def users_of(engine: InferenceEngine, uses: Iterable[EngineUse]) -> tuple[str, ...]:
    """Return the models that use an engine, in alphabetical order; `uses` are those of its namespace."""
    name, key = engine.metadata.name, engine.spec.key
    return tuple(sorted(use.model for use in uses if use.includes(name, key)))


def record_use(
    before: InferenceEngineStatus, users: Sequence[str], now: datetime
) -> tuple[datetime | None, float | None]:
    """Return the last use, to the hour while there is a user, then exactly, and in how many seconds that is outdated."""
    used = before.last_used
    age = now - used if used else _RECORDED_EVERY
    is_old = not timedelta() <= age < _RECORDED_EVERY  # also if the clock was set back
    has_ended = not users and before.users is not None and before.users.count > 0
    if (users and is_old) or has_ended:
        used, age = whole_second(now), timedelta()
    return used, (_RECORDED_EVERY - age).total_seconds() if users else None


def find_unused_since(engine: InferenceEngine, now: datetime, *, needed: bool) -> datetime | None:
    """Return since when nothing needs the engine, unless it is needed or a user has created it."""
    if needed or REQUESTED_BY not in engine.metadata.annotations:
        return None
    return engine.status.unused_since or whole_second(now)


def _seconds_left(since: datetime | None, config: CollectionConfig, now: datetime) -> float | None:
    if since is None or config.unused_for is None or config.dry_run or not config.enabled:
        return None
    return (since + config.unused_for - now).total_seconds()
