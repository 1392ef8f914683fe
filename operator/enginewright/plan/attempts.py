"""The one way in which Jobs are attempted: start, wait, succeed, fail, try again.

The same for probe, prepare, lookup and engine Jobs. The memory of failures is a status, so a Job
that has been cleaned away starts no loop: what cannot succeed is not tried again until its inputs
change, what can pass is tried with backoff.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from enginewright.api.conditions import StatusReason
from enginewright.api.job_failure import JobFailure
from enginewright.api.scalars import whole_second
from enginewright.contract.reasons import (
    REMEDIES,
    SELDOM_PASSES,
    ExitCode,
    Reason,
    exit_code,
    remedy,
)
from enginewright.observed.jobs import JobView
from enginewright.observed.pods import PodView, of_job
from enginewright.plan import pods

FIRST_RETRY: Final = timedelta(minutes=1)
LONGEST_RETRY: Final = timedelta(hours=1)
UNREACHABLE: Final = timedelta(minutes=5)  # after which a pod that does not end is taken for lost
EVICTIONS: Final = 3  # of one Job's pods: the Job controller counts none, and would go on for ever
_MAX_DOUBLINGS: Final = 10

Result = TypeVar("Result")


@dataclass(frozen=True)
class Work(Generic[Result]):
    """What the Jobs of one kind do for one set of inputs."""

    stages: tuple[str, ...]
    name: Callable[[int], str]  # of the Job of an attempt, from 1
    result: Callable[[PodView], Result | None]  # what a pod reports that finished
    placement: str  # hash of the template that a Job is made with now
    overdue: tuple[Reason, str]  # what it means that a pod's time ran out: reason and cause
    # attempts at what seldom passes by itself; None: nothing is ever given up
    limit: int | None = 5


@dataclass(frozen=True)
class Observed:
    """The Jobs and pods of one owner at one moment."""

    jobs: Mapping[str, JobView]  # by name
    pods: Sequence[PodView]
    now: datetime  # timezone-aware


@dataclass(frozen=True)
class Start:
    """A Job is to be made."""

    attempt: int
    failure: JobFailure | None = None  # of the attempt before
    replaces: str = ""  # Job that has served its purpose, or never will
    after_success: bool = False  # the Job before completed, and its report is lost with its pod


@dataclass(frozen=True)
class UnderWay:
    """A Job runs, or waits to."""

    attempt: int
    job: str
    stage: str  # that runs or comes next
    pod: PodView | None  # the newest one
    waiting_for: str  # what its pod needs in order to start, as a sentence; empty: nothing known
    waits_for: str = ""  # reason, where it is a volume or a queue
    failure: JobFailure | None = None  # the last one, of this Job's pods or of earlier Jobs
    requeue_after: float | None = None  # seconds


@dataclass(frozen=True)
class Succeeded(Generic[Result]):
    """A Job completed."""

    attempt: int
    job: str
    result: Result


@dataclass(frozen=True)
class Failed:
    """The attempts failed; no Job runs now."""

    attempt: int
    failure: JobFailure
    # seconds until the next attempt; None: it is not tried again
    requeue_after: float | None = None
    ends: str = ""  # a Job that must not go on


def advance(
    work: Work[Result], observed: Observed, attempt: int, known: JobFailure | None
) -> Start | UnderWay | Succeeded[Result] | Failed:
    """Return where the `attempt`-th Job stands.

    Args:
        work: what is attempted.
        observed: what the cluster holds.
        attempt: as remembered, from 1.
        known: the failure that is remembered for these inputs.
    """
    job = observed.jobs.get(work.name(attempt))
    if job is None:
        if known and known.attempts >= attempt:
            return _after_failure(work, known, attempt, observed.now)
        return Start(attempt, known)
    mine = of_job(observed.pods, job.name)
    if (result := _result(work, mine)) is not None:
        return Succeeded(attempt, job.name, result)  # the Job controller needs seconds to say so
    late = mine[-1] if mine and mine[-1].reason == "DeadlineExceeded" else None
    if not job.ended and (state := _set_aside(work, observed, job, mine, attempt, known)):
        return state
    # Jobs and pods are watched apart: what a pod reported may arrive after its Job has ended.
    if late is None and not (job.ended and all(pod.leaving for pod in mine)):
        return _under_way(work, observed, job, mine, attempt, known)
    return _ended(work, observed, job, mine, late, attempt, known)


def _after_failure(
    work: Work[Result], failure: JobFailure, attempt: int, now: datetime, *, ends: str = ""
) -> Failed | Start:
    """Stay failed, wait, or try again."""
    if failure.lasting or _is_lasting(work, failure.reason):
        return Failed(attempt, failure.model_copy(update={"lasting": True}), ends=ends)
    wait = (_due(failure.time, failure.attempts) - now).total_seconds()
    if wait > 0:
        return Failed(attempt, failure, requeue_after=wait, ends=ends)
    return Start(failure.attempts + 1, failure, replaces=work.name(attempt))


def _can_pass(reason: str) -> bool:
    """Return whether a failure may pass without anybody's doing."""
    return reason not in set(Reason) or exit_code(Reason(reason)) != ExitCode.PERMANENT


def _is_lasting(work: Work[Result], reason: str) -> bool:
    return work.limit is not None and not _can_pass(reason)


def _due(failed_at: datetime | None, attempts: int) -> datetime:
    """Return when what failed for the `attempts`-th time is tried again."""
    delay = min(FIRST_RETRY * (1 << min(attempts - 1, _MAX_DOUBLINGS)), LONGEST_RETRY)
    return (failed_at or datetime.min.replace(tzinfo=UTC)) + delay


def _is_lost(pod: PodView, now: datetime) -> bool:
    """Return whether the pod's node does not answer: the Job controller would wait for ever."""
    if not pod.deleting or pod.finished or not pod.node:
        return False
    return datetime.fromisoformat(pod.deleted_at) + UNREACHABLE < now


def _result(work: Work[Result], mine: Sequence[PodView]) -> Result | None:
    found = (work.result(pod) for pod in reversed(mine) if pod.phase == "Succeeded")
    return next((each for each in found if each is not None), None)


def _under_way(
    work: Work[Result],
    observed: Observed,
    job: JobView,
    mine: Sequence[PodView],
    attempt: int,
    known: JobFailure | None,
) -> Start | UnderWay | Failed:
    pod = mine[-1] if mine else None
    stage = pods.running_stage(pod, work.stages) if pod else work.stages[0]
    if found := _last_failure(mine):
        hopeless = sum(map(pods.is_evicted, mine)) >= EVICTIONS
        if hopeless and known and known.attempts >= attempt:  # it is being ended
            return _after_failure(work, known, attempt, observed.now, ends=job.name)
        known = _remembered(work, observed.now, attempt, found.stage, found.reason, found.message)
        if hopeless:
            return _after_failure(work, known, attempt, observed.now, ends=job.name)
        if found.exit_code == ExitCode.PERMANENT:  # podFailurePolicy ends the Job
            return _after_failure(work, known, attempt, observed.now)
    ending = any(each.deleting and not each.finished for each in mine)
    return UnderWay(
        attempt=attempt,
        job=job.name,
        stage=stage,
        pod=pod,
        waiting_for=pods.waiting_for(pod) if pod else "",
        waits_for=(pods.missing_claim(pod) or "") if pod else "",
        failure=known,
        requeue_after=UNREACHABLE.total_seconds() if ending else None,
    )


def _set_aside(
    work: Work[Result],
    observed: Observed,
    job: JobView,
    mine: Sequence[PodView],
    attempt: int,
    known: JobFailure | None,
) -> Start | UnderWay | None:
    """Return what to do about a Job that is to run elsewhere, or must not run now."""
    is_lost = any(_is_lost(pod, observed.now) for pod in mine)
    never_ran = all(map(pods.never_ran, mine))
    if is_lost or (never_ran and job.placement != work.placement):
        return Start(attempt + 1, known, replaces=job.name)
    if not job.suspended:
        return None
    # Its pods were taken off their nodes, or never made: how they ended is no failure.
    admitted = f"the queue {job.queue} of Kueue admits it" if job.queue else "it is resumed"
    return UnderWay(
        attempt=attempt,
        job=job.name,
        stage=work.stages[0],
        pod=None,
        waiting_for=f"the Job is suspended until {admitted}",
        waits_for=StatusReason.QUEUED,
        failure=known,
    )


def _ended(
    work: Work[Result],
    observed: Observed,
    job: JobView,
    mine: Sequence[PodView],
    late: PodView | None,
    attempt: int,
    known: JobFailure | None,
) -> Start | Failed:
    """Return what follows from a Job that ended without a result."""
    if job.outcome == "Complete" and not mine:
        return Start(attempt + 1, known, after_success=True)
    if known is None or known.attempts < attempt:
        known = _failure(work, observed, job, mine, late, attempt)
    # The Job controller would make another pod for one that ran out of time.
    ends = job.name if late and not job.ended else ""
    return _after_failure(work, known, attempt, observed.now, ends=ends)


def _failure(
    work: Work[Result],
    observed: Observed,
    job: JobView,
    mine: Sequence[PodView],
    late: PodView | None,
    attempt: int,
) -> JobFailure:
    """Return why a Job that ended came to nothing."""
    stage, reason, message = _cause(work, job, mine, late)
    return _remembered(work, observed.now, attempt, stage, reason, message)


def _cause(
    work: Work[Result], job: JobView, mine: Sequence[PodView], late: PodView | None
) -> tuple[str, Reason, str]:
    if late or job.reason == "DeadlineExceeded":
        pod = late or (mine[-1] if mine else None)
        stage = pods.running_stage(pod, work.stages) if pod else work.stages[0]
        reason, cause = work.overdue
        if pod and pods.never_ran(pod):
            reason = Reason.POD_NOT_STARTED
            cause = (
                f"the pod did not start: {pods.waiting_for(pod) or 'its containers are waiting'}"
            )
        return stage, reason, f"{cause.format(stage=stage)}; {remedy(reason, stage)}"
    if found := _last_failure(mine):
        return found.stage, found.reason, found.message
    if job.outcome == "Complete":
        cause = "the Job completed without the report of its last stage"
    else:
        said = next((pod.message for pod in mine if pod.message), "") or job.message
        cause = f"the Job failed before a stage began{f': {said}' if said else ''}"
    return "", Reason.INTERNAL_ERROR, f"{cause}; {REMEDIES[Reason.INTERNAL_ERROR]}"


def _remembered(
    work: Work[Result], now: datetime, attempts: int, stage: str, reason: Reason, message: str
) -> JobFailure:
    limit = work.limit if reason in SELDOM_PASSES else None
    given_up = limit is not None and attempts >= limit
    return JobFailure(
        stage=stage,
        reason=reason,
        message=f"{message}; given up after {attempts} attempts" if given_up else message,
        time=whole_second(now),
        attempts=attempts,
        lasting=given_up or _is_lasting(work, reason),
    )


def _last_failure(mine: Sequence[PodView]) -> pods.Failure | None:
    return next((each for each in map(pods.failure, reversed(mine)) if each), None)
