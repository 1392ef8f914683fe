"""One step of a canary: how its measurements compare with those of the serving pods, and how long it lasts."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from enginewright.analysis.result import AnalysisResult
from enginewright.api.inference_model_status import TargetPhase, TargetRevision
from enginewright.api.scalars import duration
from enginewright.manifests.snapshot import Revision
from enginewright.observed.pods import PodView
from enginewright.plan.pods import serving_pods
from enginewright.plan.rollout.canary.comparison import are_measured, compared
from enginewright.plan.rollout.canary.transitions import Stage
from enginewright.plan.types import Facts


@dataclass(frozen=True)
class CanaryAnalysis:
    """What the measurements of a canary and of the serving pods say, or why they do not."""

    result: AnalysisResult
    measured: bool  # the sidecars of all ready pods have been asked
    silent: int  # pods whose sidecars have not responded for five minutes


def analyse(
    facts: Facts,
    stable: Revision | None,
    pods: Collection[PodView],
    before: TargetRevision | None,
) -> CanaryAnalysis:
    """Return the analysis of the canary's `pods`.

    They are compared from when they run until the serving pods are replaced; `before` is None for a
    revision that was not the target until now.
    """
    serving = serving_pods(facts.pods, stable.name) if stable else []
    every = [*pods, *serving]
    measured = are_measured(facts, every)
    result = AnalysisResult("inconclusive")
    if stable is not None and before is not None and any(pod.ready for pod in pods):
        first = before.phase is TargetPhase.VERIFYING
        result = compared(facts, serving, pods, first=first, measured=measured)
    return CanaryAnalysis(
        result=result,
        measured=measured,
        silent=sum(pod.name in facts.silent for pod in every),
    )


def step_end(since: datetime, pods: Iterable[PodView], hold: str) -> datetime:
    """Return when a step that began at `since` may end: once the canary's pods have passed for `hold`."""
    ready = [
        datetime.fromisoformat(pod.ready_changed) for pod in pods if pod.ready and pod.ready_changed
    ]
    return max([since, *ready]) + duration(hold)


def seconds_left(facts: Facts, pods: Iterable[PodView], since: datetime) -> float:
    """Return for how many seconds the canary's `pods` must keep passing until this step may end."""
    hold = facts.model.spec.rollout.canary.hold
    left = step_end(since, pods, hold) - facts.now
    return min(left, duration(hold)).total_seconds()  # the clock may have been set back


def promotion_basis(known: Stage | None, stage: Stage, analysis: AnalysisResult) -> str:
    """Return what a promotion from now on is based on; empty: none is."""
    passes = known is not None and known.phase is TargetPhase.ANALYZING
    if not passes or stage.phase is not TargetPhase.PROMOTING:
        return ""
    return analysis.basis or "no serving pod has measurements to compare with"
