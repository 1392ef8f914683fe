"""The decision, read from top to bottom: resolve, prepare, build engines, roll out, tell."""

from datetime import UTC
from math import isfinite
from typing import Any

from enginewright.api.conditions import (
    Condition,
    ConditionType,
    StatusReason,
    merge_conditions,
)
from enginewright.api.inference_model_status import (
    InferenceModelStatus,
    RejectedBackend,
    SourceState,
    Summary,
)
from enginewright.manifests.store_claim import store_claim
from enginewright.plan.conditions import Standing, conditions
from enginewright.plan.engines_wanted import Engines, wanted_engines
from enginewright.plan.obstacle import Obstacle
from enginewright.plan.prepare import Outcome
from enginewright.plan.proofs import Proofs
from enginewright.plan.proven import what_is_proven
from enginewright.plan.refresh import Preparing, prepare_and_refresh
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
        return _carry_out(facts, None, resolved, None, roll_out(facts, None))
    preparing = prepare_and_refresh(facts, resolved)
    target, outcome = preparing.target, preparing.outcome
    engines = wanted_engines(facts, target, outcome.prepared) if outcome.prepared else None
    wanted = (
        wanted_snapshot(facts, target, outcome.prepared, engines.keys)
        if outcome.prepared and engines and engines.complete
        else None
    )
    giving_way = engines.giving_way if engines else {}
    rollout = roll_out(facts, wanted, preparing.source, giving_way)
    return _carry_out(facts, preparing, None, engines, rollout)


def _carry_out(
    facts: Facts,
    preparing: Preparing | None,
    obstacle: Obstacle | None,
    engines: Engines | None,
    rollout: Rollout,
) -> Plan:
    target = preparing.target if preparing else None
    outcome = preparing.outcome if preparing else None
    jobs = [each for each in (outcome, preparing.refresh if preparing else None) if each]
    standing = Standing(
        paused=facts.model.spec.rollout.paused,
        obstacle=obstacle,
        outcome=outcome,
        engines=engines,
        rollout=rollout,
        proofs=what_is_proven(facts, rollout),
    )
    rejected = rejected_backends(facts, target, outcome, engines, rollout)
    source = preparing.source if preparing else facts.model.status.source
    status = _status(facts, target, source, standing, rejected)
    return Plan(
        apply=(
            *_store(facts, outcome),
            *(each for one in jobs for each in one.apply),
            *(engines.apply if engines else ()),
            *rollout.apply,
        ),
        delete=(
            *(each for one in jobs for each in one.delete),
            *(engines.delete if engines else ()),
            *rollout.delete,
        ),
        status=status.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
        ),
        events=_events(facts, status),
        requeue_after=_requeue_after(jobs, engines),
    )


def _requeue_after(jobs: list[Outcome], engines: Engines | None) -> float | None:
    waits = [one.requeue_after for one in jobs if one.requeue_after]
    waits += [each for each in (engines.giving_way.values() if engines else ()) if isfinite(each)]
    return min(waits, default=None)


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
    facts: Facts,
    target: Target | None,
    source: SourceState | None,
    standing: Standing,
    rejected: tuple[RejectedBackend, ...],
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
        source=source,
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
    told += _of_refresh(facts.model.status.source, status.source)
    fallback = _condition(status, ConditionType.FALLBACK_ACTIVE)
    # of a model that is not ready for it, Ready says so already
    is_news = fallback and fallback.status == "True" and _changed(facts.model.status, fallback)
    if fallback and is_news and ready and ready.status == "True":
        told.append(EventIntent("Warning", fallback.reason, fallback.message))
    return tuple(told)


def _of_refresh(before: SourceState | None, now: SourceState | None) -> list[EventIntent]:
    """Say once what came of a refresh that has ended."""
    if before is None or now is None:
        return []
    if now.failure and now.failure != before.failure:
        kept = "what was fetched before is kept"
        message = f"the refresh failed, {kept}: {now.failure.message}"
        return [EventIntent("Warning", now.failure.reason, message)]
    places = [{(each.name, each.uri) for each in one.pins} for one in (before, now)]
    if not now.refresh or now.refresh == before.refresh or places[0] != places[1]:
        return []
    changed = [each.name for each in now.pins if each not in before.pins]
    found = f"{' and '.join(changed)} changed" if changed else "nothing has changed"
    return [EventIntent("Normal", StatusReason.REFRESHED, f"fetched again: {found}")]


def _changed(before: InferenceModelStatus, now: Condition) -> bool:
    known = _condition(before, ConditionType(now.type))
    return known is None or (known.status, known.reason) != (now.status, now.reason)


def _condition(status: InferenceModelStatus, kind: ConditionType) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind), None)
