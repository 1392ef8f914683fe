"""Preparing a model: which Job is needed, and its outcome."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from enginewright_contract.report import Published
from enginewright_contract.task import PREPARE_STAGES

from enginewright.api.base import API_VERSION
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model_status import InferenceModelStatus, Preparation, Prepared
from enginewright.api.job_failure import JobFailure
from enginewright.manifests.snapshot import ClassSnapshot, Snapshot
from enginewright.observed.jobs import JobView
from enginewright.observed.pods import PodView
from enginewright.plan import pods
from enginewright.plan.attempts import Failed, InProgress, Observed, Start, Succeeded, Work, advance
from enginewright.plan.prepare.jobs import (
    first_attempt,
    job_manifest,
    job_reference,
    outdated_jobs,
    prepare_jobs,
    prepare_work,
)
from enginewright.plan.prepare.shared import (
    Decision,
    Follows,
    TakenOver,
    follow,
    known_preparation,
    recorded,
    shared_hash,
)
from enginewright.plan.prepare.signature import listed
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.store import store_losses
from enginewright.plan.types import Facts, ObjectRef

_PAUSED: Final = "spec.rollout.paused is true"


@dataclass(frozen=True)
class PrepareOutcome:
    """State of the preparation."""

    prepared: Prepared | None = None
    # digests of samples, calibration data and steps that were just fetched, by name; None: nothing was
    fetched: Mapping[str, str] | None = None
    preparation: Preparation | None = None
    message: str = ""  # progress, while a Job runs or waits
    waits_for: str = ""  # reason, if the Job's pod waits for something outside the operator
    failure: JobFailure | None = None
    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    requeue_after: float | None = None
    awaits_turn: bool = False  # to create a Job


def known_prepared(status: InferenceModelStatus) -> Iterator[Prepared]:
    """Yield the prepared models of the current spec, the serving revision and rejected backends."""
    serving = status.serving.prepared if status.serving else None
    rejected = (each.prepared for each in status.rejected_backends)
    yield from filter(None, (status.prepared, serving, *rejected))


def known_artefact(facts: Facts, target: Target) -> tuple[Prepared | None, bool]:
    """Return the prepared model of `target`, and whether the store has lost it; None: it never had it."""
    current = _current(facts.model.status, target)
    return current, current is not None and bool(
        _loss(facts, target, current.key, prepare_jobs(facts.jobs))
    )


def is_prepared(facts: Facts, target: Target) -> bool:
    """Return whether the prepared model of `target` is in the store."""
    current, lost = known_artefact(facts, target)
    return current is not None and not lost


def prepare(
    facts: Facts,
    target: Target,
    memory: Preparation | None = None,
    keep: str = "",
    *,
    shares: bool = True,
) -> PrepareOutcome:
    """Return the state of preparing `target`, and what to do.

    Args:
        facts: the model and its cluster.
        target: what to prepare.
        memory: record of the previous attempts; None: that of the status.
        keep: Job of a refresh, which is not deleted.
        shares: whether one Job may prepare several models; not if this one asked for a fetch of its own.
    """
    current = _current(facts.model.status, target)
    jobs = prepare_jobs(facts.jobs)
    loss = _loss(facts, target, current.key, jobs) if current else ""
    if current and not loss:
        return PrepareOutcome(
            prepared=current,
            delete=outdated_jobs(facts.model.metadata.namespace, facts.pods, jobs, keep=keep),
        )
    shared = shared_hash(facts.model, facts.config, target) if shares else ""
    attempted = _attempted(facts, target, shared, jobs, memory, lost=loss != "")
    outcome = _recorded(attempted, jobs, shared)
    if current is None:
        return outcome
    # Their builds begin anew with the prepared model, without waiting for a retry.
    failed = (
        ObjectRef(API_VERSION, InferenceEngine.kind, each.metadata.namespace, each.metadata.name)
        for each in _failed_builds(facts.pods, facts.engines, target, current.key, jobs)
    )
    message = f"{outcome.message}, again: {loss}" if outcome.message else ""
    return replace(outcome, message=message, delete=(*outcome.delete, *failed))


def _attempted(
    facts: Facts,
    target: Target,
    shared: str,
    jobs: Mapping[str, JobView],
    memory: Preparation | None,
    *,
    lost: bool,
) -> PrepareOutcome:
    work = prepare_work(facts.model, facts.config, target)
    known = memory or facts.model.status.preparation
    known = known if known and known.inputs_hash == target.job_hash else None
    attempt = max(known.attempt, 1) if known else first_attempt(facts.pods, work, jobs, lost=lost)
    observed = Observed(jobs, facts.pods, facts.now)
    state = advance(work, observed, attempt, known.failure if known else None)
    match state:
        case Succeeded():
            return PrepareOutcome(
                prepared=recorded(
                    facts.model.spec,
                    jobs[state.job].record_hash,
                    _prepared(target, state.result),
                    state.result.data,
                ),
                fetched=state.result.data,
                delete=outdated_jobs(
                    facts.model.metadata.namespace, facts.pods, jobs, keep=state.job
                ),
            )
        case InProgress():
            return _in_progress(facts.model.metadata.namespace, facts.pods, target, jobs, state)
        case Start() if _is_paused(facts, target):
            return PrepareOutcome(
                preparation=known,
                message=_PAUSED,
                waits_for=StatusReason.SUSPENDED,
                failure=state.failure,
                delete=outdated_jobs(
                    facts.model.metadata.namespace, facts.pods, jobs, keep=state.replaces
                ),
            )
        case Start():
            replaced = jobs.get(state.replaces)
            # what serves is rebuilt without waiting for others, and a Job that is replaced has begun
            is_due = lost or not (replaced is None or replaced.ended)
            waits = None if is_due else _waits(facts, target, jobs, state, shared, known)
            return waits or _start(facts, target, work, jobs, state, shared)
        case Failed():
            failed = _failed(facts.model.metadata.namespace, facts.pods, target, work, jobs, state)
            is_paused = not state.failure.lasting and _is_paused(facts, target)
            suspended = replace(failed, message=_PAUSED, waits_for=StatusReason.SUSPENDED)
            return suspended if is_paused else failed


def _is_paused(facts: Facts, target: Target) -> bool:
    """Return whether no Job is created that prepares `target`, since a user pauses the move to other runtime images.

    The operator began the move, so that pausing it starts nothing more: Jobs that run end. What the model needs with
    its own images is no part of the move: if it is the same with both, it is prepared as ever, else what the store has
    lost of what serves is rebuilt (engines/repair.py). Changes of the spec are prepared while they are paused: their
    users have asked for that.
    """
    if facts.paused_with is None:
        return False
    own = resolve(replace(facts, config=facts.paused_with), target.source)
    return not (isinstance(own, Target) and own.artifact_hash == target.artifact_hash)


def _waits(
    facts: Facts,
    target: Target,
    jobs: Mapping[str, JobView],
    state: Start,
    shared: str,
    known: Preparation | None,
) -> PrepareOutcome | None:
    """Return the state of a model that needs no Job of its own, or creates it later; None: it creates one."""
    decision: Decision | None = None
    if shared:
        decision = known_preparation(facts, target) or follow(facts, target, shared, known)
    if decision is not None:
        return _followed(facts.model.metadata.namespace, facts.pods, target, jobs, state, decision)
    return _queued(facts, target, jobs, state) if facts.job_limit else None


def _followed(
    namespace: str,
    pods: Collection[PodView],
    target: Target,
    jobs: Mapping[str, JobView],
    state: Start,
    decision: Decision,
) -> PrepareOutcome:
    """Return the state of a model that another Job prepares, or has."""
    unwanted = outdated_jobs(namespace, pods, jobs, keep="")
    match decision:
        case TakenOver():
            return PrepareOutcome(
                prepared=decision.prepared, fetched=decision.data, delete=unwanted
            )
        case Follows():
            record = _preparation(target, "", state.attempt, "", state.failure)
            leader = decision.leader.name if decision.takes_over else ""
            return PrepareOutcome(
                preparation=record.model_copy(update={"leader": leader}),
                message=decision.message,
                waits_for=StatusReason.SHARED_PREPARATION,
                delete=unwanted,
            )
        case JobFailure():
            failure = decision.model_copy(update={"attempts": state.attempt})
            record = _preparation(target, "", state.attempt, failure.stage, failure)
            return PrepareOutcome(preparation=record, failure=failure, delete=unwanted)


def _queued(
    facts: Facts, target: Target, jobs: Mapping[str, JobView], state: Start
) -> PrepareOutcome:
    """Return the state of a model that waits for its turn to create a Job."""
    return PrepareOutcome(
        preparation=_preparation(target, "", state.attempt, "", state.failure),
        message=facts.job_limit,
        waits_for=StatusReason.QUEUED,
        delete=outdated_jobs(facts.model.metadata.namespace, facts.pods, jobs, keep=""),
        awaits_turn=True,
    )


def _recorded(outcome: PrepareOutcome, jobs: Mapping[str, JobView], shared: str) -> PrepareOutcome:
    """Return the outcome with the hash by which other models know that they share its preparation.

    That of its Job, if that exists. One whose user pauses it does not lead any more, so that the others go on.
    """
    if outcome.preparation is None:
        return outcome
    job = jobs.get(outcome.preparation.job)
    update = {"shared_hash": job.shared_hash if job else shared}
    if outcome.waits_for == StatusReason.SUSPENDED:
        update = {"shared_hash": "", "leader": ""}
    return replace(outcome, preparation=outcome.preparation.model_copy(update=update))


def _current(status: InferenceModelStatus, target: Target) -> Prepared | None:
    known = known_prepared(status)
    return next((each for each in known if each.inputs_hash == target.artifact_hash), None)


def _loss(facts: Facts, target: Target, key: str, jobs: Mapping[str, JobView]) -> str:
    """Return how a serving pod or the build of an engine did not find `key` intact since it was last published."""

    def reads(snapshot: Snapshot, on_class: ClassSnapshot) -> bool:
        # Pods that serve an engine fetch only that, not the prepared model.
        return snapshot.prepared_key == key and on_class.engine_key is None

    published = _published_at(facts.pods, jobs)
    if loss := store_losses.loss_found(facts, reads, published):
        return loss
    failures = (
        each.status.failure for each in _failed_builds(facts.pods, facts.engines, target, key, jobs)
    )
    return next((each.message or each.reason for each in failures if each), "")


def _published_at(model_pods: Collection[PodView], jobs: Mapping[str, JobView]) -> str:
    """Return when a Job last published the artefact or found it, also if it has not ended yet, or failed afterwards."""
    ended = [job.ended_at for job in jobs.values() if job.outcome == "Complete"]
    found = [pods.published_at(pod) for pod in model_pods if pod.job in jobs]
    return max((*ended, *found), default="")


def _failed_builds(
    pods: Collection[PodView],
    engines: Mapping[str, InferenceEngine],
    target: Target,
    key: str,
    jobs: Mapping[str, JobView],
) -> tuple[InferenceEngine, ...]:
    """Return the InferenceEngines of the target that were not built because the store lacks `key`."""
    classes = {each.metadata.name for each in target.classes}
    return store_losses.builds_without_model(engines, key, classes, _published_at(pods, jobs))


def _start(
    facts: Facts,
    target: Target,
    work: Work[Published],
    jobs: Mapping[str, JobView],
    state: Start,
    shared: str,
) -> PrepareOutcome:
    name = work.name(state.attempt)
    replaced = state.replaces and state.replaces in jobs
    unwanted = outdated_jobs(facts.model.metadata.namespace, facts.pods, jobs, keep=name)
    if (
        replaced
        and (ref := job_reference(facts.model.metadata.namespace, state.replaces)) not in unwanted
    ):
        unwanted = (*unwanted, ref)
    return PrepareOutcome(
        preparation=_preparation(target, name, state.attempt, PREPARE_STAGES[0], state.failure),
        message=_progress(PREPARE_STAGES[0]),
        failure=state.failure,
        apply=(job_manifest(facts, target, name, shared),),
        delete=unwanted,
    )


def _in_progress(
    namespace: str,
    pods: Collection[PodView],
    target: Target,
    jobs: Mapping[str, JobView],
    state: InProgress,
) -> PrepareOutcome:
    # Only failures of earlier Jobs are recorded: this Job may still succeed.
    recorded = state.failure if state.failure and state.failure.attempts < state.attempt else None
    progress = _progress(state.stage)
    return PrepareOutcome(
        preparation=_preparation(target, state.job, state.attempt, state.stage, recorded),
        message=f"{progress}: {state.waiting_for}" if state.waiting_for else progress,
        waits_for=state.waits_for,
        failure=state.failure,
        delete=outdated_jobs(namespace, pods, jobs, keep=state.job),
        requeue_after=state.requeue_after,
    )


def _failed(
    namespace: str,
    pods: Collection[PodView],
    target: Target,
    work: Work[Published],
    jobs: Mapping[str, JobView],
    state: Failed,
) -> PrepareOutcome:
    name, failure = work.name(state.attempt), state.failure
    return PrepareOutcome(
        preparation=_preparation(target, name, state.attempt, failure.stage, failure),
        failure=failure,
        delete=outdated_jobs(namespace, pods, jobs, keep="" if state.ends else name),
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


def _prepared(target: Target, published: Published) -> Prepared:
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
        signature=listed(published.signature) if published.signature else None,
        image=published.image,
        image_failure=published.image_failure or "",
    )
