"""The decision about one InferenceEngine: look in the store, build, remember, tell.

The memory is the status, so a Job that has been cleaned away starts nothing: an engine that is there
is never built again, and a build that cannot succeed is not repeated until spec.build is another one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import (
    EngineFailure,
    InferenceEngine,
    InferenceEngineStatus,
)
from enginewright.contract.keys import engine_key
from enginewright.contract.reasons import REMEDIES, ExitCode, Reason
from enginewright.contract.report import Progress, PublishedEngine
from enginewright.contract.task import ENGINE_STAGES, LOOKUP_STAGE, EngineRecipe, EngineTask
from enginewright.manifests.engine_job import EngineJob, engine_job, lookup_job
from enginewright.manifests.names import engine_job_name, lookup_job_name
from enginewright.plan import job_state, pods
from enginewright.plan.engine_status import Standing, engine_facts, status_of, told
from enginewright.plan.engines_wanted import build_hash
from enginewright.plan.types import Config, Object, ObjectRef, Plan

_TENTH: Final = 10  # percent
_NO_NODE_OF_THE_CLASS: Final = re.compile(
    r"^0/(\d+) nodes are available: \1 node\(s\) didn't match Pod's node affinity/selector"
)


@dataclass(frozen=True)
class BuildFacts:
    """Everything that is known about one InferenceEngine at one moment."""

    engine: InferenceEngine
    config: Config
    now: datetime  # timezone-aware
    jobs: tuple[Object, ...] = ()  # this engine's
    pods: tuple[Object, ...] = ()  # of its Jobs
    progress: Mapping[str, Progress] = field(
        default_factory=dict
    )  # by Job; absent: not known, as after a restart


@dataclass(frozen=True)
class Ended:
    """What to count: a Job that made the engine available, or one that failed."""

    reason: str  # empty: the engine is there
    cached: bool = False  # the store had it
    build_seconds: float = 0.0


@dataclass(frozen=True)
class EnginePlan(Plan):
    """What is to be done now, and what is to be counted once it is written down."""

    ended: Ended | None = None


def plan_engine(facts: BuildFacts) -> EnginePlan:
    """Return what is to be done for one InferenceEngine now."""
    if facts.engine.metadata.deletion_timestamp:
        return EnginePlan((), (), {}, (), None)  # owner references take down its Jobs
    standing = _standing(facts)
    status = status_of(facts.engine, standing, facts.now)
    return EnginePlan(
        apply=standing.apply,
        delete=_unwanted(facts, standing),
        status=status.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
        ),
        events=told(facts.engine, status),
        requeue_after=standing.requeue_after,
        ended=_ended(facts.engine.status, status),
    )


def _standing(facts: BuildFacts) -> Standing:
    """Return where the engine stands; the first of these that is so decides."""
    spec, status = facts.engine.spec, facts.engine.status
    if status.engine:
        return Standing.built(status, status.engine)
    digest = build_hash(spec.build)
    known = status
    if status.build_hash != digest:
        known = InferenceEngineStatus(build_hash=digest, failed_builds=status.failed_builds)
    if known.failure and known.failure.lasting:
        return Standing.failed(known, known.failure)
    if digest in known.failed_builds:
        return Standing.failed(known, _tried_before(status.failure))
    if engine_key(spec.prepared_key, _recipe(facts.engine)) != spec.key:
        message = (
            "spec.key is not the key of spec.preparedKey and spec.recipe: leave InferenceEngines to"
            " the operator, and delete this one"
        )
        return Standing(known, StatusReason.INVALID_SPEC, message, stalled=True)
    return _of_attempt(facts, known, max(known.attempt, 1))


def _of_attempt(facts: BuildFacts, known: InferenceEngineStatus, attempt: int) -> Standing:
    name = facts.engine.metadata.name
    jobs = {job["metadata"]["name"]: job for job in facts.jobs}
    if job := jobs.get(engine_job_name(name, known.build_hash, attempt)):
        return _of_job(facts, known, job, attempt, ENGINE_STAGES)
    is_looking = _needs_lookup(facts.engine, known)
    if is_looking and (job := jobs.get(lookup_job_name(name, known.build_hash, attempt))):
        return _of_job(facts, known, job, attempt, (LOOKUP_STAGE,))
    if known.failure and known.failure.attempts >= attempt:
        return _after_failure(facts, known, known.failure)
    return _start(facts, known, attempt, look=is_looking)


def _needs_lookup(engine: InferenceEngine, known: InferenceEngineStatus) -> bool:
    """Tell whether to look in the store first: where building takes a device, and nobody has looked."""
    takes_device = engine.spec.build.resource_name and not engine.spec.recipe.ahead_of_time
    return bool(takes_device) and known.stage in ("", LOOKUP_STAGE)


def _start(
    facts: BuildFacts, known: InferenceEngineStatus, attempt: int, *, look: bool
) -> Standing:
    engine = facts.engine
    named, made = (lookup_job_name, lookup_job) if look else (engine_job_name, engine_job)
    name = named(engine.metadata.name, known.build_hash, attempt)
    job = made(
        engine,
        EngineJob(
            task=EngineTask(
                job=name,
                engine_key=engine.spec.key,
                prepared_key=engine.spec.prepared_key,
                recipe=_recipe(engine),
            ),
            pull_policy=facts.config.image_pull_policy,
            store_claim=facts.config.store.claim,
        ),
    )
    stage = LOOKUP_STAGE if look else ENGINE_STAGES[0]
    status = known.model_copy(
        update={"job": name, "stage": stage, "attempt": attempt, "percent": None}
    )
    return replace(_waiting(status, stage, known.failure), apply=(job,))


def _of_job(
    facts: BuildFacts,
    known: InferenceEngineStatus,
    job: Object,
    attempt: int,
    stages: tuple[str, ...],
) -> Standing:
    """Return what came of a Job of this attempt."""
    mine = pods.of_job(facts.pods, job["metadata"]["name"])
    # A Job that came first and one that was begun before its status was written look alike.
    known = known.model_copy(update={"job": job["metadata"]["name"], "attempt": attempt})
    late = next((pod for pod in mine if _status(pod).get("reason") == "DeadlineExceeded"), None)
    # Jobs and pods are watched apart: what a pod said may be seen later than that its Job ended.
    if late is None and not (job_state.ended(job) and all(map(pods.leaving, mine))):
        return _under_way(facts, known, mine, stages)
    if job_state.condition(job, "Complete"):
        if published := _published(mine, facts.engine.spec.key):
            done = known.model_copy(update={"stage": stages[-1], "percent": None, "failure": None})
            return Standing.built(done, engine_facts(published))
        if stages == (LOOKUP_STAGE,):
            return _start(facts, known, attempt, look=False)
    remembered = known.failure
    if remembered is None or remembered.attempts < attempt:
        remembered = (
            _too_late(facts, known, pods.running_stage(late, stages))
            if late
            else _failure(facts, known, job, mine)
        )
    # The Job would begin anew: it does not know that time was all that its pod lacked.
    return replace(_after_failure(facts, known, remembered), end=known.job if late else "")


def _under_way(
    facts: BuildFacts,
    known: InferenceEngineStatus,
    mine: Sequence[Object],
    stages: tuple[str, ...],
) -> Standing:
    pod = mine[-1] if mine else None
    stage = pods.running_stage(pod, stages) if pod else stages[0]
    status = known.model_copy(
        update={"stage": stage, "percent": _percent(facts, known, stage, pod)}
    )
    if pod and stage != LOOKUP_STAGE and (words := _wants_device(facts.engine, pod)):
        message = f"{words}; {REMEDIES[Reason.CAPACITY_BLOCKED]}"
        return Standing(status, Reason.CAPACITY_BLOCKED, message)
    found = next((each for each in map(pods.failure, reversed(mine)) if each), None)
    failure = known.failure
    if found:
        failure = _remembered(facts, known, found.stage, found.reason, found.message)
        if found.exit_code == ExitCode.PERMANENT:  # podFailurePolicy ends the Job
            return _after_failure(facts, known, failure)
    trouble = pods.trouble(pod) if pod else ""
    is_placed = pod is not None and bool((pod.get("spec") or {}).get("nodeName"))
    return _waiting(status, stage, failure, trouble=trouble, is_placed=is_placed)


def _waiting(
    status: InferenceEngineStatus,
    stage: str,
    failure: EngineFailure | None,
    *,
    trouble: str = "",
    is_placed: bool = False,
) -> Standing:
    """Return a Standing that says what is being done, and what went wrong before."""
    reason = StatusReason.BUILDING
    if stage == LOOKUP_STAGE:
        reason, message = StatusReason.LOOKING_UP, "looking for the engine in the store"
    elif is_placed:
        percent = "" if status.percent is None else f", {status.percent}%"
        message = f"{stage} ({ENGINE_STAGES.index(stage) + 1}/{len(ENGINE_STAGES)}){percent}"
    else:
        reason, message = StatusReason.QUEUED, "waiting for a node to build on"
    message = f"{message}: {trouble}" if trouble else message
    if failure:
        return Standing(status, failure.reason, f"{failure.message}; trying again: {message}")
    return Standing(status, reason, message)


def _percent(
    facts: BuildFacts, known: InferenceEngineStatus, stage: str, pod: Object | None
) -> int | None:
    """Return how far the stage is; what was told before stands until somebody knows better."""
    if pod is None or pods.ended(pod):
        return None
    progress = facts.progress.get(known.job)
    if progress and progress.stage == stage:
        return progress.percent // _TENTH * _TENTH
    before = facts.engine.status
    return before.percent if (before.job, before.stage) == (known.job, stage) else None


def _wants_device(engine: InferenceEngine, pod: Object) -> str:
    """Return the scheduler's words where no node has a free device of the class; else nothing."""
    resource = engine.spec.build.resource_name
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") != "PodScheduled" or condition.get("status") != "False":
            continue
        # What follows is about the preemption of others, and changes with every attempt.
        words = str(condition.get("message") or "").partition(" preemption: ")[0].rstrip(". ")
        if resource and f"Insufficient {resource}" in words:
            return f"no {resource} is free: {words}"
        if resource and _NO_NODE_OF_THE_CLASS.match(words):
            return f"no node of class {engine.spec.class_name} is there: {words}"
    return ""


def _published(mine: Sequence[Object], key: str) -> PublishedEngine | None:
    found = (report.engine for pod in reversed(mine) for report in pods.heralds(pod))
    return next((each for each in found if each and each.key == key), None)


def _failure(
    facts: BuildFacts,
    known: InferenceEngineStatus,
    job: Object,
    mine: Sequence[Object],
) -> EngineFailure:
    """Return why a Job came to nothing."""
    found = next((each for each in map(pods.failure, reversed(mine)) if each), None)
    if found:
        return _remembered(facts, known, found.stage, found.reason, found.message)
    words = next((text for pod in mine if (text := str(_status(pod).get("message") or ""))), "")
    if job_state.condition(job, "Complete"):
        message = "the Job ended well, but what its pod said is gone; it is looked for in the store"
    elif words:
        message = f"the pod was not run: {words}; {REMEDIES[Reason.INTERNAL_ERROR]}"
    else:
        message = f"the Job ended without a word from its pods; {REMEDIES[Reason.INTERNAL_ERROR]}"
    return _remembered(facts, known, "", Reason.INTERNAL_ERROR, message)


def _too_late(facts: BuildFacts, known: InferenceEngineStatus, stage: str) -> EngineFailure:
    if stage == LOOKUP_STAGE:
        message = f"looking into the store took too long; {REMEDIES[Reason.STORE_UNAVAILABLE]}"
        return _remembered(facts, known, stage, Reason.STORE_UNAVAILABLE, message)
    seconds = facts.engine.spec.build.timeout_seconds
    message = f"{stage} was not done after {seconds} s; {REMEDIES[Reason.TIMEOUT]}"
    return _remembered(facts, known, stage, Reason.TIMEOUT, message)


def _remembered(
    facts: BuildFacts, known: InferenceEngineStatus, stage: str, reason: Reason, message: str
) -> EngineFailure:
    return EngineFailure(
        stage=stage,
        reason=reason,
        message=message,
        time=facts.now.astimezone(UTC).replace(microsecond=0),
        attempts=known.attempt,
        lasting=not job_state.can_pass(reason),
    )


def _after_failure(
    facts: BuildFacts, known: InferenceEngineStatus, failure: EngineFailure
) -> Standing:
    """Stay failed, wait, or try again."""
    known = known.model_copy(update={"failure": failure, "stage": failure.stage, "percent": None})
    if failure.lasting:
        return Standing.failed(known, failure)
    wait = (job_state.due(failure.time, failure.attempts) - facts.now).total_seconds()
    if wait > 0:
        again = "" if "tried again" in failure.message else "; it is tried again"
        return Standing(known, failure.reason, failure.message + again, requeue_after=wait)
    return _start(facts, known, failure.attempts + 1, look=_needs_lookup(facts.engine, known))


def _tried_before(last: EngineFailure | None) -> EngineFailure:
    """Return why a spec.build is not tried that failed before another one did."""
    message = (
        "building with this spec.build has failed before: change it, or delete this InferenceEngine"
        " to have it tried all the same"
    )
    if last is None:
        return EngineFailure(reason=Reason.BUILD_FAILED, message=message, lasting=True)
    return last.model_copy(update={"message": f"{message}; {last.message}", "lasting": True})


def _unwanted(facts: BuildFacts, standing: Standing) -> tuple[ObjectRef, ...]:
    """Return the Jobs that nobody waits for and, once a new one is made, those of earlier attempts."""
    engine, status = facts.engine.metadata, standing.status
    kept = {status.job, lookup_job_name(engine.name, status.build_hash, status.attempt)}
    return tuple(
        ObjectRef("batch/v1", "Job", engine.namespace, name)
        for job in facts.jobs
        if (name := job["metadata"]["name"]) == standing.end
        or (name not in kept and (standing.apply or not job_state.ended(job)))
    )


def _status(pod: Object) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _recipe(engine: InferenceEngine) -> EngineRecipe:
    spec = engine.spec
    given: dict[str, Any] = spec.recipe.model_dump()
    return EngineRecipe(backend=spec.backend, accelerator_class=spec.class_name, **given)


def _ended(before: InferenceEngineStatus, now: InferenceEngineStatus) -> Ended | None:
    built, failure = now.engine, now.failure
    if built and before.engine is None:
        return Ended("", cached=built.cached, build_seconds=built.build_milliseconds / 1000)
    # What failed at a time that is known already has been counted then.
    if failure and failure.time and (before.failure is None or before.failure.time != failure.time):
        return Ended(failure.reason)
    return None
