"""What the measurements of a canary and of the serving pods say about it."""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

from enginewright_contract.measurements import Measurements

from enginewright.analysis.comparison import Comparison, compare
from enginewright.analysis.result import AnalysisLimits, AnalysisResult, joined
from enginewright.api.inference_model import Rollout
from enginewright.api.inference_model_status import RolloutFailure
from enginewright.api.scalars import duration, share
from enginewright.manifests.labels import CLASS
from enginewright.observed.pods import PodView
from enginewright.plan.rollout.failures import failure_of
from enginewright.plan.types import Facts

_FIRST_RATIO: Final = 2.0  # of golden inferences without requests, which keep caches warm
FIRST_SAMPLES: Final = 20  # golden inferences of each revision before a canary gets requests

_COUNTS: Final = re.compile(r"\d+ of \d+ ")  # would change the status at every poll


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


def compared(
    facts: Facts,
    stable: Iterable[PodView],
    canary: Iterable[PodView],
    *,
    first: bool,
    measured: bool,
) -> AnalysisResult:
    """Return the comparison of ready pods of both revisions; passed if there is nothing to compare with.

    That is so if no serving pod has been ready for `canary.hold` and not all merely start, or if the
    sidecars of all are of a version that measures nothing. `first`: before the canary gets requests;
    `measured`: `are_measured` of both.
    """
    present = [pod for pod in stable if not pod.leaving]
    serving = [pod.name for pod in present if pod.ready]
    if not serving:
        return AnalysisResult("passed" if _are_down(facts, present) else "inconclusive")
    if all(name in facts.measurements and facts.measurements[name] is None for name in serving):
        return AnalysisResult("passed")
    new = [pod for pod in canary if pod.ready]
    if not measured:
        return AnalysisResult("inconclusive")
    ready = [pod for pod in present if pod.ready]
    allowed = limits(facts.model.spec.rollout, first=first)
    return compare_classes(ready, new, facts.measurements, allowed, facts.compare)


def compare_classes(
    stable: Iterable[PodView],
    canary: Iterable[PodView],
    measured: Mapping[str, object],
    allowed: AnalysisLimits,
    by: Comparison = compare,
) -> AnalysisResult:
    """Return the comparison of each class by itself: devices differ, and so do the shares of requests.

    Args:
        stable: pods of the serving revision.
        canary: pods of the new one.
        measured: by name of the pod; what is no `Measurements` is left out.
        allowed: the limits.
        by: compares the pods of one class.
    """
    arms = [_by_class(pods, measured) for pods in (stable, canary)]
    classes = sorted(arms[0].keys() & arms[1].keys())
    if not classes:
        return AnalysisResult("inconclusive")
    return joined(by(arms[0][each], arms[1][each], allowed) for each in classes)


def are_measured(facts: Facts, pods: Iterable[PodView]) -> bool:
    """Return whether the sidecars of the ready pods have been asked, unlike after a restart of the operator."""
    return all(pod.name in facts.measurements for pod in pods if pod.ready and not pod.leaving)


def have_started(facts: Facts, pods: Iterable[PodView]) -> bool:
    """Return whether pods that there were none of can be compared with: one is ready, or they fail."""
    present = [pod for pod in pods if not pod.leaving]
    if any(pod.ready for pod in present):
        return True
    return any(failure_of(facts, pod) for pod in present) and _are_down(facts, present)


def _are_down(facts: Facts, unready: Collection[PodView]) -> bool:
    """Return whether none of the pods has been ready for as long as a canary is held.

    Pods that merely start are not down: they may be ready soon.
    """
    hold = duration(facts.model.spec.rollout.canary.hold)
    changed = (datetime.fromisoformat(pod.ready_changed or pod.created) for pod in unready)
    return any(_cannot_serve(facts, pod) for pod in unready) and all(
        moment + hold <= facts.now for moment in changed
    )


def _cannot_serve(facts: Facts, unready: PodView) -> bool:
    """Return whether a pod has been ready before, has failed, or fits no node."""
    return (
        unready.was_ready or bool(unready.unschedulable) or failure_of(facts, unready) is not None
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
