"""How far the build of an engine is: looked for in the store, built, waited for or failed, and the Job that is next."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from enginewright_contract.keys import engine_key
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, Progress, PublishedEngine
from enginewright_contract.task import ENGINE_STAGES, LOOKUP_STAGE, EngineRecipe, EngineTask

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import InferenceEngine, InferenceEngineStatus
from enginewright.api.inference_model_status import EngineReference, Prepared
from enginewright.api.job_failure import JobFailure
from enginewright.manifests.engine_job import (
    EngineJob,
    engine_claim_templates,
    engine_job,
    lookup_job,
)
from enginewright.manifests.labels import REQUESTED_BY
from enginewright.manifests.names import engine_job_name, lookup_job_name
from enginewright.manifests.placement import placement_hash
from enginewright.observed.jobs import JobView
from enginewright.observed.pods import PodView
from enginewright.plan import pods
from enginewright.plan.attempts import Failed, InProgress, Observed, Start, Succeeded, Work, advance
from enginewright.plan.engines.status import (
    EngineState,
    engine_facts,
    engine_versions,
)
from enginewright.plan.engines.wanted import build_hash
from enginewright.plan.types import (
    Config,
)

_LOOKUP: Final = (LOOKUP_STAGE,)
_BENCHMARK: Final = ENGINE_STAGES[2]
_TENTH: Final = 10  # percent
_NOT_RUNNING: Final = {"percent": None, "placed": False}
_NO_DEVICE_LEFT: Final = "cannot allocate all claims"  # of the scheduler's plugin DynamicResources
_NO_NODE_OF_THE_CLASS: Final = re.compile(
    r"^0/(\d+) nodes are available: \1 node\(s\) didn't match Pod's node affinity/selector"
)


@dataclass(frozen=True)
class BuildFacts:
    """Everything that is known about one InferenceEngine at one moment."""

    engine: InferenceEngine
    config: Config
    now: datetime  # timezone-aware
    jobs: tuple[JobView, ...] = ()  # this engine's
    pods: tuple[PodView, ...] = ()  # of its Jobs
    # by Job; absent: not known, as after a restart
    progress: Mapping[str, Progress] = field(default_factory=dict)
    references: tuple[EngineReference, ...] = ()  # of the namespace's models to this engine
    users: tuple[str, ...] = ()  # models that use it, in alphabetical order
    # whether a model may try a backend again that it rejected, with this engine
    tried_again: bool = False
    prepared: tuple[Prepared, ...] = ()  # of the models that refer to it
    job_limit: str = ""  # why it creates no further Job for now, as a sentence; empty: it may


def build_state(facts: BuildFacts) -> EngineState:
    """Return the state of the engine; the first of these that holds decides."""
    spec, status = facts.engine.spec, facts.engine.status
    if status.engine:
        return EngineState.built(status, status.engine)
    digest = build_hash(spec.build)
    known = status
    if status.build_hash != digest:
        known = InferenceEngineStatus(build_hash=digest, failed_builds=status.failed_builds)
    if known.failure and known.failure.lasting:
        return EngineState.failed(known, known.failure)
    if digest in known.failed_builds:
        return EngineState.failed(known, _tried_before(status.failure))
    if engine_key(spec.prepared_key, _recipe(facts.engine)) != spec.key:
        message = (
            "spec.key does not match spec.preparedKey and spec.recipe: delete this InferenceEngine;"
            " the operator creates them"
        )
        return EngineState(known, StatusReason.INVALID_SPEC, message, stalled=True)
    return _of_attempt(facts, known, max(known.attempt, 1))


@dataclass(frozen=True)
class _Found:
    """What a successful Job has found or built."""

    engine: PublishedEngine | None  # None: the store does not have it


def _of_attempt(facts: BuildFacts, known: InferenceEngineStatus, attempt: int) -> EngineState:
    ineffective = {each.freed_for_job for each in facts.references if not each.freed_at}
    awaited = known.job if known.job in ineffective else ""
    observed = Observed({job.name: job for job in facts.jobs}, _pods(facts), facts.now, awaited)
    work = _build(facts.engine, known)
    if _needs_lookup(facts.engine, known) and work.name(attempt) not in observed.jobs:
        work = _lookup(facts.engine, known)
    state = advance(work, observed, attempt, known.failure)
    match state:
        case Succeeded() if engine := state.result.engine:
            return _built(known, state.attempt, state.job, work.stages[-1], engine)
        case Failed():
            return _failed(known, state)
        case _ if not is_requested(facts):
            return _not_requested(known)
        case Succeeded() | Start():
            return _next_job(facts, known, state)
        case InProgress():
            return _in_progress(facts, known, state)


def _pods(facts: BuildFacts) -> tuple[PodView, ...]:
    """Return the pods of the Jobs, and not those of a deleted Job whose name the next one has."""
    uids = {job.uid for job in facts.jobs}
    return tuple(each for each in facts.pods if each.owners.get("Job") in (None, *uids))


def is_requested(facts: BuildFacts) -> bool:
    """Return whether a model needs the engine, or a user has created it."""
    return bool(facts.references) or REQUESTED_BY not in facts.engine.metadata.annotations


def _not_requested(known: InferenceEngineStatus) -> EngineState:
    """Return the state of an engine that no model needs, so that its Jobs must not hold a device."""
    status = known.model_copy(update={"job": "", **_NOT_RUNNING})
    message = "no InferenceModel of this namespace needs it: it is built once one does"
    return EngineState(status, StatusReason.NOT_REQUESTED, message)


def _is_suspended(facts: BuildFacts) -> bool:
    """Return whether only models need it whose users have paused what it is built for."""
    by_user = REQUESTED_BY not in facts.engine.metadata.annotations
    return not by_user and all(each.suspended for each in facts.references)


def _is_due(facts: BuildFacts, state: Start) -> bool:
    """Return whether a Job needs no turn: what serves is rebuilt, or a Job is replaced that has begun."""
    begun = {job.name for job in facts.jobs if not job.ended}
    return state.replaces in begun or any(each.lost for each in facts.references)


def _suspended(known: InferenceEngineStatus) -> EngineState:
    status = known.model_copy(update=_NOT_RUNNING)
    message = "spec.rollout.paused is true of all InferenceModels that need it"
    return EngineState(status, StatusReason.SUSPENDED, message)


def _build(engine: InferenceEngine, known: InferenceEngineStatus) -> Work[_Found]:
    seconds = engine.spec.build.timeout_seconds
    return Work(
        stages=ENGINE_STAGES,
        name=partial(engine_job_name, engine.metadata.name, known.build_hash),
        result=lambda pod: _Found(built) if (built := _published(pod, engine.spec.key)) else None,
        placement=placement_hash(engine.spec.pod_template),
        overdue=(Reason.TIMEOUT, f"{{stage}} timed out after {seconds} s"),
        lightened=_BENCHMARK if engine.spec.build.benchmark_backends else "",
    )


def _lookup(engine: InferenceEngine, known: InferenceEngineStatus) -> Work[_Found]:
    return Work(
        stages=_LOOKUP,
        name=partial(lookup_job_name, engine.metadata.name, known.build_hash),
        result=lambda pod: _Found(_published(pod, engine.spec.key)),
        placement=placement_hash(engine.spec.pod_template),
        overdue=(Reason.STORE_UNAVAILABLE, "the lookup in the store timed out"),
    )


def _published(pod: PodView, key: str) -> PublishedEngine | None:
    found = (report.engine for report in pods.reports(pod))
    return next((each for each in found if each and each.key == key), None)


def _needs_lookup(engine: InferenceEngine, known: InferenceEngineStatus) -> bool:
    """Return whether to look in the store first: if a build needs a device, and no lookup was done."""
    return _takes_device(engine) and known.stage in ("", LOOKUP_STAGE)


def _takes_device(engine: InferenceEngine) -> bool:
    build = engine.spec.build
    return bool(build.resource_name or build.device) and not engine.spec.recipe.ahead_of_time


def _built(
    known: InferenceEngineStatus, attempt: int, job: str, stage: str, engine: PublishedEngine
) -> EngineState:
    done = {"job": job, "attempt": attempt, "stage": stage, "failure": None} | _NOT_RUNNING
    done["versions"] = engine_versions(engine)
    return EngineState.built(known.model_copy(update=done), engine_facts(engine))


def _next_job(
    facts: BuildFacts, known: InferenceEngineStatus, state: Succeeded[_Found] | Start
) -> EngineState:
    """Return the state once a Job is to be created: the one that builds, if a lookup has just found nothing."""
    if isinstance(state, Succeeded):
        return _start(facts, known, Start(state.attempt, known.failure), lookup=False)
    again = state.after_success and _takes_device(facts.engine)
    return _start(facts, known, state, lookup=again or _needs_lookup(facts.engine, known))


def _start(
    facts: BuildFacts, known: InferenceEngineStatus, state: Start, *, lookup: bool
) -> EngineState:
    if _is_suspended(facts):
        return _suspended(known)
    if facts.job_limit and not _is_due(facts, state):
        status = known.model_copy(update={"failure": state.failure, **_NOT_RUNNING})
        return EngineState(status, StatusReason.QUEUED, facts.job_limit, awaits_turn=True)
    engine = facts.engine
    name_of, job_of = (lookup_job_name, lookup_job) if lookup else (engine_job_name, engine_job)
    name = name_of(engine.metadata.name, known.build_hash, state.attempt)
    store, namespace = facts.config.store, engine.metadata.namespace
    job = job_of(
        engine,
        EngineJob(
            name=name,
            task=EngineTask(
                job=name,
                engine_key=engine.spec.key,
                prepared_key=engine.spec.prepared_key,
                recipe=_recipe(engine),
                benchmark_backends=_to_compare(engine, state.failure),
            ),
            pull_policy=facts.config.image_pull_policy,
            store=store.access(namespace),
            assigned_ids=facts.config.openshift,
            images=facts.config.store.images,
        ),
    )
    stage = LOOKUP_STAGE if lookup else ENGINE_STAGES[0]
    status = known.model_copy(
        update={
            "job": name,
            "stage": stage,
            "attempt": state.attempt,
            "failure": state.failure,
            **_NOT_RUNNING,
        }
    )
    needs = () if lookup else tuple(engine_claim_templates(engine))
    return replace(_waiting(status, stage, state.failure), apply=(*needs, job))


def _to_compare(engine: InferenceEngine, failure: JobFailure | None) -> tuple[str, ...] | None:
    """Return the backends to compare; None if that may be why the Job before failed, as when its memory or its time ran out."""
    if failure and failure.stage == _BENCHMARK:
        return None
    backends = engine.spec.build.benchmark_backends
    return tuple(map(str, backends)) if backends else None


def _in_progress(facts: BuildFacts, known: InferenceEngineStatus, state: InProgress) -> EngineState:
    pod, stage = state.pod, state.stage
    is_placed = pod is not None and pod.node != ""
    is_running = is_placed and not (pod and pod.finished)
    # The Job may be one that was created before the status could record it.
    status = known.model_copy(
        update={
            "job": state.job,
            "attempt": state.attempt,
            "stage": stage,
            "percent": _percent(facts, state),
            "placed": is_running and stage != LOOKUP_STAGE,
        }
    )
    if pod and stage != LOOKUP_STAGE and (lacking := _lacks_device(facts.engine, pod)):
        finding = Finding(reason=Reason.CAPACITY_BLOCKED, cause=lacking)
        return EngineState(status, finding.reason, finding.message)
    engine_state = _waiting(
        status,
        stage,
        state.failure,
        waiting_for=state.waiting_for,
        is_placed=is_placed,
    )
    if state.waits_for and not state.failure:
        engine_state = replace(engine_state, reason=state.waits_for)
    return replace(engine_state, requeue_after=state.requeue_after)


def _waiting(
    status: InferenceEngineStatus,
    stage: str,
    failure: JobFailure | None,
    *,
    waiting_for: str = "",
    is_placed: bool = False,
) -> EngineState:
    """Return the state while a Job runs or waits, with the previous failure."""
    reason = StatusReason.BUILDING
    if stage == LOOKUP_STAGE:
        reason, message = StatusReason.LOOKING_UP, "looking for the engine in the store"
    elif is_placed:
        percent = "" if status.percent is None else f", {status.percent}%"
        message = f"{stage} ({ENGINE_STAGES.index(stage) + 1}/{len(ENGINE_STAGES)}){percent}"
    else:
        reason, message = StatusReason.QUEUED, "waiting for a node"
    message = f"{message}: {waiting_for}" if waiting_for else message
    if failure:
        return EngineState(status, failure.reason, f"{failure.sentence}; retrying: {message}")
    return EngineState(status, reason, message)


def _percent(facts: BuildFacts, state: InProgress) -> int | None:
    """Return the stage's progress; the last reported one until the pod reports again."""
    if state.pod is None or state.pod.finished:
        return None
    progress = facts.progress.get(state.job)
    if progress and progress.stage == state.stage:
        return progress.percent // _TENTH * _TENTH
    before = facts.engine.status
    return before.percent if (before.job, before.stage) == (state.job, state.stage) else None


def _lacks_device(engine: InferenceEngine, pod: PodView) -> str:
    """Return the scheduler's message if no node has a free device of the class; else empty."""
    resource, device = engine.spec.build.resource_name, engine.spec.build.device
    reported = pods.scheduling_failure(pod)
    if resource and f"Insufficient {resource}" in reported:
        return f"no {resource} is free: {reported}"
    if device and _NO_DEVICE_LEFT in reported:
        return f"no device of {device.device_class_name} that is asked for is free: {reported}"
    if (resource or device) and _NO_NODE_OF_THE_CLASS.match(pod.unschedulable):
        return f"no node of class {engine.spec.class_name} exists: {reported}"
    return ""


def _failed(known: InferenceEngineStatus, state: Failed) -> EngineState:
    failure = state.failure
    known = known.model_copy(
        update={
            "failure": failure,
            "attempt": state.attempt,
            "stage": failure.stage,
            **_NOT_RUNNING,
        }
    )
    if state.requeue_after is None:
        return replace(EngineState.failed(known, failure), end=state.ends)
    message = f"{failure.sentence}; retrying"
    return EngineState(
        known, failure.reason, message, end=state.ends, requeue_after=state.requeue_after
    )


def _tried_before(last: JobFailure | None) -> JobFailure:
    """Return the failure for a spec.build that failed permanently before other ones were tried."""
    message = (
        "a build with this spec.build failed before: change it, or delete this InferenceEngine to"
        " retry"
    )
    if last is None:
        return JobFailure(reason=Reason.BUILD_FAILED, message=message, lasting=True)
    return last.model_copy(update={"message": f"{message}; {last.message}", "lasting": True})


def _recipe(engine: InferenceEngine) -> EngineRecipe:
    spec = engine.spec
    given: dict[str, Any] = spec.recipe.model_dump()
    return EngineRecipe(backend=spec.backend, accelerator_class=spec.class_name, **given)
