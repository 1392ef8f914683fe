"""Applies a plan for one object, and reports failures in its status and an Event."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from enginewright.api.conditions import ConditionType, StatusReason
from enginewright.controller.events import EventRecorder
from enginewright.controller.execute import Executor, StillTerminating
from enginewright.kube.api import JsonObject
from enginewright.kube.errors import KubeError, Terminating, Transient
from enginewright.plan.types import EventIntent, Plan

# Reason of a 500 on behalf of another component, such as a webhook that is not reachable.
_REFUSED: Final = "InternalError"

_logger = logging.getLogger(__name__)


async def apply_plan(
    plan: Plan, observed: JsonObject, executor: Executor, recorder: EventRecorder
) -> bool:
    """Apply, delete, write the status, record Events; returns whether to requeue soon. Raises KubeError."""
    try:
        changed = await _execute(plan, observed, executor, recorder)
    except StillTerminating as error:
        _logger.info("waiting: %s", error.message)
        await executor.write_status(observed, plan.status)
        return True
    except Terminating as error:
        _logger.info("skipped: %s", error.message)  # the object is deleted with its namespace
        return False
    except Transient as error:
        if error.reason == _REFUSED:
            await _report(plan, observed, executor, recorder, error)
        raise
    except KubeError as error:
        await _report(plan, observed, executor, recorder, error)
        raise
    wrote = await executor.write_status(observed, plan.status)
    for intent in plan.events:
        recorder.record(observed, intent)
    return changed or wrote


async def _report(
    plan: Plan,
    observed: JsonObject,
    executor: Executor,
    recorder: EventRecorder,
    error: KubeError,
) -> None:
    recorder.record(observed, EventIntent("Warning", StatusReason.APPLY_FAILED, error.message))
    await executor.write_status(observed, _with_failure(plan.status, error.message))


async def _execute(
    plan: Plan, observed: JsonObject, executor: Executor, recorder: EventRecorder
) -> bool:
    def on_revert(message: str) -> None:
        recorder.record(observed, EventIntent("Warning", StatusReason.EDIT_UNDONE, message))

    changed = False
    for intent in plan.metadata:
        changed |= await executor.set_metadata(intent)
    for obj in plan.apply:
        changed |= await executor.apply(obj, on_revert)
    for handover in plan.hand_over:
        changed |= await executor.hand_over(handover)
    for ref in plan.delete:
        changed |= await executor.delete(ref)
    return changed


def _with_failure(status: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Return the status of a plan that could not be applied; a model that is Ready nevertheless stays so."""
    conditions = status.get("conditions") or ()
    if any(
        condition["type"] == ConditionType.READY and condition["status"] == "True"
        for condition in conditions
    ):
        return dict(status)
    failure = {"reason": StatusReason.APPLY_FAILED, "message": f"{why}; retrying"}
    waiting = {ConditionType.READY: "False", ConditionType.RECONCILING: "True"}
    return {
        **status,
        "conditions": [
            {**condition, **failure}
            if waiting.get(condition["type"]) == condition["status"]
            else condition
            for condition in conditions
        ],
    }
