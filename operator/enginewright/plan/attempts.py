"""How Jobs are attempted: start, wait, succeed, fail, retry.

The same for probe, prepare, lookup and engine Jobs. Failures are recorded in a status, so that deleting a Job starts
no endless loop: a permanent one is not retried until its inputs change, a transient one is retried with backoff.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from enginewright_contract.reasons import (
    ExitCode,
    Fault,
    Reason,
    Repeats,
    exit_code,
    reason_named,
)
from enginewright_contract.report import Finding

from enginewright.api.conditions import StatusReason
from enginewright.api.job_failure import JobFailure
from enginewright.api.scalars import whole_second
from enginewright.manifests.job_limits import (
    ATTEMPTS,
    EVICTIONS,
    FIRST_RETRY,
    LONGEST_RETRY,
    REFUSED_AFTER,
    REFUSED_AGAIN,
    START_TIMEOUT,
    UNREACHABLE,
    WITHOUT_POD,
)
from enginewright.observed.jobs import JobView
from enginewright.observed.nodes import NodeView
from enginewright.observed.pods import PodView, of_job
from enginewright.plan import pods
from enginewright.plan.waits import Wait, find_ignored_since, find_wait
from enginewright.plan.writes import STUCK_REMEDY

_MAX_DOUBLINGS: Final = 10

Result = TypeVar("Result")


@dataclass(frozen=True)
class Work(Generic[Result]):
    """The Jobs of one kind for one set of inputs."""

    stages: tuple[str, ...]
    name: Callable[[int], str]  # of the Job of an attempt, from 1
    result: Callable[[PodView], Result | None]  # reported by a finished pod
    placement: str  # hash of the template that a Job is created with now
    overdue: tuple[Reason, str]  # reason and cause when a pod exceeds its deadline
    limit: int | None = ATTEMPTS  # after failures that rarely pass on their own
    # a stage before the last one may have the result, if the store had it: later ones have nothing to do then
    may_end_early: bool = False
    store: str = ""  # its place and size: a failure of another one says nothing about it
    # a stage with work that the attempt after a failure in it leaves out, so that its first timeout is not final
    lightened: str = ""


@dataclass(frozen=True)
class Observed:
    """The Jobs and pods of one owner at one moment."""

    jobs: Mapping[str, JobView]  # by name
    pods: Sequence[PodView]
    now: datetime  # timezone-aware
    nodes: Collection[NodeView] = ()
    awaited: str = ""  # Job whose pod must start soon on its node, because serving pods wait for it


@dataclass(frozen=True)
class Start:
    """A Job must be created."""

    attempt: int
    failure: JobFailure | None = None  # of the previous attempt
    replaces: str = ""  # Job to delete
    after_success: bool = False  # the previous Job completed, but its report was lost with its pod


@dataclass(frozen=True)
class InProgress:
    """A Job runs, or waits to."""

    attempt: int
    job: str
    stage: str  # current or next one
    pod: PodView | None  # the newest one
    wait: Wait | None = None  # for a node, a volume, a queue or the API server
    failure: JobFailure | None = None  # the last one, of this Job's pods or of earlier Jobs
    requeue_after: float | None = None  # seconds


@dataclass(frozen=True)
class Succeeded(Generic[Result]):
    """A Job completed."""

    attempt: int
    job: str
    result: Result
    ends: str = ""  # a running Job to delete once the result is recorded


@dataclass(frozen=True)
class Failed:
    """The attempts failed; no Job runs now."""

    attempt: int
    failure: JobFailure
    requeue_after: float | None = None  # seconds until the next attempt, if it is retried
    ends: str = ""  # a running Job to delete


def advance(
    work: Work[Result], observed: Observed, attempt: int, failure: JobFailure | None
) -> Start | InProgress | Succeeded[Result] | Failed:
    """Return the state of the `attempt`-th Job, from 1; `failure` is the recorded one for these inputs."""
    job = observed.jobs.get(work.name(attempt))
    if job is None:
        if failure and failure.attempts >= attempt:
            return _after_failure(work, failure, attempt, observed.now)
        return Start(attempt, failure)
    own_pods = of_job(observed.pods, job.name)
    awaited = observed.awaited == job.name
    return _Attempt(
        work, observed.now, observed.nodes, job, own_pods, attempt, failure, awaited
    ).advance()


@dataclass(frozen=True)
class _Attempt(Generic[Result]):
    """One Job of a work, and its pods, the newest one last."""

    work: Work[Result]
    now: datetime
    nodes: Collection[NodeView]
    job: JobView
    own_pods: Sequence[PodView]
    number: int
    recorded: JobFailure | None
    awaited: bool

    def advance(self) -> Start | InProgress | Succeeded[Result] | Failed:
        """Return its state."""
        if (result := self._result()) is not None:
            # before the Job controller has marked the Job complete
            runs_on = not self.job.ended and any(map(self._outlives, self.own_pods))
            ends = self.job.name if runs_on else ""
            return Succeeded(self.number, self.job.name, result, ends)
        last = self.own_pods[-1] if self.own_pods else None
        over = last if last and (self._is_late(last) or self._outlives(last)) else None
        if not self.job.ended and (state := self._replace_or_wait()):
            return state
        # Jobs and pods have separate watches: a pod's report may arrive after its Job has finished.
        if over is None and not (self.job.ended and all(pod.leaving for pod in self.own_pods)):
            return self._in_progress()
        return self._fail_or_retry(over)

    def _outlives(self, pod: PodView) -> bool:
        return pods.outlives(pod, self.work.stages[-1])

    def _is_late(self, pod: PodView) -> bool:
        left = self._seconds_to_start(pod)
        return pod.reason == "DeadlineExceeded" or (left is not None and left <= 0)

    def _seconds_to_start(self, pod: PodView | None) -> float | None:
        if pod is None or not self.awaited or not pod.scheduled_at:
            return None
        if pod.finished or not pods.never_ran(pod):
            return None
        limit = datetime.fromisoformat(pod.scheduled_at) + START_TIMEOUT
        return (limit - self.now).total_seconds()

    def _result(self) -> Result | None:
        results = (
            self.work.result(pod)
            for pod in reversed(self.own_pods)
            if self.work.may_end_early or pods.has_succeeded(pod, self.work.stages[-1])
        )
        return next((result for result in results if result is not None), None)

    def _in_progress(self) -> Start | InProgress | Failed:
        pod, failure = self.own_pods[-1] if self.own_pods else None, self.recorded
        if last := self._last_failure():
            exhausted = sum(map(pods.is_evicted, self.own_pods)) >= EVICTIONS
            if not exhausted or failure is None or failure.attempts < self.number:
                failure = self._record(last.stage, last.finding)
            # podFailurePolicy ends the Job after a permanent failure
            if exhausted or last.exit_code == ExitCode.PERMANENT:
                ends = self.job.name if exhausted else ""
                return _after_failure(self.work, failure, self.number, self.now, ends=ends)
        requeue_after = self._seconds_to_start(pod) or _seconds_to_ignored(pod, self.now)
        if any(own_pod.deleting and not own_pod.finished for own_pod in self.own_pods):
            requeue_after = UNREACHABLE.total_seconds()
        return InProgress(
            attempt=self.number,
            job=self.job.name,
            stage=self._stage(pod),
            pod=pod,
            wait=find_wait(self.nodes, pod, self.now) if pod else self._why_no_pod(),
            failure=failure,
            requeue_after=requeue_after if pod else self._next_look().total_seconds(),
        )

    def _next_look(self) -> timedelta:
        """Return when the Job's Events are to be read, where it has no pod."""
        left = self._since() + REFUSED_AFTER - self.now
        return left if timedelta() < left <= REFUSED_AFTER else REFUSED_AGAIN

    def _since(self) -> datetime:
        return datetime.fromisoformat(self.job.started_at or self.job.created)

    def _why_no_pod(self) -> Wait | None:
        """Return why the Job has no pod, as far as that is known, unless it is new."""
        job = self.job
        if job.deleting:
            return Wait("", f"Job {job.name} is still being deleted: {STUCK_REMEDY}")
        if job.refused:
            why = pods.explain_refusal(job.refused)
            return Wait(StatusReason.FAILED_CREATE, f"its pod cannot be created: {why}")
        if self.now - self._since() < WITHOUT_POD:
            return None
        return Wait("", f"Job {job.name} in namespace {job.namespace} has no pod: see its Events")

    def _replace_or_wait(self) -> Start | InProgress | None:
        """Return the state of a Job that must run on other nodes or is suspended, if it is so."""
        job = self.job
        is_lost = any(_is_lost(pod, self.now) for pod in self.own_pods)
        never_ran = all(map(pods.never_ran, self.own_pods))
        if is_lost or (never_ran and job.placement != self.work.placement):
            return Start(self.number + 1, self.recorded, replaces=job.name)
        if not job.suspended:
            return None
        # Its pods were deleted for the suspension or never created: that is not a failure.
        admitted = f"the queue {job.queue} of Kueue admits it" if job.queue else "it is resumed"
        return InProgress(
            attempt=self.number,
            job=job.name,
            stage=self.work.stages[0],
            pod=None,
            wait=Wait(StatusReason.QUEUED, f"the Job is suspended until {admitted}"),
            failure=self.recorded,
        )

    def _fail_or_retry(self, over: PodView | None) -> Start | Failed:
        failure = self.recorded
        if self.job.outcome == "Complete" and not self.own_pods:
            return Start(self.number + 1, failure, after_success=True)
        if failure is None or failure.attempts < self.number:
            failure = self._record(*self._cause(over))
        # The Job controller would replace a pod that exceeded its deadline, and wait for one that goes on.
        ends = self.job.name if over and not self.job.ended else ""
        return _after_failure(self.work, failure, self.number, self.now, ends=ends)

    def _cause(self, over: PodView | None) -> tuple[str, Finding]:
        is_late = self.job.reason == "DeadlineExceeded" or (
            over is not None and self._is_late(over)
        )
        # a stage that has failed beside a proxy did so before its pod was late
        if is_late and not (over and any(report.failure for report in pods.reports(over))):
            pod = over or (self.own_pods[-1] if self.own_pods else None)
            stage = self._stage(pod)
            reason, cause = self.work.overdue
            if pod and pods.never_ran(pod):
                reason = Reason.POD_NOT_STARTED
                waiting_for = pods.waiting_for(pod) or "its containers are waiting"
                cause = f"the pod did not start: {waiting_for}"
            finding = Finding(reason=reason, cause=cause.format(stage=stage))
            return stage, finding.of_container(stage)
        if last := self._last_failure():
            return last.stage, last.finding
        if self.job.outcome == "Complete":
            cause = "the Job completed without a report of its last stage"
        else:
            messages = (*(pod.message for pod in self.own_pods), self.job.message)
            text = next(filter(None, messages), "")
            cause = f"the Job failed before a stage began{f': {text}' if text else ''}"
            return "", Finding(reason=Reason.POD_NOT_STARTED, cause=cause)
        return "", Finding(reason=Reason.INTERNAL_ERROR, cause=cause)

    def _record(self, stage: str, finding: Finding) -> JobFailure:
        lightened = _is_lightened(self.work, stage, finding.reason)
        bounded = finding.reason.facets.repeats is Repeats.MOSTLY or self.awaited or lightened
        limit = self.work.limit if bounded else None
        given_up = limit is not None and self.number >= limit
        after = f"; given up after {self.number} attempts" if given_up else ""
        before = self.recorded
        # then this attempt had left the rest out already
        again = before and before.attempts < self.number and before.stage == stage
        return JobFailure(
            stage=stage,
            reason=finding.reason,
            message=f"{finding.cause}{after}",
            remedy=finding.advice,
            time=whole_second(self.now),
            attempts=self.number,
            lasting=given_up
            or (_is_lasting(self.work, finding.reason) and not (lightened and not again)),
            store=self.work.store if finding.reason.facets.fault is Fault.STORE else "",
        )

    def _stage(self, pod: PodView | None) -> str:
        return pods.running_stage(pod, self.work.stages) if pod else self.work.stages[0]

    def _last_failure(self) -> pods.Failure | None:
        return next(filter(None, map(pods.failure, reversed(self.own_pods))), None)


def _after_failure(
    work: Work[Result], failure: JobFailure, attempt: int, now: datetime, *, ends: str = ""
) -> Failed | Start:
    """Return Failed, also while waiting to retry, or the start of the next attempt."""
    lightened = _is_lightened(work, failure.stage, failure.reason)
    if failure.lasting or (_is_lasting(work, failure.reason) and not lightened):
        return Failed(attempt, failure.model_copy(update={"lasting": True}), ends=ends)
    wait = (retry_due(failure) - now).total_seconds()
    if wait > 0 and failure.store in ("", work.store):
        return Failed(attempt, failure, requeue_after=wait, ends=ends)
    return Start(failure.attempts + 1, failure, replaces=work.name(attempt))


def _is_lasting(work: Work[Result], reason: str) -> bool:
    named = reason_named(reason)
    is_permanent = named is not None and exit_code(named) is ExitCode.PERMANENT
    return work.limit is not None and is_permanent


def _is_lightened(work: Work[Result], stage: str, reason: str) -> bool:
    """Return whether the next attempt may do in time what this one did not."""
    return stage == work.lightened and reason == Reason.TIMEOUT


def is_stalled(failure: JobFailure) -> bool:
    """Return whether only a change helps, of the spec or of the cluster: then the next attempt is worth little before it."""
    named = reason_named(failure.reason)
    lacks_room = named is not None and named.facets.repeats is Repeats.UNTIL_ROOM
    return failure.lasting or (lacks_room and failure.attempts >= ATTEMPTS)


def describe_retry(failure: JobFailure) -> str:
    """Return that a transient failure is retried and, where that has failed often, when, as a part of a sentence."""
    if not is_stalled(failure):
        return "retrying"
    due = f"{retry_due(failure):%Y-%m-%d %H:%M} UTC"
    sooner = ", or once the store has changed" if failure.store else ""
    return f"failed {failure.attempts} times; the next attempt is at {due}{sooner}"


def retry_due(failure: JobFailure) -> datetime:
    """Return when the attempt after a transient failure is due."""
    delay = min(FIRST_RETRY * (1 << min(failure.attempts - 1, _MAX_DOUBLINGS)), LONGEST_RETRY)
    return (failure.time or datetime.min.replace(tzinfo=UTC)) + delay


def _seconds_to_ignored(pod: PodView | None, now: datetime) -> float | None:
    since = find_ignored_since(pod) if pod else None
    return max((since - now).total_seconds(), 0) or None if since else None


def _is_lost(pod: PodView, now: datetime) -> bool:
    """Return whether the pod's node is unreachable: the Job controller would wait forever."""
    if not pod.deleting or pod.finished or not pod.node:
        return False
    return datetime.fromisoformat(pod.deleted_at) + UNREACHABLE < now
