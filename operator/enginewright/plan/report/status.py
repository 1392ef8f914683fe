"""The complete status of a model, from the results of its plan."""

from datetime import UTC

from enginewright_contract.reasons import Reason, exit_code

from enginewright.api.conditions import merge_conditions
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import (
    ActiveRevision,
    BackendChoice,
    EngineReference,
    InferenceModelStatus,
    ModelSummary,
    Prepared,
    RejectedBackend,
    RolloutFailure,
    RuntimeImages,
    ServingState,
    SourceState,
)
from enginewright.plan.engines.choice import Choice
from enginewright.plan.engines.device_yield import without_yield
from enginewright.plan.engines.wanted import Engines
from enginewright.plan.prepare.prepare import list_prepared
from enginewright.plan.report.conditions import ModelState, conditions
from enginewright.plan.report.rejections import find_failed_choice
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.rollout.pod_counts import read_own_replicas, scale_selector
from enginewright.plan.rollout.proofs import Proofs
from enginewright.plan.rollout.rollout import RolloutPlan, record_applied
from enginewright.plan.types import Facts, Obstacle


def _choose_class(model: InferenceModel, target: Target | None) -> str:
    if model.spec.accelerators:
        return ""
    return target.classes[0].metadata.name if target else model.status.accelerator_class


def model_status(
    facts: Facts,
    target: Target | None,
    source: SourceState | None,
    state: ModelState,
    rejected: tuple[RejectedBackend, ...],
    images: RuntimeImages | None,
    choice: Choice | None,
) -> InferenceModelStatus:
    """Return the status; what an obstacle leaves unknown stays as it is."""
    model, outcome, rollout = facts.model, state.outcome, state.rollout
    # An obstacle does not concern the prepared model: its state is kept.
    prepared = outcome.prepared if outcome else model.status.prepared
    choices, medians = _choices(model, state.engines, choice)
    summary = _summary(model.status.summary, rollout, state.proofs)
    return InferenceModelStatus(
        observed_generation=model.metadata.generation,
        replicas=sum(
            deployment.pods
            for deployment in facts.deployments
            if deployment.accelerator_class not in read_own_replicas(model.spec)
        ),
        selector=scale_selector(model.metadata.name, model.spec),
        accelerator_class=_choose_class(facts.model, target),
        revision=rollout.requested or (rollout.applied if state.prevented else "") or "",
        conditions=merge_conditions(
            model.status.conditions,
            conditions(state),
            generation=model.metadata.generation,
            now=facts.now.astimezone(UTC),
        ),
        preparation=outcome.preparation if outcome else model.status.preparation,
        prepared=prepared,
        source=source,
        engines=(state.engines.references if state.engines else ())
        or _keep_references(model, state.obstacle),
        choices=choices,
        failed_choice=find_failed_choice(facts, state.engines, choice, rollout),
        rejected_backends=rejected,
        serving=_serving(facts, target, rollout.serving, prepared),
        applied=record_applied(facts.model, rollout),
        active=_active(facts, rollout),
        target=rollout.target,
        images=images,
        last_failure=_last_failure(model, state),
        summary=summary.model_copy(update={"choice": medians, "stage": _stage(facts, state)}),
    )


def _stage(facts: Facts, state: ModelState) -> str:
    """Return the stage of the preparation, of the first engine that is not built, or of the new revision."""
    outcome, target = state.outcome, state.rollout.target
    if outcome and outcome.prepared is None:
        return outcome.preparation.stage if outcome.preparation else ""
    for reference in state.engines.references if state.engines else ():
        engine = facts.engines.get(reference.name)
        if engine and engine.status.engine is None and engine.status.stage:
            percent = engine.status.percent
            return engine.status.stage + ("" if percent is None else f" {percent}%")
    if target is None:
        return ""
    return f"{target.phase} {target.step}" if target.step else target.phase


def _choices(
    model: InferenceModel, engines: Engines | None, choice: Choice | None
) -> tuple[tuple[BackendChoice, ...], str]:
    """Return the backends chosen by a benchmark, and its summary: the previous ones while engines are built."""
    if model.spec.build.choose != "Fastest" or (engines and not engines.needed):
        return (), ""
    if choice and not choice.waits:
        return choice.classes, choice.summary
    return model.status.choices, model.status.summary.choice


def _active(facts: Facts, rollout: RolloutPlan) -> ActiveRevision | None:
    if rollout.serving is None:
        return None
    name = rollout.serving.last_complete
    kept = facts.kept.get(name)
    return ActiveRevision(revision=name, signature=kept.signature if kept else None)


def _last_failure(model: InferenceModel, state: ModelState) -> RolloutFailure | None:
    rollout, outcome = state.rollout, state.outcome
    if rollout.rejection:
        return rollout.rejection
    if outcome and (job := outcome.failure) and job.lasting:
        return _of_job(job.stage, job.reason, job.sentence)
    if (engines := state.engines) and (failed := engines.failure) and failed.lasting:
        return _of_job("build", failed.reason, failed.sentence)
    serving = rollout.serving
    done = serving is not None and serving.last_complete == rollout.requested
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
    last_complete = facts.kept.get(serving.last_complete)
    key = last_complete.snapshot.prepared_key if last_complete else serving.prepared_key
    records = list_prepared(facts.model.status)
    models = (item for item in records if item.key == key and item.inputs_hash != lost)
    kept = None if prepared and prepared.key == key else next(models, None)
    return serving.model_copy(update={"prepared": kept})


def _keep_references(
    model: InferenceModel, obstacle: Obstacle | None
) -> tuple[EngineReference, ...]:
    """Return the references while an obstacle hides which engines are needed: builds go on, unless pods need the device."""
    waits = model.spec.rollout.strategy == "Recreate"
    if obstacle is None or (obstacle.stalled and waits):
        return ()
    return tuple(map(without_yield, model.status.engines))


def _summary(before: ModelSummary, rollout: RolloutPlan, proven: Proofs | None) -> ModelSummary:
    serving = rollout.serving
    if serving is None:
        return ModelSummary(revision=f"→ {rollout.requested}" if rollout.requested else "")
    update = rollout.requested is not None and rollout.requested != serving.revision
    backends = (f"{one.backend}{' (interim)' if one.interim else ''}" for one in serving.classes)
    return ModelSummary(
        backend=",".join(dict.fromkeys(backends)),
        placement=proven.placement_summary or before.placement if proven else "",
        classes=", ".join(
            f"{device_class.class_name} {device_class.ready_replicas}/{device_class.replicas}"
            for device_class in serving.classes
        ),
        p99=proven.p99 or before.p99 if proven else "",
        revision=f"{serving.revision} → {rollout.requested}" if update else serving.revision,
    )
