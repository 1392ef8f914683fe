"""When serving pods yield their device to the build of the engine that will replace theirs.

If the only device of a class serves, an update would wait forever. `rollout.strategy: Recreate`
allows downtime, so the class's pods are removed while the build runs on a device that they had, and
for a few minutes if it does not. They still count as desired, so that the rollout is not complete without them.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import inf
from typing import Final

from enginewright_contract.base import LIST_LENGTH
from enginewright_contract.reasons import Reason

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.inference_model_status import EngineReference, InferenceModelStatus
from enginewright.api.scalars import duration, whole_second
from enginewright.manifests.labels import CLASS, COMPONENT, REVISION, SERVE
from enginewright.manifests.pod_options import GRACE_SECONDS
from enginewright.observed.pods import PodView, of_job
from enginewright.plan import pods
from enginewright.plan.engines.status import ready_condition
from enginewright.plan.history.outcomes import serving_keys
from enginewright.plan.resolve.classes import matching
from enginewright.plan.types import Facts

# for the scheduler to use the device, once the pods have terminated
YIELD_TIMEOUT: Final = timedelta(minutes=5)


def engine_reference(
    facts: Facts, accelerator: AcceleratorClass, engine: InferenceEngine | None, name: str
) -> EngineReference:
    """Return the reference to a class's engine, which records whether pods yield or yielded to its build."""
    new = EngineReference(class_name=accelerator.metadata.name, name=name)
    if engine is None or not _may_yield(facts, engine):
        return new
    job = engine.status.job
    recorded = (
        reference
        for reference in facts.model.status.engines
        if (reference.class_name, reference.name, reference.freed_for_job)
        == (new.class_name, name, job)
    )
    before = next(recorded, new)
    if before.freed_at:
        build = _building(facts.engine_pods, name, job)
        if build and build.node and build.node not in before.freed_on:
            return new  # their device is free
        if build and not pods.never_ran(build):
            return before.model_copy(update={"device_used": True})
        if not before.device_used:
            in_time = _seconds_left(facts.model.spec, facts.now, before)
            return before if in_time else new.model_copy(update={"freed_for_job": job})
        before = new  # the build's pod has failed, and pods may yield to the next one too
    freed_on = _nodes(facts, new.class_name)
    is_blocked = _is_blocked(engine) and name not in facts.freed_elsewhere
    if before.freed_for_job or not (freed_on and is_blocked and matching(accelerator, facts.nodes)):
        return before
    now = whole_second(facts.now)
    return new.model_copy(update={"freed_at": now, "freed_for_job": job, "freed_on": freed_on})


def without_yield(reference: EngineReference) -> EngineReference:
    """Return the reference without a yield in progress; an ineffective one stays recorded."""
    ineffective = "" if reference.freed_at else reference.freed_for_job
    return EngineReference(
        class_name=reference.class_name,
        name=reference.name,
        freed_for_job=ineffective,
        lost=reference.lost,
    )


def seconds_left(model: InferenceModel, now: datetime, reference: EngineReference) -> float | None:
    """Return for how long the class's pods yield from now on, if they do.

    A yield that is not in the status yet has no effect: pods would start and stop repeatedly if the
    status cannot be written.
    """
    if reference.freed_at is None or not _is_written(model.status, reference):
        return None
    # the build has its own deadline
    return inf if reference.device_used else _seconds_left(model.spec, now, reference)


def _may_yield(facts: Facts, engine: InferenceEngine) -> bool:
    """Return whether the rollout allows downtime for the build, and pods can start again after it."""
    rollout = facts.model.spec.rollout
    return (
        rollout.strategy == "Recreate"
        and not rollout.paused
        and _is_building(engine)
        and engine.spec.key not in serving_keys(facts)
    )


def _nodes(facts: Facts, accelerator_class: str) -> tuple[str, ...]:
    without = {
        name
        for name, kept in facts.kept.items()
        for one in kept.snapshot.classes
        if one.name == accelerator_class and not one.takes_device
    }
    nodes = {
        pod.node
        for pod in facts.pods
        if pod.label(COMPONENT) == SERVE
        and pod.label(CLASS) == accelerator_class
        and pod.node
        and not pod.finished
        and pod.label(REVISION) not in without
    }
    return tuple(sorted(nodes)[:LIST_LENGTH])


def _building(
    engine_pods: Mapping[str, tuple[PodView, ...]], engine: str, job: str
) -> PodView | None:
    """Return the newest pod of a build's Job, unless it has failed.

    One that has succeeded counts until the engine's status has what it reported.
    """
    mine = of_job(engine_pods.get(engine, ()), job)
    return mine[-1] if mine and mine[-1].phase != "Failed" else None


def _seconds_left(
    spec: InferenceModelSpec, now: datetime, reference: EngineReference
) -> float | None:
    grace = spec.serving.termination_grace_period
    limit = (duration(grace) if grace else timedelta(seconds=GRACE_SECONDS)) + YIELD_TIMEOUT
    left = (reference.freed_at or now - limit) + limit - now
    is_sane = left <= limit  # else the clock was set back
    return left.total_seconds() if is_sane and left > timedelta() else None


def _is_written(status: InferenceModelStatus, reference: EngineReference) -> bool:
    """Return whether the status records this yield, regardless of `device_used`."""
    unused = {"device_used": False}
    recorded = [engine.model_copy(update=unused) for engine in status.engines]
    return reference.model_copy(update=unused) in recorded


def _is_blocked(engine: InferenceEngine) -> bool:
    ready = ready_condition(engine.status)
    return ready is not None and ready.reason == Reason.CAPACITY_BLOCKED


def _is_building(engine: InferenceEngine) -> bool:
    status = engine.status
    has_failed = status.failure is not None and status.failure.attempts >= status.attempt
    return status.engine is None and (_is_blocked(engine) or not has_failed)
