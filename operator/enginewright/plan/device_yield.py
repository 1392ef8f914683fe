"""When serving pods yield their device to the build of the engine that is to replace them.

Where the only device of a class serves, an update would wait for ever. `rollout.strategy: Recreate`
allows downtime, so the class's pods end for as long as the build runs on their device, and for a few
minutes at most where it does not get it. They are counted as asked for all the while: nothing that
follows from a complete rollout follows from their absence.
"""

from datetime import timedelta
from math import inf
from typing import Final

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model_status import EngineReference
from enginewright.api.scalars import duration, whole_second
from enginewright.contract.reasons import Reason
from enginewright.manifests.deployment import GRACE_SECONDS
from enginewright.plan.classes import matching
from enginewright.plan.engine_status import ready_condition
from enginewright.plan.types import Facts

# for the scheduler to use the device, once the pods have ended
YIELD_TIMEOUT: Final = timedelta(minutes=5)


def engine_reference(
    facts: Facts, accelerator: AcceleratorClass, engine: InferenceEngine | None, name: str
) -> EngineReference:
    """Return the reference to a class's engine; it remembers that pods yielded to its build."""
    own = accelerator.metadata.name
    new = EngineReference(class_name=own, name=name)
    rollout = facts.model.spec.rollout
    if engine is None or rollout.strategy != "Recreate" or rollout.paused:
        return new
    known = next(
        (
            each
            for each in facts.model.status.engines
            if (each.class_name, each.name) == (own, name)
        ),
        new,
    )
    if known.freed_at and known.freed_for == engine.status.attempt:
        if seconds_left(facts, known, engine) is not None:
            used = known.device_used or _has_node(engine)
            return known.model_copy(update={"device_used": used})
        if (
            not known.device_used
        ):  # else its pod has failed, and the next one may have the device too
            return known.model_copy(update={"returned": True})
    has_pods = any(each.accelerator_class == own and each.desired for each in facts.deployments)
    if not (has_pods and _is_blocked(engine) and matching(accelerator, facts.nodes)):
        return new
    now = whole_second(facts.now)
    return new.model_copy(update={"freed_at": now, "freed_for": engine.status.attempt})


def seconds_left(
    facts: Facts, engine_reference: EngineReference, engine: InferenceEngine | None
) -> float | None:
    """Return for how long the class's pods stay away from now on; None: they do not.

    What is not in the status yet is not acted upon: pods would come and go while it cannot be written.
    """
    if engine_reference.freed_at is None or not _is_written(facts, engine_reference):
        return None
    if engine is None or not _is_building(engine):
        return None
    if _has_node(engine):
        return inf  # for how long it may run is the build's own limit
    grace = facts.model.spec.serving.termination_grace_period
    ending = duration(grace) if grace else timedelta(seconds=GRACE_SECONDS)
    left = engine_reference.freed_at + ending + YIELD_TIMEOUT - facts.now
    is_sane = left <= ending + YIELD_TIMEOUT  # else the clock has gone back
    return left.total_seconds() if is_sane and left > timedelta() else None


def _is_blocked(engine: InferenceEngine) -> bool:
    ready = ready_condition(engine.status)
    return ready is not None and ready.reason == Reason.CAPACITY_BLOCKED


def _is_written(facts: Facts, engine_reference: EngineReference) -> bool:
    """Return whether the status says that pods yield, whatever else has become known since."""
    unused = {"device_used": False}
    known = [each.model_copy(update=unused) for each in facts.model.status.engines]
    return not engine_reference.returned and engine_reference.model_copy(update=unused) in known


def _has_node(engine: InferenceEngine) -> bool:
    """Return whether the build's pod has a node, and so the device."""
    ready = ready_condition(engine.status)
    # a status that an earlier version wrote has the reason alone, and only where nothing has failed
    return engine.status.placed or (ready is not None and ready.reason == StatusReason.BUILDING)


def _is_building(engine: InferenceEngine) -> bool:
    status = engine.status
    has_failed = status.failure is not None and status.failure.attempts >= status.attempt
    return status.engine is None and (_is_blocked(engine) or not has_failed)
