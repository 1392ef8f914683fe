"""When serving pods give their device to the build of the engine that is to replace them.

Where the only device of a class serves, an update would wait for ever. `rollout.strategy: Recreate`
allows downtime, so the pods end for as long as the build runs: once for each pod of it, and not for
long where that frees nothing.
"""

from datetime import UTC, timedelta
from typing import Final

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model_status import EngineReference
from enginewright.contract.reasons import Reason
from enginewright.plan.engine_status import ready_condition
from enginewright.plan.types import Facts

IN_VAIN: Final = timedelta(minutes=5)  # for pods to end and the scheduler to see it


def reference(
    facts: Facts, accelerator: str, engine: InferenceEngine | None, name: str
) -> EngineReference:
    """Return the reference to a class's engine; it remembers that pods gave way to its build."""
    new = EngineReference(class_name=accelerator, name=name)
    if engine is None or facts.model.spec.rollout.strategy != "Recreate":
        return new
    known = next((each for each in facts.model.status.engines if each.name == name), new)
    if known.freed_at and known.freed_for == engine.status.attempt:
        failure = engine.status.failure
        if not (failure and failure.time and failure.time > known.freed_at):
            return known
    has_pods = any(
        each.accelerator_class == accelerator and each.asked for each in facts.deployments
    )
    if not (has_pods and _is_blocked(engine)):
        return new
    now = facts.now.astimezone(UTC).replace(microsecond=0)
    return new.model_copy(update={"freed_at": now, "freed_for": engine.status.attempt})


def seconds_left(
    facts: Facts, given: EngineReference, engine: InferenceEngine | None
) -> float | None:
    """Return for how long the class's pods give way from now on; None: they do not."""
    if given.freed_at is None or engine is None or not _is_under_way(engine):
        return None
    if not _is_blocked(engine):
        return float("inf")  # it builds
    left = (given.freed_at + IN_VAIN - facts.now).total_seconds()
    return left if left > 0 else None


def _is_blocked(engine: InferenceEngine) -> bool:
    ready = ready_condition(engine.status)
    return ready is not None and ready.reason == Reason.CAPACITY_BLOCKED


def _is_under_way(engine: InferenceEngine) -> bool:
    status = engine.status
    has_failed = status.failure is not None and status.failure.attempts >= status.attempt
    return status.engine is None and (_is_blocked(engine) or not has_failed)
