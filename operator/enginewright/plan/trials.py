"""Whether a rejected backend can serve now: tried in separate pods, beside the serving ones.

A node may recover without a change of any object: its driver is loaded, its device is reset. So a
backend that failed because of nodes is tried again after a while and when a node joins, with one pod
per class of the revision that failed, which no Service selects. The serving pods are not affected;
only a trial whose pods became available makes the backend a candidate again.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import RejectedBackend
from enginewright.api.scalars import whole_second
from enginewright.contract.reasons import Reason
from enginewright.manifests.deployment import (
    claim_templates,
    progress_seconds,
    trial_deployment,
)
from enginewright.manifests.labels import COMPONENT, REVISION, SERVE, TRIAL
from enginewright.manifests.snapshot import Revision
from enginewright.plan import pods
from enginewright.plan.classes import matching
from enginewright.plan.replicas import fixed
from enginewright.plan.resolve import Target
from enginewright.plan.revisions import stored_revisions, with_templates
from enginewright.plan.rollout import RolloutPlan
from enginewright.plan.types import EventIntent, Facts, ObjectRef

FIRST: Final = timedelta(hours=1)
LONGEST: Final = timedelta(hours=24)
BETWEEN: Final = timedelta(minutes=10)  # minimum interval, however many nodes join

# Failures caused by a node's devices and drivers rather than by the model.
_OF_NODES: Final = frozenset(
    {
        Reason.PROVIDER_MISSING,
        Reason.PROVIDER_REFUSED,
        Reason.DRIVER_MISSING,
        Reason.DRIVER_TOO_OLD,
        Reason.BACKEND_CRASHED,
    }
)


@dataclass(frozen=True)
class Trials:
    """The rejections that hold from now on, and the pods that try one of them again."""

    rejected: tuple[RejectedBackend, ...]
    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    events: tuple[EventIntent, ...] = ()
    requeue_after: float | None = None  # seconds


def delay(failures: int) -> timedelta:
    """Return how long after its `failures`-th failure (from 1) a backend is tried again."""
    doublings = max(0, min(failures - 1, 10))
    return min(FIRST * (1 << doublings), LONGEST)


def rejected_on_nodes(
    facts: Facts, before: RejectedBackend | None, rejected: RejectedBackend, revision: str
) -> RejectedBackend:
    """Return the rejection after pods of `revision` failed, with the time of its next trial, if any."""
    update: dict[str, object] = {"revision": revision}
    if rejected.reason in _OF_NODES:
        failures = before.failures + 1 if before else 1
        retry_at = whole_second(facts.now) + delay(failures)
        update |= {"failures": failures, "retry_at": retry_at}
    return rejected.model_copy(update=update)


def trials(
    facts: Facts, target: Target | None, rollout: RolloutPlan, rejected: Collection[RejectedBackend]
) -> Trials:
    """Return which trial continues, begins or ends now; one backend of a model at a time."""
    named = {each.revision for each in rejected}
    known = {
        name: with_templates(facts, each)
        for name, each in stored_revisions(facts).items()
        if name in named
    }
    decided: list[RejectedBackend] = []
    events: list[EventIntent] = []
    waits: list[timedelta] = []
    is_free = not any(each.tried_since for each in facts.model.status.rejected_backends)
    for each in rejected:
        revision, due_at = known.get(each.revision), _due_at(facts, target, each)
        if revision is None or each.retry_at is None:  # no trial without both
            decided.append(each.model_copy(update={"retry_at": None, "tried_since": None}))
        elif each.tried_since:
            left = each.tried_since + _window(facts) - facts.now
            result, message = _continue(facts, target, rollout, each, revision, left)
            decided.append(result)
            events += [_event(message)] if message else []
            waits += [left] if result.tried_since else []
        elif due_at and due_at <= facts.now and is_free and _is_settled(facts, rollout):
            is_free = False
            decided.append(each.model_copy(update={"tried_since": whole_second(facts.now)}))
            events.append(_event(f"trying {each.backend} again, which failed with {each.reason}"))
        else:
            decided.append(each)
            waits += [due_at - facts.now] if due_at and due_at > facts.now else []
    apply = tuple(_deployments(facts, known, decided))
    wanted = {each["metadata"]["name"] for each in apply}
    return Trials(
        rejected=tuple(decided),
        apply=apply,
        delete=tuple(
            ObjectRef("apps/v1", "Deployment", each.namespace, each.name)
            for each in facts.trials
            if each.name not in wanted
        ),
        events=tuple(events),
        requeue_after=min((each.total_seconds() for each in waits), default=None),
    )


def _window(facts: Facts) -> timedelta:
    return timedelta(seconds=progress_seconds(facts.model))


def _continue(
    facts: Facts,
    target: Target | None,
    rollout: RolloutPlan,
    tried: RejectedBackend,
    revision: Revision,
    left: timedelta,
) -> tuple[RejectedBackend, str]:
    """Return the rejection after another look at its trial, and an Event's message if that ends."""
    backend = tried.backend
    if _passed(facts, revision):
        # a candidate again, whose failures are kept until it serves
        update = {"inputs_hash": "", "retry_at": None, "tried_since": None}
        return tried.model_copy(update=update), f"{backend} works again and is rolled out"
    if _failed(facts, revision):
        return _again(facts, tried, failures=tried.failures + 1), f"{backend} has failed again"
    if left <= timedelta():
        message = f"no pod of {backend} became available in time: a trial needs a spare device"
        return _again(facts, tried, failures=tried.failures + 1), message
    is_wanted = target is not None and backend in target.passed_over
    is_sane = left <= 2 * _window(facts)  # else the clock was set back
    if is_wanted and is_sane and _is_steady(facts, rollout) and not _lacks_nodes(facts):
        return tried, ""
    message = f"the trial of {backend} was stopped: a rollout has started or needs the nodes"
    return _again(facts, tried, failures=tried.failures), message


def _again(facts: Facts, tried: RejectedBackend, *, failures: int) -> RejectedBackend:
    retry_at = whole_second(facts.now) + delay(failures)
    return tried.model_copy(
        update={"failures": failures, "retry_at": retry_at, "tried_since": None}
    )


def _is_settled(facts: Facts, rollout: RolloutPlan) -> bool:
    progress = rollout.progress
    return progress is not None and progress.complete and _is_steady(facts, rollout)


def _is_steady(facts: Facts, rollout: RolloutPlan) -> bool:
    """Return whether the wanted revision is applied, so that a trial does not compete with an update."""
    return (
        rollout.applied is not None
        and rollout.applied == rollout.wanted
        and rollout.desired > 0
        and not facts.model.spec.rollout.paused
    )


def _due_at(facts: Facts, target: Target | None, rejected: RejectedBackend) -> datetime | None:
    """Return when a backend is tried again; None: never.

    Soon after a node joins, but not for each of many nodes.
    """
    retry_at = rejected.retry_at
    if target is None or retry_at is None or rejected.backend not in target.passed_over:
        return None
    wait = delay(rejected.failures)
    if retry_at <= facts.now or facts.now + wait < retry_at:  # the clock was set back
        return facts.now
    nodes = (node for each in target.classes for node in matching(each, facts.nodes))
    created = (datetime.fromisoformat(node.created) for node in nodes if node.created)
    joined = [each for each in created if each + wait > retry_at]
    return max(min(joined), retry_at - wait + BETWEEN) if joined else retry_at


def _lacks_nodes(facts: Facts) -> bool:
    """Return whether a serving pod is unschedulable, perhaps because of the trial."""
    return any(
        pod.label(COMPONENT) == SERVE and pod.unschedulable and not pod.leaving
        for pod in facts.pods
    )


def _passed(facts: Facts, revision: Revision) -> bool:
    """Return whether a pod of the revision is available on each of its classes."""
    available = {
        each.accelerator_class
        for each in facts.trials
        if each.revision == revision.name and each.is_current and each.available_updated() > 0
    }
    tried = _tried(facts, revision)
    return bool(tried) and available >= tried


def _tried(facts: Facts, revision: Revision) -> set[str]:
    """Return the classes of the revision that have pods: others may have no nodes."""
    without = {name for name, count in fixed(facts.model.spec).items() if count == 0}
    return {each.name for each in revision.snapshot.classes} - without


def _failed(facts: Facts, revision: Revision) -> bool:
    """Return whether the trial's pods failed repeatedly, so that it can end early."""
    labels = {COMPONENT: TRIAL, REVISION: revision.name}.items()
    mine = [pod for pod in facts.pods if labels <= pod.labels.items() and not pod.leaving]
    return pods.is_repeated([pod for pod in mine if not pod.ready and pods.failure(pod)])


def _deployments(
    facts: Facts, known: Mapping[str, Revision], rejected: Iterable[RejectedBackend]
) -> Iterable[dict[str, Any]]:
    """Yield the Deployments of the current trial.

    A trial that is not in the status yet is not started: it would be restarted forever if the status
    cannot be written.
    """
    for each in rejected:
        if each.tried_since and each in facts.model.status.rejected_backends:
            revision = known[each.revision]
            for accelerator in sorted(_tried(facts, revision)):
                yield from claim_templates(facts.model, revision, accelerator)
                yield trial_deployment(
                    facts.model,
                    revision,
                    accelerator,
                    priority_class=facts.config.jobs.priority_class_name,
                )


def _event(message: str) -> EventIntent:
    text = f"beside the serving pods: {message}"
    return EventIntent("Normal", StatusReason.TRYING_BACKEND, text)
