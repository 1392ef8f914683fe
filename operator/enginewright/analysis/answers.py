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
    top1: float | None = (
        None  # share of rows with the same largest element, of outputs with classes
    )

    def figures(self, limits: AnalysisLimits) -> Iterable[Figure]:
        """Yield the largest difference and the agreement, each of which fails beyond its limit."""
        limit, least = limits.max_output_difference, limits.min_top1_agreement
        compared = max(0, self.answers - self.resized)
        is_measured = compared > 0 and not self.fault
        largest = Figure(
            name=self.name,
            unit="difference",
            stable=None,
            canary=self.largest if is_measured else None,
            ratio=None,
            limit=limit,
            stable_samples=0,
            canary_samples=compared,
            state="failed" if limit is not None and self._differs(limit) else "passed",
        )
        yield largest
        if self.top1 is not None:
            yield replace(
                largest,
                name=f"top-1 agreement of {self.name}",
                unit="share",
                canary=self.top1,
                limit=None,
                state="failed" if least is not None and self.top1 < least else "passed",
            )

    def exceeds(self, limits: AnalysisLimits) -> Iterable[str]:
        """Yield what is beyond a limit, as sentences."""
        limit, least = limits.max_output_difference, limits.min_top1_agreement
        if self.fault and (limit is not None or least is not None):
            yield f"{self.name} cannot be compared: {self.fault}"
            return
        if limit is not None and self._differs(limit):
            yield (
                f"{self.name} differs from the serving revision's by {self.largest:.2g},"
                f" limit {limit:g}"
            )
        if least is not None and self.top1 is not None and self.top1 < least:
            yield (
                f"{self.name} has the serving revision's largest element in {self.top1:.1%} of rows,"
                f" limit {least:.1%}"
            )

    def describe(self) -> str:
        """Return the difference as a sentence that further answers hardly change."""
        if self.fault:
            return f"{self.name} cannot be compared: {self.fault}"
        top1 = "" if self.top1 is None else f", top-1 agreement {self.top1:.0%}"
        size = f"differs by up to {self.largest:.1g}" if self.largest else "is the same"
        return f"{self.name} {size}{top1}"

    def notes(self, limits: AnalysisLimits) -> Iterable[str]:
        """Yield what was left out, and what cannot be compared where no limit makes that fail."""
        if self.fault and not any(self.exceeds(limits)):
            yield self.describe()
        if self.resized:
            yield (
                f"{self.name} has another size in {self.resized} of {self.answers} answers, which"
                " depends on data: these are not compared"
            )

    def _differs(self, limit: float) -> bool:
        return bool(self.fault) or self.largest > limit


def judge_answers(
    outputs: Sequence[OutputDifference], limits: AnalysisLimits, causes: Sequence[str] = ()
) -> AnalysisResult:
    """Return what the differences of answers say; `causes` are why others could not be compared at all."""
    beyond = (*causes, *(text for output in outputs for text in output.exceeds(limits)))
    fails = bool(beyond) and not limits.holds_answers
    return AnalysisResult(
        "failed" if fails else "passed",
        findings=tuple(Finding(reason=Reason.ANSWERS_CHANGED, cause=cause) for cause in beyond)
        if fails
        else (),
        figures=tuple(figure for output in outputs for figure in output.figures(limits)),
        notes=tuple(note for output in outputs for note in output.notes(limits)),
        answers=tuple(output.describe() for output in outputs),
        holds=() if fails else beyond,
    )


def compare_answers(canary: Sequence[Measurements], limits: AnalysisLimits) -> AnalysisResult:
    """Report the differences of each output, which fail, or wait for a user, beyond the limits if there are any.

    What cannot be compared, such as an output of another type, is beyond them too. A size that depends on data, such
    as a number of detections, is not: those answers are left out.
    """
    changes = [pod.answers for pod in canary if pod.answers]
    failures = sorted({change.failure for change in changes if change.failure})
    causes = [f"answers cannot be compared: {failure}" for failure in failures]
    is_limited = limits.max_output_difference is not None or limits.min_top1_agreement is not None
    if is_limited and not changes:
        waits_for = "answers: a comparison with the serving revision's"
        return AnalysisResult("inconclusive", waits_for=waits_for)
    judged = judge_answers(_outputs(changes), limits, causes if is_limited else ())
    return judged if is_limited else replace(judged, notes=(*causes, *judged.notes))


def _outputs(changes: Iterable[AnswerChange]) -> list[OutputDifference]:
    """Return the worst of each output over all pods."""
    worst: dict[str, OutputDifference] = {}
    for change in changes:
        for output in change.outputs:
            new = OutputDifference(name=f"output {output.name!r}", largest=0.0, answers=0)
            before = worst.get(output.name, new)
            agreements = [item for item in (before.top1, output.top1) if item is not None]
            worst[output.name] = replace(
                before,
                largest=max(before.largest, output.relative or 0.0),
                answers=before.answers + change.samples,
                resized=before.resized + output.resized,
                fault=before.fault or _fault(output, change.samples),
                top1=min(agreements, default=None),
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
