"""The plan for one model, from top to bottom: resolve, prepare, build engines, roll out, report."""

from datetime import UTC
from math import isfinite
from typing import Any

from enginewright_contract.reasons import Reason, exit_code

from enginewright.api.conditions import (
    Condition,
    ConditionType,
    StatusReason,
    merge_conditions,
)
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import (
    ActiveRevision,
    BackendChoice,
    EngineReference,
    InferenceModelStatus,
    ModelSummary,
    MoveState,
    Preparation,
    Prepared,
    RejectedBackend,
    RolloutFailure,
    RuntimeImages,
    ServingState,
    SourceState,
)
from enginewright.manifests.snapshot import Snapshot
from enginewright.manifests.store_claim import store_claim
from enginewright.plan.engines.choice import Choice, choice_events
from enginewright.plan.engines.device_yield import without_yield
from enginewright.plan.engines.interim import Interim, interim_of
from enginewright.plan.engines.repair import Repair, references, repair, spared
from enginewright.plan.engines.wanted import Engines, wanted_engines
from enginewright.plan.fleet.image_moves import ImageMove
from enginewright.plan.history.removed_fields import has_lost, processes_removed
from enginewright.plan.prepare.prepare import PrepareOutcome, known_prepared
from enginewright.plan.prepare.refresh import Preparing, prepare_and_refresh
from enginewright.plan.report.conditions import ModelState, conditions
from enginewright.plan.report.current_proofs import current_proofs
from enginewright.plan.report.failed_choice import failed_choice
from enginewright.plan.report.rejections import reasons_for_others, rejected_backends
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.rollout.proofs import Proofs
from enginewright.plan.rollout.replicas import fixed, scale_selector
from enginewright.plan.rollout.revisions import chosen_snapshot
from enginewright.plan.rollout.rollout import RolloutPlan, applied_state, roll_out
from enginewright.plan.rollout.route import route_accepted
from enginewright.plan.store.store_losses import earlier_store_loss
from enginewright.plan.types import EventIntent, Facts, ObjectRef, Obstacle, Plan, image_not_pushed

_NORMAL = frozenset(
    {
        StatusReason.PREPARING,
        StatusReason.SHARED_PREPARATION,
        StatusReason.ROLLING_OUT,
        StatusReason.PROGRESSING,
        StatusReason.PROBING_IMAGE,
        StatusReason.BUILDING,
        StatusReason.LOOKING_UP,
        StatusReason.QUEUED,
        StatusReason.SUSPENDED,
        StatusReason.SCALED_TO_ZERO,
    }
)  # reasons of Normal Events, although the model is not ready


def plan(facts: Facts) -> Plan:
    """Return what to do for one model now."""
    if facts.model.metadata.deletion_timestamp:
        return Plan((), (), {}, (), None)  # its objects are garbage collected
    move = ImageMove.of(facts)
    facts = move.facts
    resolved = resolve(facts)
    if isinstance(resolved, Obstacle):
        return _assemble(move, None, resolved, None, roll_out(facts, None))
    preparing = prepare_and_refresh(facts, resolved)
    target, outcome = preparing.target, preparing.outcome
    prepared = outcome.prepared
    engines = wanted_engines(facts, target, prepared) if prepared else None
    repairing = repair(facts, preparing, engines)
    interim = interim_of(facts, target, prepared, engines) if prepared and engines else None
    wanted, choice = (
        _wanted(facts, target, prepared, engines, interim) if prepared and engines else (None, None)
    )
    yielding = engines.yielding if engines else {}
    # that another backend fails says nothing of the engines'
    others = frozenset() if _is_apart(interim, choice) else reasons_for_others(target)
    signature = prepared.signature if prepared else None
    rollout = roll_out(facts, wanted, preparing.source, yielding, others, signature)
    return _assemble(move, preparing, None, engines, rollout, repairing, interim, choice)


def _wanted(
    facts: Facts, target: Target, prepared: Prepared, engines: Engines, interim: Interim | None
) -> tuple[Snapshot | None, Choice | None]:
    """Return what the spec requests, None: not known yet; and which backends a benchmark has chosen for it."""
    if not engines.complete and (interim is None or interim.why_not):
        return None, None
    wanted, choice = chosen_snapshot(facts, target, prepared, engines, engines.keys, interim)
    return None if choice and choice.waits else wanted, choice


def _is_apart(interim: Interim | None, choice: Choice | None) -> bool:
    """Return whether the wanted revision has another backend than the engines' on some classes."""
    return interim is not None or (choice is not None and bool(choice.chosen or choice.waits))


def _assemble(
    move: ImageMove,
    preparing: Preparing | None,
    obstacle: Obstacle | None,
    engines: Engines | None,
    rollout: RolloutPlan,
    repairing: Repair | None = None,
    interim: Interim | None = None,
    choice: Choice | None = None,
) -> Plan:
    facts = move.facts
    target = preparing.target if preparing else None
    outcome = spared(preparing.outcome, repairing) if preparing else None
    refresh = preparing.refresh if preparing else None
    jobs = [each for each in (outcome, refresh, repairing.outcome if repairing else None) if each]
    built = [each for each in (engines, repairing.engines if repairing else None) if each]
    state = ModelState(
        obstacle=obstacle,
        outcome=outcome,
        engines=engines,
        rollout=rollout,
        proofs=current_proofs(facts, rollout),
        route=route_accepted(facts),
        repair=repairing,
        interim=interim,
        waits=choice.waits if choice else "",
        chooses=choice is not None and bool(choice.chosen),
        store_loss=earlier_store_loss(facts),
    )
    rejected = rejected_backends(
        facts,
        target,
        outcome,
        engines,
        rollout,
        apart=_is_apart(interim, choice),
    )
    source = preparing.source if preparing else facts.model.status.source
    images = move.after(state, rejected)
    status = _status(facts, target, source, state, rejected, images, choice)
    return Plan(
        apply=(
            *_store(facts, outcome),
            *(each for one in jobs for each in one.apply),
            *(each for one in built for each in one.apply),
            *rollout.apply,
        ),
        delete=(
            *(each for one in jobs for each in one.delete),
            *(each for one in built for each in one.delete),
            *rollout.delete,
            *(
                ObjectRef("apps/v1", "Deployment", each.namespace, each.name)
                for each in facts.trials
            ),
        ),
        metadata=rollout.metadata,
        rolled_back=rollout.newly_rejected(facts),
        status=status.manifest(),
        events=(
            *_events(facts, status),
            *_of_promotion(rollout),
            *_of_removed(facts, status, rollout),
        ),
        requeue_after=_requeue_after(jobs, engines, rollout),
        hand_over=rollout.hand_over,
        awaits_turn=any(one.awaits_turn for one in jobs),
    )


def _requeue_after(
    jobs: list[PrepareOutcome], engines: Engines | None, rollout: RolloutPlan
) -> float | None:
    analysis = rollout.bring_up.requeue_after if rollout.bring_up else None
    known = (*(one.requeue_after for one in jobs), analysis)
    waits = [each for each in known if each]
    waits += [each for each in (engines.yielding.values() if engines else ()) if isfinite(each)]
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


def _chosen_class(facts: Facts, target: Target | None) -> str:
    """Return the class chosen for a model that names none."""
    if facts.model.spec.accelerators:
        return ""
    return target.classes[0].metadata.name if target else facts.model.status.accelerator_class


def _status(
    facts: Facts,
    target: Target | None,
    source: SourceState | None,
    state: ModelState,
    rejected: tuple[RejectedBackend, ...],
    images: RuntimeImages | None,
    choice: Choice | None,
) -> InferenceModelStatus:
    model, outcome, rollout = facts.model, state.outcome, state.rollout
    # An obstacle does not concern the prepared model: its state is kept.
    prepared = outcome.prepared if outcome else model.status.prepared
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
            conditions(state),
            generation=model.metadata.generation,
            now=facts.now.astimezone(UTC),
        ),
        preparation=_preparation(model, state),
        prepared=prepared,
        source=source,
        engines=references(state.engines, state.repair) or _named(model, state.obstacle),
        choices=_choices(model, state.engines, choice),
        failed_choice=failed_choice(facts, state.engines, choice, rollout),
        rejected_backends=rejected,
        serving=_serving(facts, target, rollout.serving, prepared),
        applied=applied_state(facts, rollout),
        active=_active(facts, rollout),
        target=rollout.target,
        images=images,
        last_failure=_last_failure(model, state),
        summary=_summary(model.status.summary, rollout, state.proofs).model_copy(
            update={"choice": _choice_summary(model, state.engines, choice)}
        ),
    )


def _choices(
    model: InferenceModel, engines: Engines | None, choice: Choice | None
) -> tuple[BackendChoice, ...]:
    """Return the backends chosen by a benchmark; those before while the next engines are built."""
    if model.spec.build.choose != "Fastest" or (engines and not engines.needed):
        return ()
    return choice.classes if choice and not choice.waits else model.status.choices


def _choice_summary(model: InferenceModel, engines: Engines | None, choice: Choice | None) -> str:
    if model.spec.build.choose != "Fastest" or (engines and not engines.needed):
        return ""
    return choice.summary if choice and not choice.waits else model.status.summary.choice


def _preparation(model: InferenceModel, state: ModelState) -> Preparation | None:
    """Return the record of the attempts: of one that rebuilds what serves, else of what the spec needs."""
    if state.repair and state.repair.outcome.preparation:
        return state.repair.outcome.preparation
    return state.outcome.preparation if state.outcome else model.status.preparation


def _active(facts: Facts, rollout: RolloutPlan) -> ActiveRevision | None:
    if rollout.serving is None:
        return None
    name = rollout.serving.last_complete
    kept = next((each.kept for each in facts.revisions if each.revision == name), None)
    return ActiveRevision(revision=name, signature=kept.signature if kept else None)


def _last_failure(model: InferenceModel, state: ModelState) -> RolloutFailure | None:
    """Return why the last new revision failed, until one has been rolled out."""
    rollout, outcome = state.rollout, state.outcome
    if rollout.rejection:
        return rollout.rejection
    if outcome and (job := outcome.failure) and job.lasting:
        return _of_job(job.stage, job.reason, job.sentence)
    if (engines := state.engines) and (failed := engines.failure) and failed.lasting:
        return _of_job("build", failed.reason, failed.sentence)
    serving = rollout.serving
    done = serving is not None and serving.last_complete == rollout.wanted
    return None if done else model.status.last_failure


def _of_job(stage: str, reason: str, message: str) -> RolloutFailure:
    code = exit_code(Reason(reason)) if reason in set(Reason) else 0
    return RolloutFailure(revision="", stage=stage, reason=reason, message=message, exit_code=code)


def _serving(
    facts: Facts,
    target: Target | None,
    serving: ServingState | None,
    prepared: Prepared | None,
) -> ServingState | None:
    """Keep the artefact of the last complete revision while `prepared` is another one, or None."""
    if serving is None:
        return None
    # an artefact that is recorded and needed, but not prepared, was lost
    lost = target.artifact_hash if target and prepared is None else ""
    snapshots = {each.revision: each.kept.snapshot for each in facts.revisions if each.kept}
    last_complete = snapshots.get(serving.last_complete)
    key = last_complete.prepared_key if last_complete else serving.prepared_key
    known = next(
        (
            each
            for each in known_prepared(facts.model.status)
            if each.key == key and each.inputs_hash != lost
        ),
        None,
    )
    kept = None if prepared and prepared.key == key else known
    return serving.model_copy(update={"prepared": kept})


def _named(model: InferenceModel, obstacle: Obstacle | None) -> tuple[EngineReference, ...]:
    """Return the references while it is not known which engines the spec needs.

    Builds continue, unless restarted pods might have to wait for the device.
    """
    waits = model.spec.rollout.strategy == "Recreate"
    if obstacle is None or (obstacle.stalled and waits):
        return ()
    paused = model.spec.rollout.paused
    known = map(without_yield, model.status.engines)
    return tuple(each.model_copy(update={"suspended": each.suspended and paused}) for each in known)


def _summary(before: ModelSummary, rollout: RolloutPlan, proven: Proofs | None) -> ModelSummary:
    serving = rollout.serving
    if serving is None:
        return ModelSummary(revision=f"→ {rollout.wanted}" if rollout.wanted else "")
    update = rollout.wanted is not None and rollout.wanted != serving.revision
    return ModelSummary(
        backend=",".join(
            dict.fromkeys(
                f"{each.backend} (interim)" if each.interim else each.backend
                for each in serving.classes
            )
        ),
        placement=proven.placement_summary or before.placement if proven else "",
        classes=", ".join(
            f"{each.class_name} {each.ready_replicas}/{each.replicas}" for each in serving.classes
        ),
        p99=proven.p99 or before.p99 if proven else "",
        revision=f"{serving.revision} → {rollout.wanted}" if update else serving.revision,
    )


def _events(facts: Facts, status: InferenceModelStatus) -> tuple[EventIntent, ...]:
    """Return Events when the reason of Ready or FallbackActive changes, a refresh ends, or a route or rollback is refused."""
    events: list[EventIntent] = []
    ready = _condition(status, ConditionType.READY)
    if ready and _changed(facts.model.status, ready):
        normal = ready.status == "True" or ready.reason in _NORMAL
        events.append(EventIntent("Normal" if normal else "Warning", ready.reason, ready.message))
    events += choice_events(facts.model.status.choices, status.choices)
    events += _of_interim(facts.model.status.serving, status.serving)
    events += _of_refresh(facts.model.status.source, status.source)
    events += _of_move(facts.model.status.images, status.images)
    events += _of_image(facts.model.status.prepared, status.prepared)
    fallback = _condition(status, ConditionType.FALLBACK_ACTIVE)
    # if the model is not ready for this reason, Ready already reports it
    is_news = fallback and fallback.status == "True" and _changed(facts.model.status, fallback)
    if fallback and is_news and ready and ready.status == "True":
        events.append(EventIntent("Warning", fallback.reason, fallback.message))
    route = _condition(status, ConditionType.ROUTE_ACCEPTED)
    is_refused = route and route.reason == StatusReason.ROUTE_REJECTED
    if route and is_refused and _changed(facts.model.status, route):
        events.append(EventIntent("Warning", route.reason, route.message))
    back = _condition(status, ConditionType.ROLLED_BACK)
    is_ignored = back and back.status == "False" and back.reason == StatusReason.ROLLED_BACK_BY_USER
    if back and is_ignored and _changed(facts.model.status, back):
        events.append(EventIntent("Warning", back.reason, back.message))
    return tuple(events)


def _of_promotion(rollout: RolloutPlan) -> list[EventIntent]:
    """Return an Event when a canary's analysis has passed."""
    brought = rollout.bring_up
    if brought is None or not brought.promoted_for:
        return []
    message = f"revision {brought.revision.name} replaces the serving one: {brought.promoted_for}"
    return [EventIntent("Normal", StatusReason.PROMOTED, message)]


def _of_removed(facts: Facts, now: InferenceModelStatus, rollout: RolloutPlan) -> list[EventIntent]:
    """Return an Event when the spec has lost fields of what it requests, or that keeps its image for them."""
    before = facts.model.status
    # a rollout goes on while it is not known what the spec requests
    wanted = rollout.wanted or (rollout.target.revision if rollout.target else None)
    removed = processes_removed(facts, now.serving, wanted)
    if removed is None:
        return []
    reasons = [each.images.reason if each.images else "" for each in (before, now)]
    waits = reasons[1] == removed.reason != reasons[0]
    return [removed] if waits or has_lost(facts, wanted) else []


def _of_interim(before: ServingState | None, now: ServingState | None) -> list[EventIntent]:
    """Return an Event when nothing serves as an interim any more."""
    was = before is not None and any(each.interim for each in before.classes)
    if now is None or not was or any(each.interim for each in now.classes):
        return []
    backends = ", ".join(dict.fromkeys(each.backend for each in now.classes))
    message = f"revision {now.revision} serves on {backends} in place of the interim"
    return [EventIntent("Normal", StatusReason.INTERIM_ENDED, message)]


def _of_refresh(before: SourceState | None, now: SourceState | None) -> list[EventIntent]:
    """Return an Event when a refresh has ended."""
    if before is None or now is None:
        return []
    if now.failure and now.failure != before.failure:
        kept = "keeping the content fetched before"
        message = f"the refresh failed, {kept}: {now.failure.sentence}"
        return [EventIntent("Warning", now.failure.reason, message)]
    places = [{(each.name, each.uri) for each in one.pins} for one in (before, now)]
    if not now.refresh or now.refresh == before.refresh or places[0] != places[1]:
        return []
    changed = [each.name for each in now.pins if each not in before.pins]
    found = f"{' and '.join(changed)} changed" if changed else "no change"
    return [EventIntent("Normal", StatusReason.REFRESHED, f"refreshed the source: {found}")]


def _of_move(before: RuntimeImages | None, now: RuntimeImages | None) -> list[EventIntent]:
    """Return an Event when the model keeps its image because it does not run right with a new one."""
    if now is None or now.state is not MoveState.KEPT:
        return []
    if before is not None and before.state is MoveState.KEPT:
        return []
    message = f"keeps {now.image}, since it does not run right with the new one: {now.message}"
    return [EventIntent("Warning", StatusReason.IMAGE_KEPT, message)]


def _of_image(before: Prepared | None, now: Prepared | None) -> list[EventIntent]:
    """Return an Event when a prepared model's OCI image could not be pushed."""
    if (
        now is None
        or not now.image_failure
        or (before and before.image_failure == now.image_failure)
    ):
        return []
    return [image_not_pushed(f"prepared model {now.key[:12]}", now.image_failure)]


def _changed(before: InferenceModelStatus, now: Condition) -> bool:
    known = _condition(before, ConditionType(now.type))
    return known is None or (known.status, known.reason) != (now.status, now.reason)


def _condition(status: InferenceModelStatus, kind: ConditionType) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind), None)
