"""The plan for one model, from top to bottom: resolve, prepare, build engines, roll out, report."""

from math import isfinite
from typing import Any

from enginewright.api.inference_model_status import Prepared, RuntimeImages
from enginewright.manifests.snapshot import Snapshot
from enginewright.manifests.store_claim import store_claim
from enginewright.plan.engines.choice import Choice
from enginewright.plan.engines.interim import Interim, interim_of
from enginewright.plan.engines.wanted import Engines, request_engines
from enginewright.plan.fleet.moves import Move, seconds_to_give_way
from enginewright.plan.history.spec_hash import is_applied_of_spec
from enginewright.plan.prepare.prepare import PrepareOutcome
from enginewright.plan.prepare.refresh import Preparing, prepare_and_refresh
from enginewright.plan.report.conditions import ModelState
from enginewright.plan.report.events import model_events
from enginewright.plan.report.rejections import reasons_for_others, update_rejections
from enginewright.plan.report.status import model_status
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.rollout.proofs import current_proofs
from enginewright.plan.rollout.revisions import choose_snapshot
from enginewright.plan.rollout.rollout import RolloutPlan, roll_out
from enginewright.plan.rollout.route import route_accepted
from enginewright.plan.store.store_losses import earlier_store_loss
from enginewright.plan.types import Facts, ObjectRef, Obstacle, Plan


def plan(facts: Facts) -> Plan:
    """Return what to do for one model now."""
    if facts.model.metadata.deletion_timestamp:
        return Plan((), (), {}, (), None)  # its objects are garbage collected
    move = Move.of(facts)
    facts = move.facts
    resolved = resolve(facts)
    if isinstance(resolved, Obstacle):
        return _assemble(move, None, resolved, None, roll_out(facts, None))
    preparing = prepare_and_refresh(facts, resolved)
    target, outcome = preparing.target, preparing.outcome
    prepared = outcome.prepared
    engines = request_engines(facts, target, prepared) if prepared else None
    interim = interim_of(facts, target, prepared, engines) if prepared and engines else None
    snapshot, choice = (
        _request_snapshot(facts, target, prepared, engines, interim)
        if prepared and engines
        else (None, None)
    )
    yielding = engines.yielding if engines else {}
    # that another backend fails says nothing of the engines'
    others = frozenset() if _is_apart(interim, choice) else reasons_for_others(target)
    signature = prepared.signature if prepared else None
    rollout = roll_out(facts, snapshot, preparing.source, yielding, others, signature)
    return _assemble(move, preparing, None, engines, rollout, interim, choice)


def _request_snapshot(
    facts: Facts, target: Target, prepared: Prepared, engines: Engines, interim: Interim | None
) -> tuple[Snapshot | None, Choice | None]:
    """Return what the spec requests, once that is known, and which backends a benchmark has chosen for it."""
    if not engines.complete and (interim is None or interim.why_not):
        return None, None
    snapshot, choice = choose_snapshot(facts, target, prepared, engines, engines.keys, interim)
    return None if choice and choice.waits else snapshot, choice


def _is_apart(interim: Interim | None, choice: Choice | None) -> bool:
    """Return whether the wanted revision has another backend than the engines' on some classes."""
    return interim is not None or (choice is not None and bool(choice.chosen or choice.waits))


def _assemble(
    move: Move,
    preparing: Preparing | None,
    obstacle: Obstacle | None,
    engines: Engines | None,
    rollout: RolloutPlan,
    interim: Interim | None = None,
    choice: Choice | None = None,
) -> Plan:
    facts = move.facts
    target = preparing.target if preparing else None
    outcome = preparing.outcome if preparing else None
    jobs = [job for job in (outcome, preparing.refresh if preparing else None) if job]
    parts: tuple[PrepareOutcome | Engines | RolloutPlan, ...]
    parts = (*jobs, *filter(None, (engines,)), rollout)
    revision = rollout.serving.revision if rollout.serving else rollout.applied
    state = ModelState(
        obstacle=obstacle,
        outcome=outcome,
        engines=engines,
        rollout=rollout,
        proofs=current_proofs(facts, revision) if revision else None,
        route=route_accepted(facts),
        interim=interim,
        waits=choice.waits if choice else "",
        chooses=choice is not None and bool(choice.chosen),
        store_loss=earlier_store_loss(facts),
        unchanged=is_applied_of_spec(facts),
    )
    is_apart = _is_apart(interim, choice)
    rejected = update_rejections(facts, target, outcome, engines, rollout, apart=is_apart)
    source = preparing.source if preparing else facts.model.status.source
    images = move.after(state, rejected)
    status = model_status(facts, target, source, state, rejected, images, choice)
    trials = (ObjectRef("apps/v1", "Deployment", one.namespace, one.name) for one in facts.trials)
    return Plan(
        apply=(*_store(facts, outcome), *(entry for one in parts for entry in one.apply)),
        delete=(*(ref for one in parts for ref in one.delete), *trials),
        otherwise=rollout.otherwise,
        metadata=rollout.metadata,
        rolled_back=rollout.newly_rejected(facts),
        status=status.manifest(),
        events=model_events(facts, status, rollout),
        requeue_after=_requeue_after(facts, jobs, engines, rollout, images),
        hand_over=rollout.hand_over,
        awaits_turn=any(one.awaits_turn for one in jobs),
        comparisons=rollout.bring_up.comparisons if rollout.bring_up else (),
    )


def _requeue_after(
    facts: Facts,
    jobs: list[PrepareOutcome],
    engines: Engines | None,
    rollout: RolloutPlan,
    images: RuntimeImages | None,
) -> float | None:
    left = seconds_to_give_way(facts, images.waits_since if images else None)
    due = [left if left and left > 0 else None, rollout.progress.due if rollout.progress else None]
    if brought := rollout.bring_up:
        due += [brought.requeue_after, brought.failures.due]
    waits = [value for value in (*(one.requeue_after for one in jobs), *due) if value]
    waits += [value for value in (engines.yielding.values() if engines else ()) if isfinite(value)]
    return min(waits, default=None)


def _store(facts: Facts, outcome: PrepareOutcome | None) -> tuple[dict[str, Any], ...]:
    """Create the namespace's claim before the first Job; an existing one is never changed."""
    config = facts.config.store
    if config.bucket is not None or facts.store is not None or outcome is None:
        return ()
    claim = store_claim(
        facts.model.metadata.namespace,
        config.claim,
        size=config.size,
        access_mode=config.access_mode,
        storage_class=config.storage_class,
    )
    return (claim,)
