"""Whether a revision has failed, as its pods show: a new one for good, or one after it was promoted.

Rejecting a good one costs a rollout, waiting for a bad one keeps devices. When no pod of the active revision passes its
checks any more, or all of them crash again and again, one pod of the previous revision is started on each of its classes.
If the checks pass there, that revision is restored; for crashes, which requests may cause, only after it has answered
requests for `canary.hold`. Otherwise nodes, data or requests cause the failure, and going back would not help.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from enginewright_contract.reasons import ExitCode, Fault, Reason, Repeats, exit_code
from enginewright_contract.task import SIDECAR

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import RolloutFailure
from enginewright.manifests.job_limits import EVICTIONS
from enginewright.manifests.labels import CANARY, CLASS, COMPONENT, REVISION, SERVE
from enginewright.manifests.serving_pod import SERVER
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.plan import pods
from enginewright.plan.history.outcomes import find_serving, promise_of
from enginewright.plan.resolve.classes import matching
from enginewright.plan.rollout.deadlines import (
    is_late,
    is_refused_too_long,
    seconds_to_next,
    waits_too_long,
)
from enginewright.plan.rollout.proofs import refusal
from enginewright.plan.types import Facts
from enginewright.plan.waits import Wait, find_down_node, find_refusal, find_wait

# Not the revision's: what the store has lost is rebuilt, and a Secret is corrected.
_OF_OTHERS: Final = (Fault.STORE, Fault.USER)
STAGE: Final = "serving"  # of the failure


@dataclass(frozen=True)
class PodFailures:
    """What is wrong with the pods of a revision."""

    first: pods.Failure | None = None  # of a pod that is not ready
    lasting: RolloutFailure | None = None  # for which the revision is rejected
    waits: Wait | None = None  # what prevents a pod from starting, or from being created
    outside: Wait | None = None  # what prevents one outside of the revision, which has a reason
    # why one was not scheduled or allowed within rollout.progressTimeout
    blocked: Wait | None = None
    due: float | None = None  # seconds until this changes without an event


@dataclass(frozen=True)
class Unready:
    """What is wrong with those pods of a revision that are not ready."""

    first: pods.Failure | None  # of a pod
    lasting: pods.Failure | None  # that would repeat: refused permanently, or repeated
    waits: Wait | None  # what prevents a pod from starting


def unready(facts: Facts, mine: Iterable[PodView]) -> Unready:
    """Return what is wrong with those of `mine` that are not ready, nor leaving."""
    waiting = [pod for pod in mine if not pod.ready and not pod.leaving]
    failed = [
        (pod, failure)
        for pod in waiting
        if not find_down_node(facts.nodes, pod)  # whose reports are old
        and (failure := failure_of(facts, pod))
    ]
    first = failed[0][1] if failed else None
    refused = (failure for pod, failure in failed if _is_refused_for_good(facts, pod, failure))
    waits = (find_wait(facts.nodes, pod, facts.now) for pod in waiting)
    return Unready(
        first=first,
        lasting=next(refused, first if _is_repeated(facts, failed) else None),
        waits=next(filter(None, waits), None),
    )


def lasting_on(facts: Facts, revision: str, accelerator_class: str) -> pods.Failure | None:
    """Return a failure that would repeat of a revision that never served on a class, if there is one.

    Those of the store, of a Secret or of one of several nodes are not the revision's.
    """
    mine = [
        pod
        for pod in pods.serving_pods(facts.pods, revision)
        if pod.label(CLASS) == accelerator_class
    ]
    before = find_serving(facts)
    if any(pod.ready for pod in mine) or (before and before.last_complete == revision):
        return None
    return unready(facts, (pod for pod in mine if not _is_of_others(facts, pod))).lasting


def _is_of_others(facts: Facts, pod: PodView) -> bool:
    failure = failure_of(facts, pod)
    return failure is not None and (
        _is_excused(facts, pod, failure) or _is_not_of_revision(failure)
    )


def _is_not_of_revision(failure: pods.Failure) -> bool:
    """Return whether a failure is not the revision's; a damaged artefact is not where it is fetched from the store."""
    return failure.reason.facets.fault in _OF_OTHERS or pods.misses_artefact(failure)


def pods_of(pods: Collection[PodView], revision: str) -> list[PodView]:
    """Return the pods of a revision that serve, or are to serve, ready or not."""
    return [
        pod
        for pod in pods
        if pod.label(REVISION) == revision
        and pod.label(COMPONENT) in (SERVE, CANARY)
        and not pod.leaving
    ]


def pod_failures(
    facts: Facts,
    revision: str,
    deployments: Collection[DeploymentView],
    *,
    stable: str = "",
    since: datetime | None = None,
) -> PodFailures:
    """Return what is wrong with a revision's pods, which `deployments` are to run.

    Its crashes `since` then are compared with those of the `stable` revision that it is to replace, if any.
    """
    mine = pods_of(facts.pods, revision)
    failed = [(pod, failure) for pod in mine if (failure := failure_of(facts, pod))]
    seen = unready(facts, mine)
    lasting = _lasting(facts, failed, stable, since)
    if lasting is None and not any(
        _is_not_of_revision(failure) for pod, failure in failed if not pod.ready
    ):
        lasting = _give_up(facts, revision, mine, deployments)
    blocked = (find_wait(facts.nodes, pod, facts.now) for pod in mine if waits_too_long(facts, pod))
    refused = (deployment for deployment in deployments if is_refused_too_long(facts, deployment))
    waits = (find_wait(facts.nodes, pod, facts.now) for pod in mine if not pod.ready)
    refusal = find_refusal(deployments)
    return PodFailures(
        first=seen.first,
        lasting=None if lasting is None else lasting.model_copy(update={"revision": revision}),
        waits=seen.waits or refusal,
        outside=next((wait for wait in waits if wait and wait.reason), refusal),
        blocked=next(filter(None, blocked), None) or find_refusal(refused),
        due=seconds_to_next(facts, mine, deployments),
    )


def failure_of(facts: Facts, pod: PodView) -> pods.Failure | None:
    """Return why a pod does not serve: its own failure, else what its sidecar reports."""
    own = pods.failure(pod)
    return _name_variables(facts, pod, own) if own else refusal_of(facts, pod)


def _name_variables(facts: Facts, pod: PodView, failure: pods.Failure) -> pods.Failure:
    """Return a failure whose cause is not known with the spec's variables of that container, which may be it."""
    revision = facts.kept.get(pod.label(REVISION))
    if revision is None or failure.reason is not Reason.INTERNAL_ERROR:
        return failure
    own = {
        SERVER: ("spec.podTemplate.env", revision.snapshot.pod_template.get("env") or ()),
        SIDECAR: ("spec.serving.sidecar.env", revision.snapshot.sidecar_env),
    }
    field, variables = own.get(failure.stage, ("", ()))
    if not variables:
        return failure
    names = ", ".join(variable["name"] for variable in variables)
    advice = f"if a variable of {field} causes it ({names}), remove that; otherwise {failure.finding.advice}"
    finding = failure.finding.model_copy(update={"remedy": advice})
    return replace(failure, finding=finding)


def refusal_of(facts: Facts, pod: PodView) -> pods.Failure | None:
    """Return the failed check for which a pod's sidecar does not admit it, or would not by now."""
    verdict, promise = facts.verdicts.get(pod.name), promise_of(facts, pod.label(REVISION))
    return refusal(verdict, promise) if verdict and promise else None


def _lasting(
    facts: Facts,
    failed: list[tuple[PodView, pods.Failure]],
    stable: str,
    since: datetime | None,
) -> RolloutFailure | None:
    failed = [(pod, failure) for pod, failure in failed if not _is_not_of_revision(failure)]
    crashed = [item for item in failed if pods.has_failed_of_late(item[0], facts.now)]
    if _is_repeated(facts, crashed) and not _crashes_too(facts.pods, stable, since):
        return _of(crashed[0][1])
    for pod, failure in failed:
        ended = pods.failure(pod) is not None
        if ended and failure.reason.facets.repeats is Repeats.EVERYWHERE:
            return _of(failure)
        if _is_refused_for_good(facts, pod, failure):
            return _of(failure)
    return None


def _is_repeated(facts: Facts, failed: Collection[tuple[PodView, pods.Failure]]) -> bool:
    """Return whether pods failed on several nodes, or one several times of late for more than its node: it is no accident."""
    own = (pod for pod, failure in failed if not _is_excused(facts, pod, failure))
    return len({pod.node for pod, _ in failed}) > 1 or any(pods.crash_intervals(own, facts.now))


def _is_refused_for_good(facts: Facts, pod: PodView, failure: pods.Failure) -> bool:
    """Return whether the pod's sidecar reports what another pod's would report as well.

    A refusal restarts no container and moves no pod, so it does not repeat by itself.
    """
    if pods.failure(pod) or exit_code(failure.reason) is not ExitCode.PERMANENT:
        return False
    return not _is_excused(facts, pod, failure)


def _is_excused(facts: Facts, pod: PodView, failure: pods.Failure) -> bool:
    """Return whether it is a node's failure rather than the revision's: another one of the class may run it."""
    own = (
        device_class
        for device_class in facts.classes
        if device_class.metadata.name == pod.label(CLASS)
    )
    has_other_node = any(
        len(matching(accelerator_class, facts.nodes)) > 1 for accelerator_class in own
    )
    return failure.reason.facets.fault is Fault.NODE and has_other_node


def _crashes_too(pods: Collection[PodView], stable: str, since: datetime | None) -> bool:
    """Return whether a pod of the stable revision crashed as well: requests may be the cause."""
    if not stable or since is None:
        return False
    times = (
        container.last.finished_at
        for pod in pods_of(pods, stable)
        for container in pod.containers
        if container.last and container.last.exit_code != 0 and container.last.finished_at
    )
    return any(datetime.fromisoformat(item) >= since for item in times)


def _give_up(
    facts: Facts,
    revision: str,
    mine: Collection[PodView],
    deployments: Iterable[DeploymentView],
) -> RolloutFailure | None:
    """Return why one of `mine` has not become ready in its time, if one has not, or why none gets that time."""
    if not any(pod.ready for pod in mine) and (evicted := _last_evicted(facts, revision)):
        return _of(evicted)
    asked = {deployment.accelerator_class for deployment in deployments if deployment.desired}
    late = [pod for pod in mine if pod.label(CLASS) in asked and is_late(facts, pod)]
    if not late:
        return None
    failures = (failure_of(facts, pod) for pod in late)
    if failure := next(filter(None, failures), None):
        return _of(failure)
    waits = next(filter(None, (find_wait(facts.nodes, pod, facts.now) for pod in late)), None)
    return RolloutFailure(
        revision=revision,
        reason=StatusReason.ROLLOUT_FAILED,
        message=waits.message
        if waits
        else "its pods did not become ready within rollout.progressTimeout",
    )


def _last_evicted(facts: Facts, revision: str) -> pods.Failure | None:
    """Return why the kubelet evicted a pod of a revision, if it did so several times of late: the time of each next one begins again.

    Pods that were there together count once, as one node may evict them all.
    """
    evicted = [
        pod
        for pod in facts.pods
        if pods.is_evicted(pod)
        and pod.label(REVISION) == revision
        and pod.label(COMPONENT) in (SERVE, CANARY)
        and datetime.fromisoformat(pod.created) + pods.CRASH_WINDOW > facts.now
    ]
    evicted.sort(key=lambda pod: pod.evicted_at or pod.created)
    times, last = 0, ""
    for pod in evicted:
        if pod.created >= last:
            times, last = times + 1, pod.evicted_at or pod.created
    return pods.failure(evicted[-1]) if times >= EVICTIONS else None


def _of(failure: pods.Failure) -> RolloutFailure:
    return RolloutFailure(
        revision="",
        stage=failure.stage,
        reason=failure.reason,
        message=failure.finding.message,
        exit_code=failure.exit_code,
    )


@dataclass(frozen=True)
class Regression:
    """Why all pods of a revision that has served fail."""

    failure: RolloutFailure
    under_requests: bool  # may cause it: only pods that get requests show whether one is better
    interval: timedelta = timedelta()  # between two crashes of a pod
    until: datetime | None = None  # holds as long, unless pods crash again


def regression(facts: Facts, active: str, *, is_tried: bool) -> Regression | None:
    """Return why all pods of the active revision fail, if all do.

    Crashes count only where no pod is ready any more, and then on while another revision `is_tried`, as pods that
    crash again and again are ready in between.
    """
    serving = [pod for pod in pods_of(facts.pods, active) if not pod.is_canary]
    refused = [None if pod.ready else failure_of(facts, pod) for pod in serving]
    intervals = [tuple(pods.crash_intervals([pod], facts.now)) for pod in serving]
    counts = is_tried or not any(pod.ready for pod in serving)
    crashed = [
        pods.failure(pod) if counts and own else None
        for pod, own in zip(serving, intervals, strict=True)
    ]
    for failures, fault in ((refused, Fault.REVISION), (crashed, Fault.LOAD)):
        first = next(filter(None, failures), None)
        if first and all(item and item.reason.facets.fault is fault for item in failures):
            failure = _of(first).model_copy(update={"revision": active, "stage": STAGE})
            if fault is Fault.REVISION:
                return Regression(failure, under_requests=False)
            return Regression(
                failure,
                under_requests=True,
                interval=max(item.ran for own in intervals for item in own),
                until=min(max(item.until for item in own) for own in intervals),
            )
    return None
