"""Bringing a prepared model about: which Job is wanted, what came of it, when to try again.

The memory of failures is the status, so a Job that has been cleaned away starts no loop: what
cannot succeed is not tried again until its inputs change, what can pass is tried with backoff.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

from enginewright.api.inference_model_status import Preparation, PreparationFailure, Prepared
from enginewright.contract.reasons import REMEDIES, ExitCode, Reason
from enginewright.contract.report import Published
from enginewright.contract.task import PREPARE_STAGES, PrepareTask
from enginewright.manifests.deployment import FETCH_ARTIFACT
from enginewright.manifests.labels import COMPONENT, REVISION
from enginewright.manifests.names import prepare_job_name
from enginewright.manifests.prepare_job import PrepareJob, prepare_job
from enginewright.plan import job_state, pods
from enginewright.plan.resolve import Target
from enginewright.plan.types import Facts, Object, ObjectRef

_ARTIFACT_GONE: Final = frozenset({Reason.ARTIFACT_MISSING, Reason.ARTIFACT_CORRUPT})


@dataclass(frozen=True)
class Outcome:
    """Where preparing stands."""

    prepared: Prepared | None = None
    preparation: Preparation | None = None
    message: str = ""  # progress, when neither prepared nor failed
    failure: PreparationFailure | None = None
    retries: bool = False  # the failure can pass, and it is tried again
    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    requeue_after: float | None = None


def prepare(facts: Facts, target: Target) -> Outcome:
    """Return where preparing `target` stands and what is to be done for it."""
    prepared = facts.model.status.prepared
    current = prepared if prepared and prepared.inputs_hash == target.artifact_hash else None
    jobs = {job["metadata"]["name"]: job for job in facts.jobs if _is_prepare(job)}
    lost = current is not None and _lost(facts, current.key, jobs)
    if current and not lost:
        return Outcome(prepared=current, delete=_superseded(facts, jobs, keep=""))
    known = facts.model.status.preparation
    known = known if known and known.inputs_hash == target.job_hash else None
    attempt = max(known.attempt, 1) if known else _first_attempt(facts, target, jobs, lost=lost)
    name = prepare_job_name(facts.model.metadata.name, target.job_hash, attempt)
    superseded = _superseded(facts, jobs, keep=name)
    if job := jobs.get(name):
        return _of_job(facts, target, job, attempt, superseded)
    if known and known.failure:
        return _after_failure(facts, target, known.failure, attempt, superseded)
    return _start(facts, target, attempt, superseded)


def _of_job(
    facts: Facts, target: Target, job: Object, attempt: int, delete: tuple[ObjectRef, ...]
) -> Outcome:
    """Return what came of the Job of this attempt."""
    name = job["metadata"]["name"]
    mine = pods.of_job(facts.pods, name)
    # Jobs and pods are watched apart: what a pod said may be seen later than that its Job ended.
    if not job_state.ended(job) or not all(map(pods.leaving, mine)):
        return _under_way(facts, target, name, attempt, delete)
    if job_state.condition(job, "Complete"):
        if published := _published(mine):
            return Outcome(prepared=_prepared(target, published), delete=delete)
        if not mine:
            return _start(facts, target, attempt + 1, delete)  # its word is gone with its pod
    known = facts.model.status.preparation
    remembered = known.failure if known and known.inputs_hash == target.job_hash else None
    if remembered is None or remembered.attempts < attempt:
        remembered = _failure(facts, job, attempt)
    return _after_failure(facts, target, remembered, attempt, delete)


def _is_prepare(job: Object) -> bool:
    return job_state.label(job, COMPONENT) == "prepare"


def _lost(facts: Facts, key: str, jobs: Mapping[str, Object]) -> bool:
    """Tell whether a pod that is to serve `key` found it gone since it was last published."""
    revisions = {
        job_state.label(each, REVISION)
        for each in facts.revisions
        if (each.get("data") or {}).get("prepared_key") == key
        # Pods that serve an engine fetch that, and see nothing of the prepared model.
        and not any(one.get("engine_key") for one in each["data"].get("classes") or ())
    }
    published = max(
        (str((job.get("status") or {}).get("completionTime") or "") for job in jobs.values()),
        default="",
    )
    failures = (
        pods.failure(pod) for pod in facts.pods if job_state.label(pod, REVISION) in revisions
    )
    return any(
        each is not None
        and each.stage == FETCH_ARTIFACT  # the server sees its own copy, not the store
        and each.reason in _ARTIFACT_GONE
        and each.finished_at > published
        for each in failures
    )


def _first_attempt(facts: Facts, target: Target, jobs: Mapping[str, Object], *, lost: bool) -> int:
    """Return the attempt to begin with: past those that made what is `lost`, else the first."""
    model = facts.model.metadata.name
    attempt = 1
    while lost and (job := jobs.get(prepare_job_name(model, target.job_hash, attempt))):
        if not job_state.condition(job, "Complete"):
            break
        attempt += 1
    return attempt


def _superseded(facts: Facts, jobs: Mapping[str, Object], keep: str) -> tuple[ObjectRef, ...]:
    """Return the Jobs that still run for inputs that nobody wants any more."""
    return tuple(
        ObjectRef("batch/v1", "Job", facts.model.metadata.namespace, name)
        for name, job in sorted(jobs.items())
        if name != keep and not job_state.ended(job)
    )


def _start(facts: Facts, target: Target, attempt: int, delete: tuple[ObjectRef, ...]) -> Outcome:
    known = facts.model.status.preparation
    failed = known.failure if known and known.inputs_hash == target.job_hash else None
    name = prepare_job_name(facts.model.metadata.name, target.job_hash, attempt)
    spec = facts.model.spec
    job = prepare_job(
        facts.model,
        PrepareJob(
            name=name,
            image=target.image,
            pull_policy=facts.config.image_pull_policy,
            pull_secrets=target.pull_secrets,
            store_claim=facts.config.store.claim,
            task=PrepareTask(
                job=name,
                source_uri=spec.source.uri,
                source_sha256=spec.source.sha256,
                recipe=target.recipe,
            ),
            deadline_seconds=target.deadline_seconds,
            resources=target.build_resources,
            inputs=target.inputs,
            nodes=target.prepare_nodes,
            account=target.account,
        ),
    )
    return Outcome(
        preparation=_preparation(target, name, attempt, PREPARE_STAGES[0], failed),
        message=_progress(PREPARE_STAGES[0]),
        apply=(job,),
        delete=delete,
    )


def _under_way(
    facts: Facts, target: Target, name: str, attempt: int, delete: tuple[ObjectRef, ...]
) -> Outcome:
    mine = pods.of_job(facts.pods, name)
    stage = pods.running_stage(mine[-1], PREPARE_STAGES) if mine else PREPARE_STAGES[0]
    failed = next((each for each in map(pods.failure, reversed(mine)) if each), None)
    remembered = facts.model.status.preparation
    earlier = (
        remembered.failure if remembered and remembered.inputs_hash == target.job_hash else None
    )
    failure = earlier
    if failed:
        failure = _remember(facts, failed.stage, failed.reason, failed.message, attempt)
    given_up = failed is not None and failed.exit_code == ExitCode.PERMANENT  # by podFailurePolicy
    trouble = pods.trouble(mine[-1]) if mine else ""
    return Outcome(
        preparation=_preparation(target, name, attempt, stage, earlier),
        message=f"{_progress(stage)}: {trouble}" if trouble else _progress(stage),
        failure=failure,
        retries=failure is not None and not given_up,
        delete=delete,
    )


def _progress(stage: str) -> str:
    position = PREPARE_STAGES.index(stage) + 1
    return f"{stage} ({position}/{len(PREPARE_STAGES)})"


def _preparation(
    target: Target, job: str, attempt: int, stage: str, failure: PreparationFailure | None
) -> Preparation:
    return Preparation(
        inputs_hash=target.job_hash, job=job, stage=stage, attempt=attempt, failure=failure
    )


def _published(mine: Sequence[Object]) -> Published | None:
    for pod in reversed(mine):
        for report in pods.heralds(pod):
            if report.published:
                return report.published
    return None


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
    )


def _failure(facts: Facts, job: Object, attempt: int) -> PreparationFailure:
    name = job["metadata"]["name"]
    mine = pods.of_job(facts.pods, name)
    condition = job_state.condition(job, "Failed") or {}
    if condition.get("reason") == "DeadlineExceeded":
        known = facts.model.status.preparation
        stage = known.stage if known else ""
        message = f"preparing took longer than spec.build.timeout; {REMEDIES[Reason.TIMEOUT]}"
        return _remember(facts, stage, Reason.TIMEOUT, message, attempt)
    found = next((each for each in map(pods.failure, reversed(mine)) if each), None)
    if found:
        return _remember(facts, found.stage, found.reason, found.message, attempt)
    message = f"the Job ended without a word from its pods; {REMEDIES[Reason.INTERNAL_ERROR]}"
    return _remember(facts, "", Reason.INTERNAL_ERROR, message, attempt)


def _remember(
    facts: Facts,
    stage: str,
    reason: Reason,
    message: str,
    attempts: int,
) -> PreparationFailure:
    return PreparationFailure(
        stage=stage,
        reason=reason,
        message=message,
        time=facts.now.astimezone(UTC).replace(microsecond=0),
        attempts=attempts,
    )


def _after_failure(
    facts: Facts,
    target: Target,
    failure: PreparationFailure,
    attempt: int,
    delete: tuple[ObjectRef, ...],
) -> Outcome:
    """Stay failed, wait, or try again."""
    name = prepare_job_name(facts.model.metadata.name, target.job_hash, attempt)
    preparation = _preparation(target, name, attempt, failure.stage, failure)
    if not job_state.can_pass(failure.reason):
        return Outcome(preparation=preparation, failure=failure, delete=delete)
    wait = (job_state.due(failure.time, failure.attempts) - facts.now).total_seconds()
    if wait > 0:
        return Outcome(
            preparation=preparation,
            failure=failure,
            retries=True,
            delete=delete,
            requeue_after=wait,
        )
    again = _start(facts, target, attempt + 1, delete)
    kept = again.preparation.model_copy(update={"failure": failure}) if again.preparation else None
    return Outcome(
        preparation=kept,
        message=again.message,
        failure=failure,
        retries=True,
        apply=again.apply,
        delete=(*delete, ObjectRef("batch/v1", "Job", facts.model.metadata.namespace, name)),
    )
