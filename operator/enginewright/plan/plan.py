"""The decision, read from top to bottom: resolve, prepare, build engines, roll out, tell."""

from datetime import UTC
from typing import Any

from enginewright.api.conditions import (
    Condition,
    ConditionType,
    StatusReason,
    merge_conditions,
)
from enginewright.api.inference_model_status import InferenceModelStatus, RejectedBackend, Summary
from enginewright.manifests.store_claim import store_claim
from enginewright.plan.conditions import Standing, conditions
from enginewright.plan.engines_wanted import Engines, wanted_engines
from enginewright.plan.obstacle import Obstacle
from enginewright.plan.prepare import Outcome, prepare
from enginewright.plan.proofs import Proofs
from enginewright.plan.proven import what_is_proven
from enginewright.plan.rejections import rejected_backends
from enginewright.plan.replicas import fixed, scale_selector
from enginewright.plan.resolve import Target, resolve
from enginewright.plan.rollout import Rollout, applied_state, roll_out, wanted_snapshot
from enginewright.plan.types import EventIntent, Facts, Plan

_QUIET = frozenset(
    {
        StatusReason.PREPARING,
        StatusReason.ROLLING_OUT,
        StatusReason.PROGRESSING,
        StatusReason.PROBING_IMAGE,
        StatusReason.BUILDING,
        StatusReason.LOOKING_UP,
        StatusReason.QUEUED,
        StatusReason.SUSPENDED,
        StatusReason.SCALED_TO_ZERO,
    }
)  # reasons for not being ready that are nobody's fault


def plan(facts: Facts) -> Plan:
    """Return what is to be done for one model now."""
    if facts.model.metadata.deletion_timestamp:
        return Plan((), (), {}, (), None)  # owner references take down all that is the model's
    resolved = resolve(facts)
    if isinstance(resolved, Obstacle):
        return _carry_out(facts, None, resolved, None, None, roll_out(facts, None))
    outcome = prepare(facts, resolved)
    engines = wanted_engines(facts, resolved, outcome.prepared) if outcome.prepared else None
    wanted = (
        wanted_snapshot(facts, resolved, outcome.prepared, engines.keys)
        if outcome.prepared and engines and engines.complete
        else None
    )
    return _carry_out(facts, resolved, None, outcome, engines, roll_out(facts, wanted))


def _carry_out(
    facts: Facts,
    target: Target | None,
    obstacle: Obstacle | None,
    outcome: Outcome | None,
    engines: Engines | None,
    rollout: Rollout,
) -> Plan:
    standing = Standing(
        paused=facts.model.spec.rollout.paused,
        obstacle=obstacle,
        outcome=outcome,
        engines=engines,
        rollout=rollout,
        proofs=what_is_proven(facts, rollout),
    )
    rejected = rejected_backends(facts, target, outcome, engines, rollout)
    status = _status(facts, target, standing, rejected)
    return Plan(
        apply=(
            *_store(facts, outcome),
            *(outcome.apply if outcome else ()),
            *(engines.apply if engines else ()),
            *rollout.apply,
        ),
        delete=(
            *(outcome.delete if outcome else ()),
            *(engines.delete if engines else ()),
            *rollout.delete,
        ),
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


def _chosen_class(facts: Facts, target: Target | None) -> str:
    """Return the class that serves a model that names none."""
    if facts.model.spec.accelerators:
        return ""
    return target.classes[0].metadata.name if target else facts.model.status.accelerator_class


def _status(
    facts: Facts, target: Target | None, standing: Standing, rejected: tuple[RejectedBackend, ...]
) -> InferenceModelStatus:
    model, outcome, rollout = facts.model, standing.outcome, standing.rollout
    return InferenceModelStatus(
        observed_generation=model.metadata.generation,
        replicas=sum(
            each.pods
            for each in facts.deployments
            if each.accelerator_class not in fixed(model.spec)
        ),
        selector=scale_selector(model.metadata.name, model.spec),
        accelerator_class=_chosen_class(facts, target),
        revision=rollout.wanted or "",
        conditions=merge_conditions(
            model.status.conditions,
            conditions(standing),
            generation=model.metadata.generation,
            now=facts.now.astimezone(UTC),
        ),
        # An obstacle says nothing of the model: what was prepared, or why not, stays known.
        preparation=outcome.preparation if outcome else model.status.preparation,
        prepared=outcome.prepared if outcome else model.status.prepared,
        engines=standing.engines.references if standing.engines else model.status.engines,
        rejected_backends=rejected,
        serving=rollout.serving,
        applied=applied_state(facts, rollout),
        summary=_summary(model.status.summary, rollout, standing.proofs),
    )


def _summary(before: Summary, rollout: Rollout, proven: Proofs | None) -> Summary:
    serving = rollout.serving
    if serving is None:
        return Summary(revision=f"→ {rollout.wanted}" if rollout.wanted else "")
    update = rollout.wanted is not None and rollout.wanted != serving.revision
    return Summary(
        backend=",".join(dict.fromkeys(each.backend for each in serving.classes)),
        placement=proven.placement_summary or before.placement if proven else "",
        classes=", ".join(
            f"{each.class_name} {each.ready_replicas}/{each.replicas}" for each in serving.classes
        ),
        p99=proven.p99 or before.p99 if proven else "",
        revision=f"{serving.revision} → {rollout.wanted}" if update else serving.revision,
    )


def _events(facts: Facts, status: InferenceModelStatus) -> tuple[EventIntent, ...]:
    """Tell once why a model is ready or not, and why it falls back: when the reason changes."""
    told: list[EventIntent] = []
    ready = _condition(status, ConditionType.READY)
    if ready and _changed(facts.model.status, ready):
        good = ready.status == "True" or ready.reason in _QUIET
        told.append(EventIntent("Normal" if good else "Warning", ready.reason, ready.message))
    fallback = _condition(status, ConditionType.FALLBACK_ACTIVE)
    # of a model that is not ready for it, Ready says so already
    is_news = fallback and fallback.status == "True" and _changed(facts.model.status, fallback)
    if fallback and is_news and ready and ready.status == "True":
        told.append(EventIntent("Warning", fallback.reason, fallback.message))
    return tuple(told)


def _changed(before: InferenceModelStatus, now: Condition) -> bool:
    known = _condition(before, ConditionType(now.type))
    return known is None or (known.status, known.reason) != (now.status, now.reason)


def _condition(status: InferenceModelStatus, kind: ConditionType) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind), None)
