"""Preparing a model: which Job is needed, and its outcome."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from enginewright_contract.report import Published
from enginewright_contract.task import PREPARE_STAGES

from enginewright.api.base import API_VERSION
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model_status import InferenceModelStatus, Preparation, Prepared
from enginewright.api.job_failure import JobFailure
from enginewright.manifests.snapshot import ClassSnapshot, Snapshot
from enginewright.plan.attempts import Failed, InProgress, Observed, Start, Succeeded, Work, advance
from enginewright.plan.prepare.jobs import PrepareJobs, job_manifest, prepare_work
from enginewright.plan.prepare.shared import (
    Follows,
    TakenOver,
    find_preparation,
    follow,
    hash_shared,
    record_prepared,
)
from enginewright.plan.prepare.signature import describe_signature
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.store import store_losses
from enginewright.plan.types import Facts, ObjectRef
from enginewright.plan.waits import Wait


@dataclass(frozen=True)
class PrepareOutcome:
    """State of the preparation."""

    prepared: Prepared | None = None
    # digests of samples, calibration data and steps by name, if they were just fetched
    fetched: Mapping[str, str] | None = None
    preparation: Preparation | None = None
    message: str = ""  # progress, while a Job runs or waits, and what it waits for
    wait: Wait | None = None  # for something outside of the model
    failure: JobFailure | None = None
    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    requeue_after: float | None = None
    awaits_turn: bool = False  # to create a Job


def list_prepared(status: InferenceModelStatus) -> Iterator[Prepared]:
    """Yield the prepared models of the current spec, the serving revision and rejected backends."""
    serving = status.serving.prepared if status.serving else None
    rejected = (rejected_backend.prepared for rejected_backend in status.rejected_backends)
    yield from filter(None, (status.prepared, serving, *rejected))


def is_prepared(facts: Facts, target: Target) -> bool:
    """Return whether there is a prepared model of `target`, which the store has not lost."""
    current = _current(facts.model.status, target)
    published = PrepareJobs.of(facts).find_publication() if current else ""
    return current is not None and not _loss(facts, target, current.key, published)


def prepare(
    facts: Facts,
    target: Target,
    memory: Preparation | None = None,
    keep: str = "",
    *,
    shares: bool = True,
) -> PrepareOutcome:
    """Return the state of preparing `target`, and what to do.

    `memory` records the previous attempts, by default in the status; `keep` is the Job of a refresh, which is not
    deleted; if the model `shares`, one Job may prepare several: not if this one asked for a refresh.
    """
    current = _current(facts.model.status, target)
    jobs = PrepareJobs.of(facts)
    published = jobs.find_publication()
    loss = _loss(facts, target, current.key, published) if current else ""
    if current and not loss:
        done = jobs.list_done(keep)
        # a Job says when it published, which is the only record of that: it is kept while a loss is reported
        if done and _loss(facts, target, current.key, since=""):
            done = ()
        return PrepareOutcome(prepared=current, delete=(*jobs.list_outdated(keep), *done))
    shared = hash_shared(facts.model, facts.config, target) if shares else ""
    attempted = _attempt(facts, target, shared, jobs, memory, lost=loss != "")
    outcome = _record_shared_hash(attempted, jobs, shared)
    if current is None:
        return outcome
    # Their builds start again with the prepared model, without waiting for a retry.
    failed = (
        ObjectRef(
            API_VERSION,
            InferenceEngine.kind,
            failed_build.metadata.namespace,
            failed_build.metadata.name,
        )
        for failed_build in _find_failed_builds(facts, target, current.key, published)
    )
    message = f"{outcome.message}, again: {loss}" if outcome.message else ""
    return replace(outcome, message=message, delete=(*outcome.delete, *failed))


def _attempt(
    facts: Facts,
    target: Target,
    shared: str,
    jobs: PrepareJobs,
    memory: Preparation | None,
    *,
    lost: bool,
) -> PrepareOutcome:
    work = prepare_work(facts, target)
    record = memory or facts.model.status.preparation
    record = record if record and record.inputs_hash == target.job_hash else None
    attempt = max(record.attempt, 1) if record else jobs.first_attempt(work, lost=lost)
    observed = Observed(jobs.by_name, facts.pods, facts.now, facts.nodes)
    state = advance(work, observed, attempt, record.failure if record else None)
    match state:
        case Succeeded(job=job, result=published):
            prepared = _describe_prepared(target, published)
            record_hash = jobs.by_name[job].record_hash
            return PrepareOutcome(
                prepared=record_prepared(facts.model.spec, record_hash, prepared, published.data),
                fetched=published.data,
                delete=jobs.list_outdated(keep=job),
            )
        case InProgress():
            return _in_progress(target, jobs, state)
        case Start():
            replaced = jobs.by_name.get(state.replaces)
            # what serves is rebuilt without waiting for others, and a Job that is replaced has begun
            is_due = lost or not (replaced is None or replaced.ended)
            waits = None if is_due else _without_job(facts, target, jobs, state, shared, record)
            return waits or _start(facts, target, work, jobs, state, shared)
        case Failed():
            return _fail(target, work, jobs, state)


def _without_job(
    facts: Facts,
    target: Target,
    jobs: PrepareJobs,
    state: Start,
    shared: str,
    record: Preparation | None,
) -> PrepareOutcome | None:
    """Return the state of a model that another Job prepares, or that waits for its turn; None if it creates a Job."""
    decision = None
    if shared:
        decision = find_preparation(facts, target) or follow(facts, target, shared, record)
    new = _preparation(target, "", state.attempt, "", state.failure)
    unwanted = jobs.list_outdated()
    match decision:
        case TakenOver(prepared, data):
            return PrepareOutcome(prepared=prepared, fetched=data, delete=unwanted)
        case Follows():
            leader = decision.leader.name if decision.takes_over else ""
            return PrepareOutcome(
                preparation=new.model_copy(update={"leader": leader}),
                message=decision.message,
                wait=Wait(StatusReason.SHARED_PREPARATION, decision.message),
                delete=unwanted,
            )
        case JobFailure():
            failure = decision.model_copy(update={"attempts": state.attempt})
            new = _preparation(target, "", state.attempt, failure.stage, failure)
            return PrepareOutcome(preparation=new, failure=failure, delete=unwanted)
        case None if not facts.job_limit:
            return None
        case None:
            return PrepareOutcome(
                preparation=new,
                message=facts.job_limit,
                wait=Wait(StatusReason.QUEUED, facts.job_limit),
                delete=unwanted,
                awaits_turn=True,
            )


def _record_shared_hash(outcome: PrepareOutcome, jobs: PrepareJobs, shared: str) -> PrepareOutcome:
    """Return the outcome with the hash by which other models know that they share its preparation.

    A Job has it from its creation.
    """
    if outcome.preparation is None:
        return outcome
    job = jobs.by_name.get(outcome.preparation.job)
    update = {"shared_hash": job.shared_hash if job else shared}
    return replace(outcome, preparation=outcome.preparation.model_copy(update=update))


def _current(status: InferenceModelStatus, target: Target) -> Prepared | None:
    records = list_prepared(status)
    return next((record for record in records if record.inputs_hash == target.artifact_hash), None)


def _loss(facts: Facts, target: Target, key: str, since: str) -> str:
    """Return how a serving pod or the build of an engine did not find `key` intact after `since`."""

    def reads(snapshot: Snapshot, on_class: ClassSnapshot) -> bool:
        # Pods that serve an engine fetch only that, not the prepared model.
        return snapshot.prepared_key == key and on_class.engine_key is None

    failures = (build.status.failure for build in _find_failed_builds(facts, target, key, since))
    of_build = next((failure.message or failure.reason for failure in failures if failure), "")
    return store_losses.loss_found(facts, reads, since) or of_build


def _find_failed_builds(
    facts: Facts, target: Target, key: str, since: str
) -> tuple[InferenceEngine, ...]:
    classes = {device_class.metadata.name for device_class in target.classes}
    return store_losses.builds_without_model(facts.find_built_from(key), classes, since)


def _start(
    facts: Facts,
    target: Target,
    work: Work[Published],
    jobs: PrepareJobs,
    state: Start,
    shared: str,
) -> PrepareOutcome:
    name = work.name(state.attempt)
    unwanted = jobs.list_outdated(keep=name)
    replaced = jobs.reference(state.replaces)
    if state.replaces in jobs.by_name and replaced not in unwanted:
        unwanted = (*unwanted, replaced)
    return PrepareOutcome(
        preparation=_preparation(target, name, state.attempt, PREPARE_STAGES[0], state.failure),
        message=_progress(PREPARE_STAGES[0]),
        failure=state.failure,
        apply=(job_manifest(facts, target, name, shared),),
        delete=unwanted,
    )


def _in_progress(target: Target, jobs: PrepareJobs, state: InProgress) -> PrepareOutcome:
    # Only failures of earlier Jobs are recorded: this Job may still succeed.
    earlier = state.failure if state.failure and state.failure.attempts < state.attempt else None
    progress = _progress(state.stage)
    return PrepareOutcome(
        preparation=_preparation(target, state.job, state.attempt, state.stage, earlier),
        message=f"{progress}: {state.wait.message}" if state.wait else progress,
        wait=state.wait,
        failure=state.failure,
        delete=jobs.list_outdated(keep=state.job),
        requeue_after=state.requeue_after,
    )


def _fail(
    target: Target, work: Work[Published], jobs: PrepareJobs, state: Failed
) -> PrepareOutcome:
    name, failure = work.name(state.attempt), state.failure
    return PrepareOutcome(
        preparation=_preparation(target, name, state.attempt, failure.stage, failure),
        failure=failure,
        delete=jobs.list_outdated(keep="" if state.ends else name),
        requeue_after=state.requeue_after,
    )


def _progress(stage: str) -> str:
    position = PREPARE_STAGES.index(stage) + 1
    return f"{stage} ({position}/{len(PREPARE_STAGES)})"


def _preparation(
    target: Target, job: str, attempt: int, stage: str, failure: JobFailure | None
) -> Preparation:
    return Preparation(
        inputs_hash=target.job_hash, job=job, stage=stage, attempt=attempt, failure=failure
    )


def _describe_prepared(target: Target, published: Published) -> Prepared:
    return Prepared(
        inputs_hash=target.artifact_hash,
        key=published.key,
        model_digest=published.model_digest,
        opset=published.opset,
        ir_version=published.ir_version,
        nodes=published.nodes,
        size_bytes=published.size_bytes,
        precision=published.precision,
        changes=published.changes or None,
        golden_output_bytes=published.golden_output_bytes,
        signature=describe_signature(published.signature) if published.signature else None,
        image=published.image,
        image_failure=published.image_failure or "",
    )
