"""The analysis of a canary by its measurements and those of the serving pods, and how long each step lasts.

Comparisons are made outside of the plan, because they take seconds: the plan says which ones it needs (`Plan.needs`).
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from enginewright_contract.measurements import Measurements
from enginewright_contract.reasons import Reason

from enginewright.analysis.comparison import RevisionComparison
from enginewright.analysis.result import AnalysisLimits, AnalysisResult, join_results
from enginewright.api.inference_model import InferenceModelSpec, Rollout
from enginewright.api.inference_model_status import RolloutFailure, TargetPhase, TargetRevision
from enginewright.api.scalars import duration, share
from enginewright.manifests.labels import CLASS
from enginewright.manifests.snapshot import Revision
from enginewright.observed.pods import PodView
from enginewright.plan.pods import serving_pods
from enginewright.plan.rollout.canary.transitions import Stage
from enginewright.plan.rollout.failures import failure_of
from enginewright.plan.types import Facts
from enginewright.plan.waits import Wait, waits_for_node

_FIRST_RATIO: Final = 2.0  # of golden inferences without requests, which keep caches warm
FIRST_SAMPLES: Final = 20  # golden inferences of each revision before a canary gets requests
_SHOWN: Final = 5  # outputs in a message

_COUNTS: Final = re.compile(r"\d+ of \d+ ")  # would change the status at every poll


@dataclass(frozen=True)
class CanaryAnalysis:
    """What the measurements of a canary and of the serving pods say, or why they do not."""

    result: AnalysisResult
    measured: bool  # the sidecars of all ready pods have been asked
    silent: int  # pods whose sidecars have not responded for five minutes
    comparisons: tuple[RevisionComparison, ...] = ()  # that the result is of


def analyse(
    facts: Facts,
    stable: Revision | None,
    pods: Collection[PodView],
    before: TargetRevision | None,
) -> CanaryAnalysis:
    """Return the analysis of the canary's `pods`: inconclusive before comparisons are made, or for a new target."""
    serving = serving_pods(facts.pods, stable.name) if stable else []
    every = [*pods, *serving]
    # unlike after a restart of the operator
    ready = (pod.name for pod in every if pod.ready and not pod.leaving)
    measured = all(name in facts.measurements for name in ready)
    result = None if measured else AnalysisResult("inconclusive")
    comparisons: tuple[RevisionComparison, ...] = ()
    if stable is not None and before is not None and any(pod.ready for pod in pods):
        result = _without_comparison(facts, serving) or result
        if result is None:
            first = before.phase is TargetPhase.VERIFYING
            comparisons = _comparisons(facts, serving, pods, first=first)
    return CanaryAnalysis(
        result=result or result_of(comparisons),
        measured=measured,
        silent=sum(pod.name in facts.silent for pod in every),
        comparisons=comparisons,
    )


def _without_comparison(facts: Facts, stable: Iterable[PodView]) -> AnalysisResult | None:
    """Return the result if there is nothing to compare with.

    It is a pass if no serving pod has been ready for `canary.hold` and not all are starting, or if the sidecars
    of all are of a version that measures nothing.
    """
    present = [pod for pod in stable if not pod.leaving]
    serving = [pod.name for pod in present if pod.ready]
    if not serving:
        return AnalysisResult("passed" if _are_down(facts, present) else "inconclusive")
    if all(name in facts.measurements and facts.measurements[name] is None for name in serving):
        return AnalysisResult("passed")
    return None


def _comparisons(
    facts: Facts, stable: Iterable[PodView], canary: Iterable[PodView], *, first: bool
) -> tuple[RevisionComparison, ...]:
    """Return the comparisons of ready pods of both revisions, `first` or with requests, with the results that were made."""
    old = [pod for pod in stable if pod.ready and not pod.leaving]
    new = [pod for pod in canary if pod.ready]
    allowed = limits(facts.model.spec.rollout, first=first)
    return tuple(
        next((made for made in facts.comparisons if made.is_of(comparison)), comparison)
        for comparison in comparisons_of(old, new, facts.measurements, allowed)
    )


def step_end(since: datetime, pods: Iterable[PodView], hold: timedelta) -> datetime:
    """Return when a step that began at `since` may end: once the canary's pods have passed for `hold`."""
    ready = [
        datetime.fromisoformat(pod.ready_changed) for pod in pods if pod.ready and pod.ready_changed
    ]
    return max([since, *ready]) + hold


def seconds_left(
    spec: InferenceModelSpec,
    now: datetime,
    pods: Iterable[PodView],
    since: datetime,
    *,
    at_least: timedelta = timedelta(),
) -> float:
    """Return for how many seconds the canary's `pods` must keep passing until this step may end."""
    hold = max(duration(spec.rollout.canary.hold), at_least)
    left = step_end(since, pods, hold) - now
    return min(left, hold).total_seconds()  # the clock may have been set back


def promotion_basis(before: Stage | None, stage: Stage, analysis: AnalysisResult) -> str:
    """Return what a promotion from now on is based on, if it is promoted now."""
    passes = before is not None and before.phase is TargetPhase.ANALYZING
    if not passes or stage.phase is not TargetPhase.PROMOTING:
        return ""
    basis = analysis.basis or "no serving pod has measurements to compare with"
    return "; ".join(filter(None, (basis, describe_answers(analysis))))


def describe_answers(analysis: AnalysisResult) -> str:
    """Return by how much the answers differ from the serving revision's, as a sentence, if they were compared."""
    more = len(analysis.answers) - _SHOWN
    shown = "; ".join(analysis.answers[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return f"answers: {shown}" if shown else ""


def wait_for_user(analysis: AnalysisResult) -> Wait | None:
    """Return why a user must decide about the answers of a canary, if so."""
    if not analysis.holds:
        return None
    message = (
        f"{'; '.join(analysis.holds[:_SHOWN])}; rollout.answers is Hold: `enginewright promote` rolls it out,"
        " `enginewright rollback` rejects it"
    )
    return Wait(Reason.ANSWERS_CHANGED, message)


def limits(rollout: Rollout, *, first: bool) -> AnalysisLimits:
    """Return the limits of the spec for the `first` comparisons, before the canary gets requests, or later ones."""
    analysis, samples = rollout.analysis, rollout.canary.min_samples
    is_limited = rollout.answers != "Report"
    difference = analysis.max_output_difference if is_limited else None
    ratio = float(analysis.max_latency_ratio)
    return AnalysisLimits(
        max_latency_ratio=max(ratio, _FIRST_RATIO) if first else ratio,
        max_error_share=share(analysis.max_error_share) or 0.0,
        max_memory_growth=share(analysis.max_memory_growth) or 0.0,
        max_output_difference=None if difference is None else float(difference),
        min_top1_agreement=share(analysis.min_top1_agreement) if is_limited else None,
        holds_answers=rollout.answers == "Hold",
        min_samples=min(samples, FIRST_SAMPLES) if first else samples,
    )


def comparisons_of(
    stable: Iterable[PodView],
    canary: Iterable[PodView],
    measured: Mapping[str, object],
    allowed: AnalysisLimits,
) -> tuple[RevisionComparison, ...]:
    """Return one comparison of each class that both revisions have, as devices and shares of requests differ.

    `measured` is by name of the pod; what is no `Measurements` is left out.
    """
    old, new = (_by_class(pods, measured) for pods in (stable, canary))
    classes = sorted(old.keys() & new.keys())
    return tuple(
        RevisionComparison(tuple(old[device_class]), tuple(new[device_class]), allowed)
        for device_class in classes
    )


def result_of(comparisons: Collection[RevisionComparison]) -> AnalysisResult:
    """Return the result of the comparisons together, inconclusive until all are made, or if there are none."""
    results = [comparison.result for comparison in comparisons if comparison.result]
    made = len(results) == len(comparisons) > 0
    return join_results(results) if made else AnalysisResult("inconclusive")


def have_started(facts: Facts, pods: Iterable[PodView]) -> bool:
    """Return whether pods that have started again can be compared with: one is ready, or they fail."""
    present = [pod for pod in pods if not pod.leaving]
    if any(pod.ready for pod in present):
        return True
    return any(failure_of(facts, pod) for pod in present) and _are_down(facts, present)


def _are_down(facts: Facts, unready: Collection[PodView]) -> bool:
    """Return whether none of the pods has been ready for as long as a canary is held.

    Pods that are starting are not down: one has been ready before, has failed, or fits no node.
    """
    hold = duration(facts.model.spec.rollout.canary.hold)
    changed = (datetime.fromisoformat(pod.ready_changed or pod.created) for pod in unready)
    cannot_serve = any(
        pod.was_ready or waits_for_node(pod) or failure_of(facts, pod) for pod in unready
    )
    return cannot_serve and all(moment + hold <= facts.now for moment in changed)


def failure(revision: str, analysis: AnalysisResult) -> RolloutFailure | None:
    """Return why the comparison rejects a revision, if it does."""
    if analysis.state != "failed":
        return None
    first = analysis.findings[0]
    return RolloutFailure(
        revision=revision, stage="analysis", reason=first.reason, message=first.message
    )


def waits_for(analysis: AnalysisResult) -> str:
    """Return what the comparison waits for, if anything, without counts."""
    return _COUNTS.sub("", analysis.waits_for) if analysis.state == "inconclusive" else ""


def _by_class(
    pods: Iterable[PodView], measured: Mapping[str, object]
) -> dict[str, list[Measurements]]:
    """Return the known measurements by class; a class with pods but none of them has an empty list."""
    by_class: dict[str, list[Measurements]] = {}
    for pod in pods:
        mine = by_class.setdefault(pod.label(CLASS), [])
        if isinstance(measurements := measured.get(pod.name), Measurements):
            mine.append(measurements)
    return by_class
