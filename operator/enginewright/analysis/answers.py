"""How much the new revision's answers to the serving revision's golden inputs differ."""

from collections.abc import Sequence

from enginewright.analysis.result import AnalysisLimits, AnalysisResult, Figure, State
from enginewright.contract.measurements import AnswerChange, Measurements
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding


def compare_answers(canary: Sequence[Measurements], limits: AnalysisLimits) -> AnalysisResult:
    """Report the largest difference of each output, which fails above the limit if there is one.

    What cannot be compared, such as an output of another shape, fails too where a limit is set.
    """
    limit = limits.max_output_difference
    changes = [pod.answers for pod in canary if pod.answers]
    failures = [each.failure for each in changes if each.failure]
    largest = _largest(changes)
    figures = tuple(
        output_figure(f"output {name!r}", *largest[name], limit) for name in sorted(largest)
    )
    if limit is None:
        return AnalysisResult("passed", figures=figures)
    causes = [f"answers cannot be compared: {each}" for each in sorted(set(failures))]
    causes += [output_cause(each, limit) for each in figures if each.state == "failed"]
    if causes:
        findings = tuple(Finding(reason=Reason.ANSWERS_CHANGED, cause=each) for each in causes)
        return AnalysisResult("failed", findings=findings, figures=figures)
    if not changes:
        return AnalysisResult(
            "inconclusive", waits_for="answers: a comparison with the serving revision's"
        )
    return AnalysisResult("passed", figures=figures)


def _largest(changes: Sequence[AnswerChange]) -> dict[str, tuple[float | None, int]]:
    """Return each output's largest difference, None if one is not comparable, and the samples."""
    found: dict[str, tuple[float | None, int]] = {}
    for change in changes:
        for output in change.outputs:
            before, samples = found.get(output.name, (0.0, 0))
            unknown = before is None or output.relative is None
            largest = None if unknown else max(before or 0.0, output.relative or 0.0)
            found[output.name] = (largest, samples + change.samples)
    return found


def output_figure(name: str, difference: float | None, samples: int, limit: float | None) -> Figure:
    """Return the largest difference of an output; None: it cannot be compared."""
    within = limit is None or (difference is not None and difference <= limit)
    state: State = "passed" if within else "failed"
    return Figure(
        name=name,
        unit="difference",
        stable=None,
        canary=difference,
        ratio=None,
        limit=limit,
        stable_samples=0,
        canary_samples=samples,
        state=state,
    )


def output_cause(figure: Figure, limit: float) -> str:
    """Return why an output's figure fails."""
    if figure.canary is None:
        return f"{figure.name} cannot be compared: it is not numeric, or its shape differs"
    return (
        f"{figure.name} differs from the serving revision's by {figure.canary:.2g}, limit {limit:g}"
    )
