"""The decision, read from top to bottom: resolve, prepare, roll out, tell."""

from datetime import UTC
from typing import Any

from enginewright.api.conditions import ConditionType, StatusReason, merge_conditions
from enginewright.api.inference_model_status import InferenceModelStatus, Summary
from enginewright.manifests.labels import serving_selector
from enginewright.manifests.store_claim import store_claim
from enginewright.plan.conditions import conditions
from enginewright.plan.prepare import Outcome, prepare
from enginewright.plan.resolve import Obstacle, resolve
from enginewright.plan.rollout import Rollout, roll_out, wanted_snapshot
from enginewright.plan.types import EventIntent, Facts, Plan

_QUIET = frozenset(
    {
        StatusReason.PREPARING,
        StatusReason.ROLLING_OUT,
        StatusReason.PROGRESSING,
        StatusReason.PROBING_IMAGE,
        StatusReason.SUSPENDED,
        StatusReason.SCALED_TO_ZERO,
    }
)  # reasons for not being ready that are nobody's fault


def plan(facts: Facts) -> Plan:
    """Return what is to be done for one model now."""
    if facts.model.metadata.deletion_timestamp:
        return Plan((), (), {}, (), None)  # owner references take down all that is the model's
    resolved = resolve(facts)
    obstacle = resolved if isinstance(resolved, Obstacle) else None
    outcome = None if isinstance(resolved, Obstacle) else prepare(facts, resolved)
    wanted = (
        wanted_snapshot(facts, resolved, outcome.prepared)
        if outcome and outcome.prepared and not isinstance(resolved, Obstacle)
        else None
    )
    rollout = roll_out(facts, wanted)
    status = _status(facts, obstacle, outcome, rollout)
    return Plan(
        apply=(
            *_store(facts, outcome),
            *(outcome.apply if outcome else ()),
            *rollout.apply,
        ),
        delete=(*(outcome.delete if outcome else ()), *rollout.delete),
        status=status.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
        ),
        events=_events(facts, status),
        requeue_after=outcome.requeue_after if outcome else None,
    )


def _store(facts: Facts, outcome: Outcome | None) -> tuple[dict[str, Any], ...]:
    """Make the namespace's claim before the first Job; an existing one is the administrator's."""
    if facts.store is not None or outcome is None:
        return ()
    config = facts.config.store
    claim = store_claim(
        facts.model.metadata.namespace,
        config.claim,
        size=config.size,
        access_mode=config.access_mode,
        storage_class=config.storage_class,
    )
    return (claim,)


def _status(
    facts: Facts, obstacle: Obstacle | None, outcome: Outcome | None, rollout: Rollout
) -> InferenceModelStatus:
    model = facts.model
    wanted = conditions(
        paused=model.spec.rollout.paused, obstacle=obstacle, outcome=outcome, rollout=rollout
    )
    selector = serving_selector(model.metadata.name)
    return InferenceModelStatus(
        observed_generation=model.metadata.generation,
        replicas=rollout.replicas,
        selector=",".join(f"{key}={value}" for key, value in sorted(selector.items())),
        revision=rollout.wanted or "",
        conditions=merge_conditions(
            model.status.conditions,
            wanted,
            generation=model.metadata.generation,
            now=facts.now.astimezone(UTC),
        ),
        # An obstacle says nothing of the model: what was prepared, or why not, stays known.
        preparation=outcome.preparation if outcome else model.status.preparation,
        prepared=outcome.prepared if outcome else model.status.prepared,
        serving=rollout.serving,
        summary=_summary(rollout),
    )


def _summary(rollout: Rollout) -> Summary:
    serving = rollout.serving
    if serving is None:
        return Summary(revision=f"→ {rollout.wanted}" if rollout.wanted else "")
    update = rollout.wanted is not None and rollout.wanted != serving.revision
    return Summary(
        backend=",".join(dict.fromkeys(each.backend for each in serving.classes)),
        classes=", ".join(
            f"{each.class_name} {each.ready_replicas}/{each.replicas}" for each in serving.classes
        ),
        revision=f"{serving.revision} → {rollout.wanted}" if update else serving.revision,
    )


def _events(facts: Facts, status: InferenceModelStatus) -> tuple[EventIntent, ...]:
    """Tell once why a model is ready or not: when the reason of Ready changes."""
    before = next(
        (each for each in facts.model.status.conditions if each.type == ConditionType.READY), None
    )
    now = next(each for each in status.conditions if each.type == ConditionType.READY)
    if before and (before.status, before.reason) == (now.status, now.reason):
        return ()
    good = now.status == "True" or now.reason in _QUIET
    return (EventIntent("Normal" if good else "Warning", now.reason, now.message),)
