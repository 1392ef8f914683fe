"""The Events of a model: what has changed for it that its user should see."""

from enginewright.api.conditions import (
    ConditionType,
    StatusReason,
    find_condition,
    has_changed,
)
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import (
    InferenceModelStatus,
    MoveState,
    Prepared,
    RuntimeImages,
    ServingState,
    SourceState,
)
from enginewright.plan.engines.choice import choice_events
from enginewright.plan.history.spec_hash import has_lost, processes_removed
from enginewright.plan.rollout.rollout import RolloutPlan
from enginewright.plan.types import EventIntent, Facts, image_not_pushed

_NORMAL = frozenset(
    {
        StatusReason.PREPARING,
        StatusReason.SHARED_PREPARATION,
        StatusReason.ROLLING_OUT,
        StatusReason.PROGRESSING,
        StatusReason.PROBING_IMAGE,
        StatusReason.BUILDING,
        StatusReason.QUEUED,
        StatusReason.SUSPENDED,
        StatusReason.SCALED_TO_ZERO,
        StatusReason.VERIFYING_CANARY,
        StatusReason.ANALYZING,
        StatusReason.VERIFYING,
    }
)  # reasons of Normal Events, although the model is not ready
_UNTOLD = frozenset({StatusReason.LOOKING_UP})  # seconds, at whose end something is told


def model_events(
    facts: Facts, status: InferenceModelStatus, rollout: RolloutPlan
) -> tuple[EventIntent, ...]:
    """Return the Events of what changes with the new status."""
    return (
        *_of_conditions(facts.model, status),
        *_of_promotion(rollout),
        *_of_removed(facts, status, rollout),
    )


def _of_conditions(model: InferenceModel, status: InferenceModelStatus) -> list[EventIntent]:
    """Return Events when the reason of Ready or FallbackActive changes, a refresh ends, or a route or rollback is refused."""
    events: list[EventIntent] = []
    ready = find_condition(status.conditions, ConditionType.READY)
    is_ready = ready is not None and ready.status == "True"
    old = {condition.type: condition for condition in model.status.conditions}
    if ready and has_changed(old.get(ready.type), ready) and ready.reason not in _UNTOLD:
        normal = is_ready or ready.reason in _NORMAL
        kind = "Normal" if normal else "Warning"
        is_progress = normal and not is_ready
        events.append(EventIntent(kind, ready.reason, ready.message, is_progress))
    events += choice_events(model.status.choices, status.choices)
    events += _of_interim(model.status.serving, status.serving)
    events += _of_refresh(model.status.source, status.source)
    events += _of_move(model.status.images, status.images)
    events += _of_image(model.status.prepared, status.prepared)
    fallback = find_condition(status.conditions, ConditionType.FALLBACK_ACTIVE)
    if fallback and (fallback.status != "True" or not is_ready):  # else Ready reports it
        fallback = None
    route = find_condition(status.conditions, ConditionType.ROUTE_ACCEPTED)
    if route and route.reason != StatusReason.ROUTE_REJECTED:
        route = None
    validated = find_condition(status.conditions, ConditionType.VALIDATED)
    if validated and (validated.status != "False" or not is_ready):  # else Ready reports it
        validated = None
    back = find_condition(status.conditions, ConditionType.ROLLED_BACK)
    if back and (back.status, back.reason) != ("False", StatusReason.ROLLED_BACK_BY_USER):
        back = None
    warnings = (
        condition
        for condition in (fallback, route, validated, back)
        if condition and has_changed(old.get(condition.type), condition)
    )
    return [
        *events,
        *(EventIntent("Warning", warning.reason, warning.message) for warning in warnings),
    ]


def _of_promotion(rollout: RolloutPlan) -> list[EventIntent]:
    brought = rollout.bring_up
    if brought is None or not brought.promoted_for:
        return []
    message = f"revision {brought.revision.name} replaces the serving one: {brought.promoted_for}"
    return [EventIntent("Normal", StatusReason.PROMOTED, message)]


def _of_removed(facts: Facts, now: InferenceModelStatus, rollout: RolloutPlan) -> list[EventIntent]:
    """Return an Event when the spec has lost fields of what it requests, or that keeps its image for them."""
    before = facts.model.status
    # a rollout goes on while it is not known what the spec requests
    requested = rollout.requested or (rollout.target.revision if rollout.target else None)
    removed = processes_removed(facts, now.serving, requested)
    if removed is None:
        return []
    reasons = [status.images.reason if status.images else "" for status in (before, now)]
    waits = reasons[1] == removed.reason != reasons[0]
    return [removed] if waits or has_lost(facts, requested) else []


def _of_interim(before: ServingState | None, now: ServingState | None) -> list[EventIntent]:
    was = before is not None and any(device_class.interim for device_class in before.classes)
    if now is None or not was or any(device_class.interim for device_class in now.classes):
        return []
    backends = ", ".join(dict.fromkeys(device_class.backend for device_class in now.classes))
    message = f"revision {now.revision} serves on {backends} in place of the interim"
    return [EventIntent("Normal", StatusReason.INTERIM_ENDED, message)]


def _of_refresh(before: SourceState | None, now: SourceState | None) -> list[EventIntent]:
    if before is None or now is None:
        return []
    if now.failure and now.failure != before.failure:
        kept = "keeping the content fetched before"
        message = f"the refresh failed, {kept}: {now.failure.sentence}"
        return [EventIntent("Warning", now.failure.reason, message)]
    places = [{(pin.name, pin.uri) for pin in one.pins} for one in (before, now)]
    if not now.refresh or now.refresh == before.refresh or places[0] != places[1]:
        return []
    changed = [pin.name for pin in now.pins if pin not in before.pins]
    result = f"{' and '.join(changed)} changed" if changed else "no change"
    return [EventIntent("Normal", StatusReason.REFRESHED, f"refreshed the source: {result}")]


def _of_move(before: RuntimeImages | None, now: RuntimeImages | None) -> list[EventIntent]:
    if now is not None and now.state is MoveState.MOVING:
        return _of_blocked_move(before, now)
    if now is None or now.state is not MoveState.KEPT:
        return []
    if before is not None and before.state is MoveState.KEPT:
        return []
    edited = [f"AcceleratorClass {used.class_name}" for used in now.classes if used.target]
    edited += [used.name for used in now.settings if used.target]
    kept = now.image if now.target else f"{', '.join(edited)} as it was"
    message = f"keeps {kept}, since it does not run right with the new one: {now.message}"
    return [EventIntent("Warning", StatusReason.IMAGE_KEPT, message)]


def _of_blocked_move(before: RuntimeImages | None, now: RuntimeImages) -> list[EventIntent]:
    """Return an Event when a model gives its turn away, unless its user pauses it."""
    was = before.reason if before and before.state is MoveState.MOVING else ""
    if now.reason in ("", was, StatusReason.SUSPENDED):
        return []
    message = f"gives its turn to move to others until it goes on: {now.message}"
    return [EventIntent("Warning", now.reason, message)]


def _of_image(before: Prepared | None, now: Prepared | None) -> list[EventIntent]:
    failure = now.image_failure if now else ""
    if now is None or not failure or (before and before.image_failure == failure):
        return []
    return [image_not_pushed(f"prepared model {now.key[:12]}", failure)]
