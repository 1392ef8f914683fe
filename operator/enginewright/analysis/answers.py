"""How much the new revision's answers to the serving revision's golden inputs differ."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from enginewright_contract.measurements import AnswerChange, Measurements, OutputChange
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

from enginewright.analysis.result import AnalysisLimits, AnalysisResult, Figure


@dataclass(frozen=True)
class OutputDifference:
    """How one output differs over all answers."""

    name: str  # for people, such as "output 'y'"
    largest: float  # relative difference
    answers: int
    resized: int = 0  # of `answers`, those in which a size that depends on data differs
    fault: str = ""  # why an answer cannot be compared, if one cannot

    def figure(self, limit: float | None) -> Figure:
        """Return the largest difference, which fails above a limit, as what cannot be compared does."""
        compared = max(0, self.answers - self.resized)
        is_measured = compared > 0 and not self.fault
        within = limit is None or (not self.fault and self.largest <= limit)
        return Figure(
            name=self.name,
            unit="difference",
            stable=None,
            canary=self.largest if is_measured else None,
            ratio=None,
            limit=limit,
            stable_samples=0,
            canary_samples=compared,
            state="passed" if within else "failed",
        )

    def findings(self, limit: float | None) -> Iterable[Finding]:
        """Yield why the figure fails, if it does."""
        if limit is None or self.figure(limit).state == "passed":
            return
        cause = f"{self.name} cannot be compared: {self.fault}"
        if not self.fault:
            cause = (
                f"{self.name} differs from the serving revision's by {self.largest:.2g},"
                f" limit {limit:g}"
            )
        yield Finding(reason=Reason.ANSWERS_CHANGED, cause=cause)

    def notes(self, limit: float | None) -> Iterable[str]:
        """Yield what was left out, and what cannot be compared where no limit makes that fail."""
        if self.fault and limit is None:
            yield f"{self.name} cannot be compared: {self.fault}"
        if self.resized:
            yield (
                f"{self.name} has another size in {self.resized} of {self.answers} answers, which"
                " depends on data: these are not compared"
            )


def compare_answers(canary: Sequence[Measurements], limits: AnalysisLimits) -> AnalysisResult:
    """Report the largest difference of each output, which fails above the limit if there is one.

    What cannot be compared, such as an output of another type, fails too where a limit is set. A size
    that depends on data, such as a number of detections, does not: those answers are left out.
    """
    limit = limits.max_output_difference
    changes = [pod.answers for pod in canary if pod.answers]
    outputs = _outputs(changes)
    figures = tuple(output.figure(limit) for output in outputs)
    notes = tuple(note for output in outputs for note in output.notes(limit))
    failures = sorted({change.failure for change in changes if change.failure})
    causes = [f"answers cannot be compared: {failure}" for failure in failures]
    if limit is None:
        return AnalysisResult("passed", figures=figures, notes=(*causes, *notes))
    findings = (
        *(Finding(reason=Reason.ANSWERS_CHANGED, cause=cause) for cause in causes),
        *(finding for output in outputs for finding in output.findings(limit)),
    )
    if findings:
        return AnalysisResult("failed", findings=findings, figures=figures, notes=notes)
    if not changes:
        waits_for = "answers: a comparison with the serving revision's"
        return AnalysisResult("inconclusive", waits_for=waits_for)
    return AnalysisResult("passed", figures=figures, notes=notes)


def _outputs(changes: Iterable[AnswerChange]) -> list[OutputDifference]:
    """Return the worst of each output over all pods."""
    worst: dict[str, OutputDifference] = {}
    for change in changes:
        for output in change.outputs:
            new = OutputDifference(name=f"output {output.name!r}", largest=0.0, answers=0)
            before = worst.get(output.name, new)
            worst[output.name] = replace(
                before,
                largest=max(before.largest, output.relative or 0.0),
                answers=before.answers + change.samples,
                resized=before.resized + output.resized,
                fault=before.fault or _fault(output, change.samples),
            )
    return [worst[name] for name in sorted(worst)]


def _fault(output: OutputChange, samples: int) -> str:
    """Return why an output cannot be compared, unless it can or a size depends on data in every sample."""
    if output.form:
        return f"it {output.form}"
    if output.nonfinite:
        return "it is NaN or infinite where the serving revision's is not, or the other way round"
    unknown = output.relative is None and output.resized < samples
    return "it differs and is not numeric" if unknown else ""
