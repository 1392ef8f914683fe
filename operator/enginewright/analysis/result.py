"""What the comparison of two revisions takes and gives."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from enginewright_contract.report import Finding

State: TypeAlias = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True)
class AnalysisLimits:
    """`spec.rollout.analysis` and `minSamples`, as numbers; a share of 0.1% is 0.001."""

    max_latency_ratio: float  # of the new revision / of the serving one, at least 1
    max_error_share: float  # by which the share of 5xx may exceed that of the serving revision
    max_memory_growth: float  # share of the memory at the start that the serving one does not grow
    max_output_difference: float | None  # relative, in the Euclidean norm, if it is limited
    min_top1_agreement: float | None  # share of rows, if it is limited
    holds_answers: bool  # what exceeds these two waits for a user, instead of failing
    min_samples: int  # latency measurements of each revision, unless fewer decide


@dataclass(frozen=True)
class Figure:
    """One comparison, for people."""

    name: str  # such as "latency of golden sample 'min'"
    unit: Literal["seconds", "share", "difference"]  # of the values
    stable: float | None  # of the serving revision, if measured
    canary: float | None  # of the new revision
    ratio: float | None  # canary / stable, as estimated, of what is a ratio
    limit: float | None  # of the ratio, or of the excess over `stable`, if there is one
    stable_samples: int
    canary_samples: int
    state: State


@dataclass(frozen=True)
class AnalysisResult:
    """Result of all comparisons, or of one kind."""

    state: State
    findings: tuple[Finding, ...] = ()  # of "failed"
    waits_for: str = ""  # of "inconclusive", such as "latency: 40 of 100 measurements of ..."
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()  # what was left out, and why
    basis: str = ""  # of "passed": what was compared, such as "latency of 200 requests of ..."
    answers: tuple[
        str, ...
    ] = ()  # by how much they differ, such as "output 'y' differs by up to 0.3"
    holds: tuple[str, ...] = ()  # why a user must decide


def join_results(parts: Iterable[AnalysisResult]) -> AnalysisResult:
    """Return the parts as one: any failure fails, and otherwise anything undecided waits."""
    parts = tuple(parts)
    findings = tuple(finding for part in parts for finding in part.findings)
    waits_for = "; ".join(part.waits_for for part in parts if part.waits_for)
    figures = tuple(figure for part in parts for figure in part.figures)
    notes = _once(note for part in parts for note in part.notes)
    state: State = "failed" if findings else "inconclusive" if waits_for else "passed"
    return AnalysisResult(
        state,
        findings=findings,
        waits_for="" if findings else waits_for,
        figures=figures,
        notes=notes,
        basis="" if findings else "; ".join(_once(part.basis for part in parts)),
        answers=_once(text for part in parts for text in part.answers),
        holds=_once(text for part in parts for text in part.holds),
    )


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, texts)))
