"""Describes a rollout from the objects that were read; pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from enginewright.analysis.comparison import compare
from enginewright.analysis.result import AnalysisResult
from enginewright.api.conditions import ConditionType, find_condition
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import TargetPhase
from enginewright.api.scalars import duration
from enginewright.manifests.labels import CANARY, CLASS, REVISION, TRACK
from enginewright.observed.pods import PodView
from enginewright.observed.revisions import RevisionView
from enginewright.plan.prepare.prepare import list_prepared
from enginewright.plan.rollout.canary.analysis import comparisons_of, limits, result_of, step_end
from enginewright.plan.rollout.canary.transitions import COMPARED
from enginewright_contract.measurements import Measurements
from enginewright_contract.reasons import Reason

from enginewright_cli.rollout.reading import KnownModel
from enginewright_cli.rollout.result import (
    BringUpProgress,
    ComparedFigure,
    FailedRevision,
    PastRevision,
    RolloutAnalysis,
    RolloutArm,
    RolloutClass,
    RolloutStatus,
    Verdict,
)

GOING_BACK: Final = "GoingBack"
REJECTED: Final = "Rejected"


def describe(
    current: KnownModel,
    pods: Collection[PodView] | None,
    measured: Mapping[str, Measurements | str],
    now: datetime,
) -> RolloutStatus:
    """Return the state of a model's rollout; `pods` is None if access is forbidden, `measured` by pod, or why not."""
    model = current.model
    status = model.status
    notes = [] if pods is not None else ["you may not read pods"]
    notes += sorted({why for why in measured.values() if isinstance(why, str)})
    notes += _list_unproven(model)
    verdict, reason, message = _verdict(model)
    failure = status.last_failure
    compared = _compare(model, pods or (), measured)
    stable, new = arms(model)
    return RolloutStatus(
        namespace=model.metadata.namespace,
        name=model.metadata.name,
        verdict=verdict,
        reason=reason,
        message=message,
        paused=model.spec.rollout.paused,
        stable=_arm(current, stable, pods) if stable else None,
        new=_arm(current, new, pods) if new else None,
        progress=_progress(model, pods or (), now) if new else None,
        analysis=_show_analysis(compared) if compared else None,
        last_failure=FailedRevision.model_validate(failure.model_dump()) if failure else None,
        history=tuple(map(_past, current.revisions)),
        notes=(*notes, *compared.notes) if compared else tuple(notes),
    )


def arms(model: InferenceModel) -> tuple[str, str]:
    """Return the stable revision and the one that replaces it; empty: there is none."""
    status = model.status
    stable = status.active.revision if status.active else ""
    applied = status.applied.revision if status.applied else ""
    new = status.target.revision if status.target else applied
    return stable, "" if new == stable else new


def to_measure(model: InferenceModel, pods: Collection[PodView]) -> list[PodView]:
    """Return the pods whose measurements are compared while there is a canary."""
    stable, new = arms(model)
    target = model.status.target
    if target is None or target.phase not in COMPARED:
        return []
    return [pod for pod in pods if pod.ready and pod.label(REVISION) in (stable, new)]


def _verdict(model: InferenceModel) -> tuple[Verdict, str, str]:
    conditions = {condition.type: condition for condition in model.status.conditions}
    ready = conditions.get(ConditionType.READY)
    true = {name for name, condition in conditions.items() if condition.status == "True"}
    if ready is None or model.status.observed_generation < model.metadata.generation:
        return "progressing", "", "the operator has not seen the latest spec yet"
    verdict: Verdict = "progressing"
    if ConditionType.ROLLED_BACK in true:
        verdict = "rejected"
    elif ConditionType.STALLED in true:
        verdict = "stalled"
    elif ConditionType.READY in true:
        verdict = "healthy"
    return verdict, ready.reason, ready.message


def _list_unproven(model: InferenceModel) -> list[str]:
    """Return what the golden samples do not prove of what serves, if they leave anything out."""
    parity = find_condition(model.status.conditions, ConditionType.PARITY_VERIFIED)
    if parity is None or parity.reason != Reason.PARITY_UNKNOWN:
        return []
    return [f"{parity.type} is {parity.status}: {parity.message}"]


def _arm(current: KnownModel, revision: str, pods: Collection[PodView] | None) -> RolloutArm:
    kept = next((view.kept for view in current.revisions if view.revision == revision), None)
    if kept is None:
        return RolloutArm(revision=revision)
    snapshot = kept.snapshot
    mine = None if pods is None else [pod for pod in pods if pod.label(REVISION) == revision]
    return RolloutArm(
        revision=revision,
        model_digest=snapshot.model_digest,
        precision=_precision(current.model, snapshot.prepared_key),
        classes=tuple(
            RolloutClass(
                name=device_class.name,
                backend=device_class.backend,
                interim=device_class.interim,
                image=device_class.image,
                pods=_count(mine, device_class.name),
                ready=_count(
                    None if mine is None else [pod for pod in mine if pod.ready], device_class.name
                ),
            )
            for device_class in snapshot.classes
        ),
    )


def _count(pods: Collection[PodView] | None, accelerator_class: str) -> int | None:
    if pods is None:
        return None
    return sum(pod.label(CLASS) == accelerator_class for pod in pods)


def _precision(model: InferenceModel, prepared_key: str) -> str | None:
    matching = (item for item in list_prepared(model.status) if item.key == prepared_key)
    prepared = next(matching, None)
    return None if prepared is None else prepared.precision or "source"


def _progress(model: InferenceModel, pods: Collection[PodView], now: datetime) -> BringUpProgress:
    target = model.status.target
    if target is None:
        applied = model.status.applied
        stays = applied is not None and applied.revision == model.status.revision
        return BringUpProgress(phase=REJECTED if stays else GOING_BACK)
    canary = model.spec.rollout.canary
    left = None
    if target.phase in COMPARED:
        mine = [
            pod
            for pod in pods
            if pod.label(REVISION) == target.revision and pod.label(TRACK) == CANARY
        ]
        end = step_end(target.since, mine, duration(canary.hold))
        left = max(0, int((end - now).total_seconds()))
    return BringUpProgress(
        phase=target.phase,
        step=target.step,
        steps=1 + len(canary.steps),
        since=target.since,
        held_seconds=max(0, int((now - target.since).total_seconds())),
        left_seconds=left,
        reason=target.reason,
        message=target.message,
    )


def _compare(
    model: InferenceModel,
    pods: Collection[PodView],
    measured: Mapping[str, Measurements | str],
) -> AnalysisResult | None:
    """Return the comparison that the operator makes, if there is anything to compare."""
    stable, new = (_find_measured(pods, measured, revision) for revision in arms(model))
    target = model.status.target
    if target is None or not stable or not new:
        return None
    first = target.phase is TargetPhase.VERIFYING
    allowed = limits(model.spec.rollout, first=first)
    return result_of(
        [
            replace(
                comparison, result=compare(comparison.stable, comparison.canary, comparison.limits)
            )
            for comparison in comparisons_of(stable, new, measured, allowed)
        ]
    )


def _show_analysis(result: AnalysisResult) -> RolloutAnalysis:
    return RolloutAnalysis(
        state=result.state,
        message="; ".join(finding.message for finding in result.findings) or result.waits_for,
        figures=tuple(ComparedFigure.model_validate(vars(figure)) for figure in result.figures),
    )


def _find_measured(
    pods: Collection[PodView], measured: Mapping[str, Measurements | str], revision: str
) -> Sequence[PodView]:
    return [
        pod
        for pod in pods
        if pod.label(REVISION) == revision
        and isinstance(reported := measured.get(pod.name), Measurements)
        and reported.revision == revision
    ]


def _past(revision: RevisionView) -> PastRevision:
    outcome, kept = revision.outcome, revision.kept
    return PastRevision(
        revision=revision.revision,
        number=revision.number,
        outcome=outcome.state if outcome else "",
        at=outcome.at if outcome else None,
        reason=outcome.reason if outcome else "",
        message=outcome.message if outcome else "",
        answers=outcome.answers if outcome else "",
        created=revision.created,
        model_digest=kept.snapshot.model_digest if kept else None,
        images=tuple(sorted({device_class.image for device_class in kept.snapshot.classes}))
        if kept
        else (),
    )
