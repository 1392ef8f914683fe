"""What the measurements of a canary and of the serving pods say about it, and how long a step of it lasts.

Comparisons are made outside of the plan, as they take seconds: it says which ones it is based on (`Plan.needs`).
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from enginewright_contract.measurements import Measurements
from enginewright_contract.verdict import Verdict

from enginewright.analysis.comparison import RevisionComparison
from enginewright.analysis.result import AnalysisLimits, AnalysisResult, joined
from enginewright.api.inference_model import InferenceModelSpec, Rollout
from enginewright.api.inference_model_status import RolloutFailure, TargetPhase, TargetRevision
from enginewright.api.scalars import duration, share
from enginewright.manifests.labels import CLASS
from enginewright.manifests.snapshot import Revision
from enginewright.observed.pods import PodView
from enginewright.observed.revisions import RevisionView
from enginewright.plan.pods import serving_pods
from enginewright.plan.rollout.canary.transitions import Stage
from enginewright.plan.rollout.failures import failure_of
from enginewright.plan.types import Facts

_FIRST_RATIO: Final = 2.0  # of golden inferences without requests, which keep caches warm
FIRST_SAMPLES: Final = 20  # golden inferences of each revision before a canary gets requests

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
    """Return the analysis of the canary's `pods`.

    They are compared from when they run until the serving pods are replaced; `before` is None for a
    revision that was not the target until now. It is inconclusive while a comparison has yet to be made.
    """
    serving = serving_pods(facts.pods, stable.name) if stable else []
    every = [*pods, *serving]
    measured = are_measured(facts.measurements, every)
    result = AnalysisResult("inconclusive")
    comparisons: tuple[RevisionComparison, ...] = ()
    if stable is not None and before is not None and any(pod.ready for pod in pods):
        first = before.phase is TargetPhase.VERIFYING
        found = _without_comparison(facts, serving, measured=measured)
        comparisons = () if found else _comparisons(facts, serving, pods, first=first)
        result = found or result_of(comparisons)
    return CanaryAnalysis(
        result=result,
        measured=measured,
        silent=sum(pod.name in facts.silent for pod in every),
        comparisons=comparisons,
    )


def _without_comparison(
    facts: Facts, stable: Iterable[PodView], *, measured: bool
) -> AnalysisResult | None:
    """Return the result where nothing is compared; None: pods of both revisions are.

    It has passed if there is nothing to compare with: no serving pod has been ready for `canary.hold` and
    not all merely start, or the sidecars of all are of a version that measures nothing. `measured`:
    `are_measured` of both revisions.
    """
    present = [pod for pod in stable if not pod.leaving]
    serving = [pod.name for pod in present if pod.ready]
    if not serving:
        return AnalysisResult("passed" if _are_down(facts, present) else "inconclusive")
    if all(name in facts.measurements and facts.measurements[name] is None for name in serving):
        return AnalysisResult("passed")
    return None if measured else AnalysisResult("inconclusive")


def _comparisons(
    facts: Facts, stable: Iterable[PodView], canary: Iterable[PodView], *, first: bool
) -> tuple[RevisionComparison, ...]:
    """Return the comparisons of ready pods of both revisions, with the results of those that were made.

    `first`: before the canary gets requests.
    """
    old = [pod for pod in stable if pod.ready and not pod.leaving]
    new = [pod for pod in canary if pod.ready]
    allowed = limits(facts.model.spec.rollout, first=first)
    wanted = comparisons_of(old, new, facts.measurements, allowed)
    return tuple(
        next((made for made in facts.comparisons if made.is_of(each)), each) for each in wanted
    )


def step_end(since: datetime, pods: Iterable[PodView], hold: str) -> datetime:
    """Return when a step that began at `since` may end: once the canary's pods have passed for `hold`."""
    ready = [
        datetime.fromisoformat(pod.ready_changed) for pod in pods if pod.ready and pod.ready_changed
    ]
    return max([since, *ready]) + duration(hold)


def seconds_left(
    spec: InferenceModelSpec, now: datetime, pods: Iterable[PodView], since: datetime
) -> float:
    """Return for how many seconds the canary's `pods` must keep passing until this step may end."""
    hold = spec.rollout.canary.hold
    left = step_end(since, pods, hold) - now
    return min(left, duration(hold)).total_seconds()  # the clock may have been set back


def promotion_basis(known: Stage | None, stage: Stage, analysis: AnalysisResult) -> str:
    """Return what a promotion from now on is based on; empty: none is."""
    passes = known is not None and known.phase is TargetPhase.ANALYZING
    if not passes or stage.phase is not TargetPhase.PROMOTING:
        return ""
    return analysis.basis or "no serving pod has measurements to compare with"


def limits(rollout: Rollout, *, first: bool) -> AnalysisLimits:
    """Return the limits of the spec; `first`: before the canary gets requests."""
    analysis, samples = rollout.analysis, rollout.canary.min_samples
    difference = analysis.max_output_difference
    ratio = float(analysis.max_latency_ratio)
    return AnalysisLimits(
        max_latency_ratio=max(ratio, _FIRST_RATIO) if first else ratio,
        max_error_share=share(analysis.max_error_share) or 0.0,
        max_memory_growth=share(analysis.max_memory_growth) or 0.0,
        max_output_difference=None if difference is None else float(difference),
        min_samples=min(samples, FIRST_SAMPLES) if first else samples,
    )


def comparisons_of(
    stable: Iterable[PodView],
    canary: Iterable[PodView],
    measured: Mapping[str, object],
    allowed: AnalysisLimits,
) -> tuple[RevisionComparison, ...]:
    """Return one comparison of each class that both revisions have: devices differ, and so do the shares of requests.

    Args:
        stable: pods of the serving revision.
        canary: pods of the new one.
        measured: by name of the pod; what is no `Measurements` is left out.
        allowed: the limits.
    """
    old, new = (_by_class(pods, measured) for pods in (stable, canary))
    classes = sorted(old.keys() & new.keys())
    return tuple(
        RevisionComparison(tuple(old[each]), tuple(new[each]), allowed) for each in classes
    )


def result_of(comparisons: Collection[RevisionComparison]) -> AnalysisResult:
    """Return the result of the comparisons together; inconclusive until all are made, or if there are none."""
    results = [each.result for each in comparisons if each.result]
    made = len(results) == len(comparisons) > 0
    return joined(results) if made else AnalysisResult("inconclusive")


def are_measured(measurements: Mapping[str, Measurements | None], pods: Iterable[PodView]) -> bool:
    """Return whether the sidecars of the ready pods have been asked, unlike after a restart of the operator."""
    return all(pod.name in measurements for pod in pods if pod.ready and not pod.leaving)


def have_started(facts: Facts, pods: Iterable[PodView]) -> bool:
    """Return whether pods that there were none of can be compared with: one is ready, or they fail."""
    present = [pod for pod in pods if not pod.leaving]
    if any(pod.ready for pod in present):
        return True
    return any(failure_of(facts.revisions, facts.verdicts, pod) for pod in present) and _are_down(
        facts, present
    )


def _are_down(facts: Facts, unready: Collection[PodView]) -> bool:
    """Return whether none of the pods has been ready for as long as a canary is held.

    Pods that merely start are not down: they may be ready soon.
    """
    hold = duration(facts.model.spec.rollout.canary.hold)
    changed = (datetime.fromisoformat(pod.ready_changed or pod.created) for pod in unready)
    return any(_cannot_serve(facts.revisions, facts.verdicts, pod) for pod in unready) and all(
        moment + hold <= facts.now for moment in changed
    )


def _cannot_serve(
    revisions: Collection[RevisionView], verdicts: Mapping[str, Verdict], unready: PodView
) -> bool:
    """Return whether a pod has been ready before, has failed, or fits no node."""
    return (
        unready.was_ready
        or bool(unready.unschedulable)
        or failure_of(revisions, verdicts, unready) is not None
    )


def failure(revision: str, analysis: AnalysisResult) -> RolloutFailure | None:
    """Return why the comparison rejects a revision; None: it does not."""
    if analysis.state != "failed":
        return None
    first = analysis.findings[0]
    return RolloutFailure(
        revision=revision, stage="analysis", reason=first.reason, message=first.message
    )


def waits_for(analysis: AnalysisResult) -> str:
    """Return what the comparison waits for, without counts; empty: for nothing."""
    return _COUNTS.sub("", analysis.waits_for) if analysis.state == "inconclusive" else ""


def _by_class(
    pods: Iterable[PodView], measured: Mapping[str, object]
) -> dict[str, list[Measurements]]:
    """Return the known measurements by class; a class with pods but none of them has an empty list."""
    found: dict[str, list[Measurements]] = {}
    for pod in pods:
        known = measured.get(pod.name)
        mine = found.setdefault(pod.label(CLASS), [])
        mine += [known] if isinstance(known, Measurements) else []
    return found
