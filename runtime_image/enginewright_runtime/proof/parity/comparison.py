"""Compares each output of each sample of two models, and reports mismatches. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from enginewright_contract.manifest import OutputParity, UnjudgedParts, VaryingOutput
from numpy.typing import NDArray
from typing_extensions import override

from enginewright_runtime.proof.parity.measuring import (
    Figures,
    Mismatch,
    fault,
    fault_over_samples,
    form_fault,
    has_numbers,
    largest_of,
    measure,
)
from enginewright_runtime.proof.parity.parts import Parts
from enginewright_runtime.proof.parity.parts_judge import PartsJudge
from enginewright_runtime.proof.parity.tolerances import ROUNDING, Tolerance, Tolerances
from enginewright_runtime.proof.parity.values import dtype_of
from enginewright_runtime.proof.parity.variation import VaryingOutputs

Array = NDArray[Any]
Outputs = Mapping[str, Array]
ComparedWith = Literal["source", "expected", "prepared"]
# Tolerance between two runs of one session: stricter than that of any artefact, so that an output that
# is compared by value does not vary by nearly its tolerance.
_SAME: Final = replace(ROUNDING, outliers=0.0, unequal=0.0, cosine=None, top1=None)
_UNSTABLE: Final = ", and differs between runs, although the source's output does not"
_NOT_RECORDED: Final = (
    ", and differs between runs; whether the source's output does was not recorded by the version"
    " that prepared the artefact: delete it from the store, and it is prepared again"
)


@dataclass(frozen=True, slots=True)
class ParityFailure:
    """One output of one sample that does not agree."""

    output: str
    sample: str
    figure: str  # missing | distribution | part | those of `measuring.Mismatch`
    description: str  # that follows the output's name
    severity: float  # relative size of the error, to find the worst failure

    @override
    def __str__(self) -> str:
        return f"output {self.output!r} of golden sample {self.sample!r} {self.description}"


@dataclass(frozen=True, slots=True)
class ParityVerdict:
    """The result of a comparison."""

    compared_with: ComparedWith
    outputs: tuple[OutputParity, ...]  # that were compared, in the order of the outputs
    failures: tuple[ParityFailure, ...]  # in the order of the samples

    @property
    def agrees(self) -> bool:
        """Whether every output of every sample keeps its tolerance."""
        return not self.failures

    @property
    def compared(self) -> bool:
        """Whether any output was compared, by value or by distribution."""
        return bool(self.outputs)

    @property
    def description(self) -> str | None:
        """The worst failure, for a message, and the number of others."""
        if self.worst is None:
            return None
        more = len(self.failures) - 1
        return f"{self.worst}{f' (and {more} more)' if more else ''}"

    @property
    def worst(self) -> ParityFailure | None:
        """The failure with the largest error."""
        return max(self.failures, key=lambda failure: failure.severity, default=None)

    @property
    def max_abs_error(self) -> float | None:
        """The largest absolute error of any output, if there were numbers."""
        errors = (output.max_abs_error for output in self.outputs)
        return max((error for error in errors if error is not None), default=None)


class Comparison:
    """Compares samples one at a time, so that only one needs to be in memory.

    Outputs are judged as a whole in each sample; over all samples by part (`parts`), and by the share of rows
    that keep their top class.
    """

    def __init__(
        self,
        compared_with: ComparedWith,
        tolerances: Tolerances,
        dtypes: Mapping[str, str],
        scales: Mapping[str, float],
        varying: Iterable[VaryingOutput] | None = (),
        parts: Parts | None = None,
        *,
        as_rounding: bool = True,
    ) -> None:
        """Take the origin of the expected outputs, and the `tolerances` of the judged model.

        `dtypes` are of the outputs as the model declares them (`TensorSpec.dtype`), needed for
        types whose bits NumPy holds as integers: bfloat16 and float8. `scales` are the largest
        expected magnitudes over all samples, where known: errors of INT8 and FP8 are relative to
        them (see `scales_of`). `varying` are outputs that differ between runs of the source, or
        None if that was not recorded: they are compared by distribution if it is known, but not
        with the framework's expected outputs, which are of one run. `parts` are what is expected of
        each part of the outputs; None in artefacts of earlier versions. `as_rounding`: whole outputs may
        be as wrong as rounding makes them, if that is more than the tolerances allow.
        """
        self._compared_with = compared_with
        self._tolerances = tolerances
        self._dtypes = dtypes
        self._scales = scales
        self._varying = VaryingOutputs(varying or (), self._dtypes, self._find_tolerance)
        self._unstable = _NOT_RECORDED if varying is None else _UNSTABLE
        self._as_rounding = as_rounding
        self._parts = PartsJudge(parts or {})
        self._totals: dict[str, _Total] = {}
        self._failures: list[ParityFailure] = []

    def add(
        self,
        sample: str,
        expected: Outputs,
        outputs: Outputs,
        again: Callable[[], Outputs] | None = None,
    ) -> None:
        """Compare the `outputs` of the judged model for one sample with the expected ones.

        Outputs that `expected` lacks are ignored. `again` runs the judged model once more, to judge
        varying outputs and to find out whether an output that differs is unstable; without it, only
        type and shape of varying outputs are compared.
        """
        failures: list[ParityFailure] = []
        varying: dict[str, Array] = {}
        for output, want in expected.items():
            total = self._totals.setdefault(output, _Total())
            have = outputs.get(output)
            if have is not None and output in self._varying:
                varying[output] = want
            elif failed := self._compare(total, sample, output, want, have):
                wrong, severity = failed
                failures.append(
                    ParityFailure(output, sample, wrong.figure, wrong.full_description, severity)
                )
        if again is not None:
            failures = self._mark_unstable(failures, outputs, again)
        self._failures += failures + self._judge_varying(sample, varying, outputs, again)

    @property
    def failure(self) -> ParityFailure | None:
        """The first failure of a whole output, to stop before all samples have run."""
        return next(iter(self._failures), None)

    def verdict(self) -> ParityVerdict:
        """Return the result for the samples compared so far, which should be all: parts are judged over them."""
        return ParityVerdict(
            self._compared_with,
            tuple(
                total.parity(name, self._compared_with, self._find_unjudged(name, total))
                for name, total in self._totals.items()
                if total.compared
            ),
            (*self._failures, *self._judge_over_samples()),
        )

    def _find_unjudged(self, output: str, total: "_Total") -> tuple[UnjudgedParts, ...]:
        return self._parts.find_unjudged(output, total.allowed) if total.allowed else ()

    def _judge_over_samples(self) -> Iterator[ParityFailure]:
        for output, total in self._totals.items():
            if not (allowed := total.allowed):
                continue
            if part := self._parts.find_fault(output, allowed):
                description = part.describe(allowed)
                yield ParityFailure(output, part.sample, "part", description, part.severity)
            if wrong := fault_over_samples([*total.figures.values()], allowed):
                sample, figures = max(total.figures.items(), key=_count_other_classes)
                description, severity = wrong.full_description, _severity(wrong, figures)
                yield ParityFailure(output, sample, wrong.figure, description, severity)

    def _find_tolerance(self, output: str, want: Array) -> Tolerance:
        allowed = self._tolerances.of_output(output, dtype_of(want, self._dtypes.get(output)))
        if self._tolerances.rounding:  # a conversion within a precision rounds nothing
            return allowed
        return self._parts.fit(output, want.ndim, allowed, as_rounding=self._as_rounding)

    def _judge_varying(
        self,
        sample: str,
        expected: Outputs,
        outputs: Outputs,
        again: Callable[[], Outputs] | None,
    ) -> list[ParityFailure]:
        form_only = again is None or self._compared_with == "expected"
        trial = self._varying.trial(sample, expected, form_only=form_only)
        while trial.take(outputs) and again is not None:
            outputs = again()
        for name, runs in trial.runs.items():
            self._totals[name].runs += runs
        return [
            ParityFailure(name, sample, wrong.figure, wrong.full_description, np.inf)
            for name, wrong in trial.faults.items()
        ]

    def _mark_unstable(
        self, failures: list[ParityFailure], outputs: Outputs, again: Callable[[], Outputs]
    ) -> list[ParityFailure]:
        suspects = {
            failure.output: outputs[failure.output]
            for failure in failures
            if failure.output in outputs
        }
        unstable = varying(suspects, again(), self._dtypes) if suspects else ()
        return [
            replace(failure, description=failure.description + self._unstable)
            if failure.output in unstable
            else failure
            for failure in failures
        ]

    def _compare(
        self, total: "_Total", sample: str, output: str, want: Array, have: Array | None
    ) -> tuple[Mismatch, float] | None:
        if have is None:
            return Mismatch("missing", "is missing"), np.inf
        dtype = self._dtypes.get(output)
        total.by_values = total.by_values or has_numbers(want, dtype)
        if differs := form_fault(want, have, dtype):
            return differs, np.inf
        allowed = self._find_tolerance(output, want)
        figures = measure(want, have, allowed, dtype, self._scales.get(output, 0.0))
        if figures.numeric:
            total.figures[sample] = figures
        total.allowed = allowed
        self._parts.add(sample, output, want, have, dtype)
        wrong = fault(figures, allowed)
        return (wrong, _severity(wrong, figures)) if wrong else None


def scales_of(expected: Mapping[str, Outputs], dtypes: Mapping[str, str]) -> dict[str, float]:
    """Return the largest magnitude of each output over all samples."""
    scales: dict[str, float] = {}
    for outputs in expected.values():
        for name, array in outputs.items():
            scales[name] = max(scales.get(name, 0.0), largest_of(array, dtypes.get(name)))
    return scales


def difference(
    want: Array,
    have: Array,
    allowed: Tolerance,
    dtype: str | None,
    largest: float = 0.0,
) -> str | None:
    """Return how one output differs, to follow its name, if it does; `largest` is as of `scales_of`."""
    wrong = form_fault(want, have, dtype)
    if wrong is None:
        wrong = fault(measure(want, have, allowed, dtype, largest), allowed)
    return wrong.full_description if wrong else None


def varying(once: Outputs, again: Outputs, dtypes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the outputs that differ between two runs of one session on the same inputs."""
    return tuple(
        name
        for name, array in once.items()
        if difference(array, again[name], _SAME, dtypes.get(name)) is not None
    )


@dataclass
class _Total:
    figures: dict[str, Figures] = field(default_factory=dict)  # by sample, of numbers
    runs: int = 0  # of a varying output
    by_values: bool = False  # whether any number was compared by value
    allowed: Tolerance | None = None

    @property
    def compared(self) -> bool:
        return self.by_values or self.runs > 0

    def parity(
        self, name: str, compared_with: str, unjudged: tuple[UnjudgedParts, ...]
    ) -> OutputParity:
        figures = [*self.figures.values()]
        rows = sum(figure.rows for figure in figures)
        agreeing = sum(figure.rows_agreeing for figure in figures)
        cosines = (figure.cosine for figure in figures if figure.cosine is not None)
        return OutputParity(
            name=name,
            compared_with=compared_with,
            max_abs_error=_finite(max(figure.max_abs_error for figure in figures))
            if figures
            else None,
            max_rel_error=_finite(max(figure.max_rel_error for figure in figures))
            if figures
            else None,
            cosine=min(cosines, default=None),
            top1_agreement=agreeing / rows if rows else None,
            nan=sum(figure.nan for figure in figures),
            inf=sum(figure.inf for figure in figures),
            runs=self.runs or None,
            unjudged=unjudged,
        )


def _count_other_classes(item: tuple[str, Figures]) -> int:
    return item[1].rows - item[1].rows_agreeing


def _finite(value: float) -> float:
    return min(value, float(np.finfo(np.float64).max))


def _severity(wrong: Mismatch, figures: Figures) -> float:
    if wrong.figure == "finite":
        return np.inf
    if figures.numeric:
        return figures.max_abs_error / (figures.largest or 1.0)
    return figures.outside_share
