"""How a canary's answers to requests that the serving revision has answered differ from its answers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from enginewright_contract.measurements import Measurements, ShadowComparison, ShadowOutput
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

from enginewright.analysis.answers import OutputDifference
from enginewright.analysis.result import AnalysisLimits, AnalysisResult, Figure
from enginewright.analysis.shares import MAX_REJECTED, Share, exceeds, share_figure


def compare_shadow(
    stable: Sequence[Measurements], canary: Sequence[Measurements], limits: AnalysisLimits
) -> AnalysisResult:
    """Report the differences of each output, of which the largest fails above the limit if there is one.

    What cannot be compared fails too where a limit is set. The serving revision has answered every
    request, so it counts as failing none of as many. Nothing waits for requests, because there may be none.
    """
    revisions = {pod.revision for pod in canary}
    shadows = [pod.shadow for pod in stable if pod.shadow and pod.shadow.revision in revisions]
    if not any(shadow.compared or shadow.failed or shadow.rejected for shadow in shadows):
        return AnalysisResult("passed")
    limit = limits.max_output_difference
    shares = [*_judge_refusals(shadows, limits)]
    outputs = _by_name(shadows)
    differences = [_difference(name, output) for name, output in outputs.items()]
    findings = (
        *(finding for _, finding in shares if finding),
        *(
            finding
            for output_difference in differences
            for finding in output_difference.findings(limit)
        ),
    )
    figures = [figure for figure, _ in shares]
    for difference, row in zip(differences, outputs.values(), strict=True):
        figures += [difference.figure(limit), *_means(difference.name, row)]
    return AnalysisResult(
        "failed" if findings else "passed",
        findings=findings,
        figures=tuple(figures),
        notes=tuple(
            note for output_difference in differences for note in output_difference.notes(limit)
        ),
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
        name=f"output {name!r} for requests",
        largest=max(output.worst or 0.0 for output in outputs),
        answers=sum(output.answers for output in outputs),
        resized=sum(output.resized for output in outputs),
        fault="in an answer its type or size differs, it is not numeric, or not finite"
        if incomparable
        else "",
    )


def _means(label: str, outputs: Sequence[ShadowOutput]) -> Iterable[Figure]:
    yield _mean(f"mean of {label}", "difference", outputs, lambda output: output.mean)
    if any(output.top1 is not None for output in outputs):
        yield _mean(f"top-1 agreement of {label}", "share", outputs, lambda output: output.top1)


def _mean(
    name: str,
    unit: Literal["difference", "share"],
    outputs: Sequence[ShadowOutput],
    figure: Callable[[ShadowOutput], float | None],
) -> Figure:
    """Return the mean over the pods, which is only reported."""
    means = [
        (value, max(0, output.answers - output.resized))
        for output in outputs
        if (value := figure(output)) is not None
    ]
    samples = sum(count for _, count in means)
    return Figure(
        name=name,
        unit=unit,
        stable=None,
        canary=sum(value * (count / samples) for value, count in means) if samples else None,
        ratio=None,
        limit=None,
        stable_samples=0,
        canary_samples=samples,
        state="passed",
    )
