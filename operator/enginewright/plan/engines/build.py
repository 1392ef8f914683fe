"""The build of an engine: looked up in the store, built, waiting or failed, and the next Job."""

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
from enginewright.observed.nodes import NodeView
from enginewright.observed.pods import PodView
from enginewright.plan import pods
from enginewright.plan.attempts import (
    Failed,
    InProgress,
    Observed,
    Start,
    Succeeded,
    Work,
    advance,
    describe_retry,
    is_stalled,
)
from enginewright.plan.engines.status import (
    LOOKING_UP,
    EngineState,
    engine_facts,
    engine_versions,
)
from enginewright.plan.engines.wanted import build_hash
from enginewright.plan.types import Config
from enginewright.plan.waits import Wait

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
    nodes: tuple[NodeView, ...] = ()
    jobs: tuple[JobView, ...] = ()  # this engine's
    pods: tuple[PodView, ...] = ()  # of its Jobs
    progress: Mapping[str, Progress] = field(default_factory=dict)  # by Job, as far as reported
    references: tuple[EngineReference, ...] = ()  # of the namespace's models to this engine
    users: tuple[str, ...] = ()  # models that use it, in alphabetical order
    # whether a model may try a backend again that it rejected, with this engine
    tried_again: bool = False
    prepared: tuple[Prepared, ...] = ()  # of the models that refer to it
    job_limit: str = ""  # why it may create no further Job for now, if so
    store: str = ""  # its place and size


def build_state(facts: BuildFacts) -> EngineState:
    """Return the state of the engine; the first of these that holds decides."""
    spec, status = facts.engine.spec, facts.engine.status
    if status.engine:
        return EngineState.from_engine(status, status.engine)
    digest = build_hash(spec.build)
    current = status
    if status.build_hash != digest:
        current = InferenceEngineStatus(build_hash=digest, failed_builds=status.failed_builds)
    if current.failure and current.failure.lasting:
        return EngineState.from_failure(current, current.failure)
    if digest in current.failed_builds:
        return EngineState.from_failure(current, _refuse_repetition(status.failure))
    if engine_key(spec.prepared_key, _recipe(facts.engine)) != spec.key:
        message = (
            "spec.key does not match spec.preparedKey and spec.recipe: delete this InferenceEngine;"
            " the operator creates them"
        )
        return EngineState(current, StatusReason.INVALID_SPEC, message, stalled=True)
    return _of_attempt(facts, current, max(current.attempt, 1))


@dataclass(frozen=True)
class _Found:
    """The engine that a successful Job has built, or found in the store if it is there."""

    engine: PublishedEngine | None


def _of_attempt(facts: BuildFacts, status: InferenceEngineStatus, attempt: int) -> EngineState:
    ineffective = {
        reference.freed_for_job for reference in facts.references if not reference.freed_at
    }
    awaited = status.job if status.job in ineffective else ""
    # not the pods of a deleted Job whose name the next one has
    owners = {None, *(job.uid for job in facts.jobs)}
    own = [pod for pod in facts.pods if pod.owners.get("Job") in owners]
    jobs = {job.name: job for job in facts.jobs}
    observed = Observed(jobs, own, facts.now, facts.nodes, awaited)
    work = _build(facts, status)
    if _needs_lookup(facts.engine, status) and work.name(attempt) not in observed.jobs:
        work = _lookup(facts, status)
    state = advance(work, observed, attempt, status.failure)
    match state:
        case Succeeded() if engine := state.result.engine:
            return _finish(status, state.attempt, state.job, work.stages[-1], engine)
        case Failed():
            return _fail(status, state)
        case _ if not is_requested(facts):  # its Jobs must not hold a device
            status = status.model_copy(update={"job": "", **_NOT_RUNNING})
            message = "no InferenceModel of this namespace needs it: it is built once one does"
            return EngineState(status, StatusReason.NOT_REQUESTED, message)
        case Succeeded():  # the lookup has found nothing
            status = status.model_copy(update={"stage": ENGINE_STAGES[0]})
            return _start(facts, status, Start(state.attempt, status.failure), lookup=False)
        case Start():
            again = state.after_success and _takes_device(facts.engine)
            lookup = again or _needs_lookup(facts.engine, status)
            return _start(facts, status, state, lookup=lookup)
        case InProgress():
            return _in_progress(facts, status, state)


def is_requested(facts: BuildFacts) -> bool:
    """Return whether a model needs the engine, or a user has created it."""
    return bool(facts.references) or REQUESTED_BY not in facts.engine.metadata.annotations


def _is_due(facts: BuildFacts, state: Start) -> bool:
    """Return whether a Job needs no turn: what serves is rebuilt, or a Job is replaced that has begun."""
    begun = {job.name for job in facts.jobs if not job.ended}
    return state.replaces in begun or any(reference.lost for reference in facts.references)


def _build(facts: BuildFacts, status: InferenceEngineStatus) -> Work[_Found]:
    engine = facts.engine
    seconds = engine.spec.build.timeout_seconds
    return Work(
        stages=ENGINE_STAGES,
        name=partial(engine_job_name, engine.metadata.name, status.build_hash),
        result=lambda pod: (
            _Found(built) if (built := _find_published(pod, engine.spec.key)) else None
        ),
        placement=placement_hash(engine.spec.pod_template),
        store=facts.store,
        overdue=(Reason.TIMEOUT, f"{{stage}} timed out after {seconds} s"),
        lightened=_BENCHMARK if engine.spec.build.benchmark_backends else "",
    )


def _lookup(facts: BuildFacts, status: InferenceEngineStatus) -> Work[_Found]:
    engine = facts.engine
    return Work(
        stages=(LOOKUP_STAGE,),
        name=partial(lookup_job_name, engine.metadata.name, status.build_hash),
        result=lambda pod: _Found(_find_published(pod, engine.spec.key)),
        placement=placement_hash(engine.spec.pod_template),
        store=facts.store,
        overdue=(Reason.STORE_UNAVAILABLE, "the lookup in the store timed out"),
    )


def _find_published(pod: PodView, key: str) -> PublishedEngine | None:
    engines = (report.engine for report in pods.reports(pod))
    return next((engine for engine in engines if engine and engine.key == key), None)


def _needs_lookup(engine: InferenceEngine, status: InferenceEngineStatus) -> bool:
    """Return whether to look in the store first: if a build needs a device, and no lookup was done."""
    return _takes_device(engine) and status.stage in ("", LOOKUP_STAGE)


def _takes_device(engine: InferenceEngine) -> bool:
    build = engine.spec.build
    return bool(build.resource_name or build.device) and not engine.spec.recipe.ahead_of_time


def _finish(
    status: InferenceEngineStatus, attempt: int, job: str, stage: str, engine: PublishedEngine
) -> EngineState:
    done = {"job": job, "attempt": attempt, "stage": stage, "failure": None} | _NOT_RUNNING
    done["versions"] = engine_versions(engine)
    return EngineState.from_engine(status.model_copy(update=done), engine_facts(engine))


def _start(
    facts: BuildFacts, status: InferenceEngineStatus, state: Start, *, lookup: bool
) -> EngineState:
    status = status.model_copy(update={"failure": state.failure, **_NOT_RUNNING})
    if facts.job_limit and not _is_due(facts, state):
        return EngineState(status, StatusReason.QUEUED, facts.job_limit, awaits_turn=True)
    engine, store = facts.engine, facts.config.store
    name_of, job_of = (lookup_job_name, lookup_job) if lookup else (engine_job_name, engine_job)
    name = name_of(engine.metadata.name, status.build_hash, state.attempt)
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
            store=store.access(engine.metadata.namespace),
            assigned_ids=facts.config.openshift,
            images=store.images,
        ),
    )
    stage = LOOKUP_STAGE if lookup else ENGINE_STAGES[0]
    status = status.model_copy(update={"job": name, "stage": stage, "attempt": state.attempt})
    needs = () if lookup else tuple(engine_claim_templates(engine))
    return replace(_waiting(status, stage, state.failure), apply=(*needs, job))


def _to_compare(engine: InferenceEngine, failure: JobFailure | None) -> tuple[str, ...] | None:
    """Return the backends to compare, or None if the last Job failed at that, as when memory or time ran out."""
    if failure and failure.stage == _BENCHMARK:
        return None
    backends = engine.spec.build.benchmark_backends
    return tuple(map(str, backends)) if backends else None


def _in_progress(
    facts: BuildFacts, status: InferenceEngineStatus, state: InProgress
) -> EngineState:
    pod, stage = state.pod, state.stage
    is_placed = pod is not None and pod.node != ""
    is_running = is_placed and not (pod and pod.finished)
    # The Job may be one that was created before the status could record it.
    status = status.model_copy(
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
    waiting = _waiting(status, stage, state.failure, wait=state.wait, is_placed=is_placed)
    return replace(waiting, requeue_after=state.requeue_after)


def _waiting(
    status: InferenceEngineStatus,
    stage: str,
    failure: JobFailure | None,
    *,
    wait: Wait | None = None,
    is_placed: bool = False,
) -> EngineState:
    reason: str = StatusReason.BUILDING
    if stage == LOOKUP_STAGE:
        reason, message = StatusReason.LOOKING_UP, LOOKING_UP
    elif is_placed:
        percent = "" if status.percent is None else f", {status.percent}%"
        message = f"{stage} ({ENGINE_STAGES.index(stage) + 1}/{len(ENGINE_STAGES)}){percent}"
    else:
        reason, message = StatusReason.QUEUED, "waiting for a node"
    message = f"{message}: {wait.message}" if wait else message
    if failure:
        message = f"{failure.sentence}; retrying: {message}"
        return EngineState(status, failure.reason, message, stalled=is_stalled(failure))
    if wait and wait.reason != Reason.CAPACITY_BLOCKED:  # which pods yield their devices for
        reason = wait.reason or reason
    return EngineState(status, reason, message)


def _percent(facts: BuildFacts, state: InProgress) -> int | None:
    if state.pod is None or state.pod.finished:
        return None
    progress = facts.progress.get(state.job)
    if progress and progress.stage == state.stage:
        return progress.percent // _TENTH * _TENTH
    before = facts.engine.status
    return before.percent if (before.job, before.stage) == (state.job, state.stage) else None


def _lacks_device(engine: InferenceEngine, pod: PodView) -> str:
    resource, device = engine.spec.build.resource_name, engine.spec.build.device
    reported = pods.scheduling_failure(pod)
    if resource and f"Insufficient {resource}" in reported:
        return f"no {resource} is free: {reported}"
    if device and _NO_DEVICE_LEFT in reported:
        return f"no device of {device.device_class_name} that is asked for is free: {reported}"
    if (resource or device) and _NO_NODE_OF_THE_CLASS.match(pod.unschedulable):
        return f"no node of class {engine.spec.class_name} exists: {reported}"
    return ""


def _fail(status: InferenceEngineStatus, state: Failed) -> EngineState:
    failure = state.failure
    update = {"failure": failure, "attempt": state.attempt, "stage": failure.stage} | _NOT_RUNNING
    status = status.model_copy(update=update)
    if state.requeue_after is None:
        return replace(EngineState.from_failure(status, failure), end=state.ends)
    return EngineState(
        status,
        failure.reason,
        f"{failure.sentence}; {describe_retry(failure)}",
        stalled=is_stalled(failure),
        end=state.ends,
        requeue_after=state.requeue_after,
    )


def _refuse_repetition(last: JobFailure | None) -> JobFailure:
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
    fields: dict[str, Any] = spec.recipe.model_dump()
    return EngineRecipe(backend=spec.backend, accelerator_class=spec.class_name, **fields)
