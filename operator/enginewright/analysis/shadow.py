"""How a canary's answers to requests that the serving revision has answered differ from its answers."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from enginewright_contract.measurements import Measurements, ShadowComparison, ShadowOutput
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

from enginewright.analysis.answers import OutputDifference, judge_answers
from enginewright.analysis.result import AnalysisLimits, AnalysisResult, Figure
from enginewright.analysis.shares import MAX_REJECTED, Share, exceeds, share_figure


def compare_shadow(
    stable: Sequence[Measurements], canary: Sequence[Measurements], limits: AnalysisLimits
) -> AnalysisResult:
    """Report the differences of each output, which fail, or wait for a user, beyond the limits if there are any.

    What cannot be compared is beyond them too. The serving revision has answered every
    request, so it counts as failing none of as many. Nothing waits for requests, because there may be none.
    """
    revisions = {pod.revision for pod in canary}
    shadows = [pod.shadow for pod in stable if pod.shadow and pod.shadow.revision in revisions]
    if not any(shadow.compared or shadow.failed or shadow.rejected for shadow in shadows):
        return AnalysisResult("passed")
    shares = [*_judge_refusals(shadows, limits)]
    outputs = _by_name(shadows)
    judged = judge_answers([_difference(name, rows) for name, rows in outputs.items()], limits)
    findings = (*(finding for _, finding in shares if finding), *judged.findings)
    means = (_mean(f"mean of {_label(name)}", rows) for name, rows in outputs.items())
    return replace(
        judged,
        state="failed" if findings else "passed",
        findings=findings,
        figures=(*(figure for figure, _ in shares), *judged.figures, *means),
    )


def _judge_refusals(
    shadows: Sequence[ShadowComparison], limits: AnalysisLimits
) -> Iterable[tuple[Figure, Finding | None]]:
    compared = sum(shadow.compared for shadow in shadows)
    failed, rejected = (
        sum(shadow.failed for shadow in shadows),
        sum(shadow.rejected for shadow in shadows),
    )
    for name, part, excess, reason in (
        ("failed shadow requests", failed, limits.max_error_share, Reason.TOO_MANY_ERRORS),
        ("rejected shadow requests", rejected, MAX_REJECTED, Reason.REQUESTS_REJECTED),
    ):
        ours, theirs = Share(part, compared + part), Share(0, compared + part)
        fails = exceeds([(theirs, ours)], excess)
        figure = share_figure(name, theirs, ours, excess, "failed" if fails else "passed")
        cause = f"{name}: {ours.part} of {ours.whole} that the serving revision has answered"
        yield figure, Finding(reason=reason, cause=cause) if fails else None


def _by_name(shadows: Iterable[ShadowComparison]) -> dict[str, list[ShadowOutput]]:
    by_name: dict[str, list[ShadowOutput]] = {}
    for output in (output for shadow in shadows for output in shadow.outputs):
        by_name.setdefault(output.name, []).append(output)
    return dict(sorted(by_name.items()))


def _difference(name: str, outputs: Sequence[ShadowOutput]) -> OutputDifference:
    incomparable = any(output.incomparable for output in outputs)
    return OutputDifference(
        name=_label(name),
        largest=max(output.worst or 0.0 for output in outputs),
        answers=sum(output.answers for output in outputs),
        resized=sum(output.resized for output in outputs),
        fault="in an answer its type or size differs, it is not numeric, or not finite"
        if incomparable
        else "",
        top1=_average((output.top1, _count(output)) for output in outputs),
    )


def _label(name: str) -> str:
    return f"output {name!r} for requests"


def _count(output: ShadowOutput) -> int:
    return max(0, output.answers - output.resized)


def _average(means: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the mean over the pods, each with as many answers."""
    measured = [(value, count) for value, count in means if value is not None]
    samples = sum(count for _, count in measured)
    return sum(value * (count / samples) for value, count in measured) if samples else None


def _mean(name: str, outputs: Sequence[ShadowOutput]) -> Figure:
    """Return the mean difference over the pods, which is only reported."""
    return Figure(
        name=name,
        unit="difference",
        stable=None,
        canary=_average((output.mean, _count(output)) for output in outputs),
        ratio=None,
        limit=None,
        stable_samples=0,
        canary_samples=sum(_count(output) for output in outputs if output.mean is not None),
        state="passed",
    )
