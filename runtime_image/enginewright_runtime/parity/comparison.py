"""Compares the outputs of two models over all samples, and says in words what does not agree. Pure.

Each output of each sample must keep its tolerance by itself: over all samples together a wrong one
would drown among right ones.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from enginewright.contract.manifest import OutputParity
from numpy.typing import NDArray
from typing_extensions import override

from enginewright_runtime.parity.measuring import Fault, Figures, fault, largest_of, measure
from enginewright_runtime.parity.tolerances import DEFAULTS, Tolerance, Tolerances
from enginewright_runtime.parity.values import dtype_of

Array = NDArray[Any]
Outputs = Mapping[str, Array]
ComparedWith = Literal["source", "expected", "prepared"]
_SAME: Final = DEFAULTS["FP32"]  # what two runs of one session may differ by


@dataclass(frozen=True, slots=True)
class Failure:
    """One output of one sample that does not agree."""

    output: str
    sample: str
    figure: str  # missing | shape | type | and those of `measuring.Fault`
    words: str  # that follow the output's name
    severity: float  # for finding the worst one: errors in units of what is allowed

    @override
    def __str__(self) -> str:
        return f"output {self.output!r} of golden sample {self.sample!r} {self.words}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison has shown."""

    compared_with: ComparedWith
    outputs: tuple[OutputParity, ...]  # of what was compared, in the order of the outputs
    failures: tuple[Failure, ...]  # in the order of the samples

    @property
    def agrees(self) -> bool:
        """Whether every output of every sample keeps its tolerance."""
        return not self.failures

    @property
    def words(self) -> str | None:
        """Return the worst failure in words, and how many more there are; None: there is none."""
        if self.worst is None:
            return None
        more = len(self.failures) - 1
        return f"{self.worst}{f' (and {more} more)' if more else ''}"

    @property
    def worst(self) -> Failure | None:
        """Return the failure with the largest errors, the first of several; None: there is none."""
        return max(self.failures, key=lambda each: each.severity, default=None)

    @property
    def max_abs_error(self) -> float | None:
        """Return the largest absolute error of any output; None: there were no numbers."""
        known = (each.max_abs_error for each in self.outputs)
        return max((error for error in known if error is not None), default=None)


class Comparison:
    """Takes samples one at a time, so that no two of them have to be in memory."""

    def __init__(
        self,
        compared_with: ComparedWith,
        tolerances: Tolerances,
        dtypes: Mapping[str, str] | None = None,
        scales: Mapping[str, float] | None = None,
    ) -> None:
        """Begin.

        Args:
            compared_with: what the wanted outputs come from.
            tolerances: of the model whose outputs are judged.
            dtypes: of the outputs as the model declares them (`TensorSpec.dtype`), by name; needed
                for types whose bits NumPy holds as integers: bfloat16 and float8.
            scales: the largest magnitude that is wanted of each output over all samples, where
                known: what INT8 and FP8 errors are measured by (see `scales_of`).
        """
        self._compared_with = compared_with
        self._tolerances = tolerances
        self._dtypes = dtypes or {}
        self._scales = scales or {}
        self.varying: set[str] = set()  # outputs that differ from run to run
        self._totals: dict[str, _Total] = {}
        self._failures: list[Failure] = []

    def add(
        self,
        sample: str,
        wanted: Outputs,
        found: Outputs,
        again: Callable[[], Outputs] | None = None,
    ) -> None:
        """Compare what one sample gave; outputs that `wanted` has not are not compared.

        Args:
            sample: its name.
            wanted: by output.
            found: of the model that is judged.
            again: runs that model once more. Called when an output differs: one that differs from
                run to run is not compared, then or later.
        """
        failures: list[Failure] = []
        for output, want in wanted.items():
            if output in self.varying:
                continue
            total = self._totals.setdefault(output, _Total())
            failed = self._compare(total, output, want, found.get(output))
            if failed is not None:
                wrong, severity = failed
                failures.append(Failure(output, sample, wrong.figure, wrong.in_full, severity))
        if again is not None and any(each.output in found for each in failures):
            suspects = {
                each.output: found[each.output] for each in failures if each.output in found
            }
            self.varying |= set(varying(suspects, again(), self._dtypes))
        self._failures += failures

    def verdict(self) -> Verdict:
        """Return what was found until now."""
        totals = {name: total for name, total in self._totals.items() if name not in self.varying}
        return Verdict(
            self._compared_with,
            tuple(total.parity(name, self._compared_with) for name, total in totals.items()),
            tuple(each for each in self._failures if each.output not in self.varying),
        )

    def _compare(
        self, total: "_Total", output: str, want: Array, have: Array | None
    ) -> tuple[Fault, float] | None:
        if have is None:
            return Fault("missing", "is missing"), np.inf
        dtype = self._dtypes.get(output)
        if differs := _form(want, have, dtype):
            return differs, np.inf
        allowed = self._tolerances.of_output(output, dtype_of(want, dtype))
        figures = measure(want, have, allowed, dtype, self._scales.get(output, 0.0))
        total.add(figures)
        wrong = fault(figures, allowed)
        return (wrong, _severity(wrong, figures)) if wrong else None


def compare(
    wanted: Mapping[str, Outputs],
    found: Mapping[str, Outputs],
    *,
    compared_with: ComparedWith,
    tolerances: Tolerances,
    dtypes: Mapping[str, str] | None = None,
    not_compared: Collection[str] = (),
) -> Verdict:
    """Compare all outputs of all samples.

    Args:
        wanted: arrays by sample and output.
        found: likewise, of the model that is judged. A sample that it lacks fails.
        compared_with: what `wanted` comes from.
        tolerances: of the model that is judged.
        dtypes: as `Comparison` takes them.
        not_compared: outputs that differ from run to run (see `varying`).
    """
    scales = scales_of(wanted, dtypes)
    comparison = Comparison(compared_with, tolerances, dtypes, scales)
    for sample, outputs in wanted.items():
        fixed = {name: array for name, array in outputs.items() if name not in not_compared}
        comparison.add(sample, fixed, found.get(sample, {}))
    return comparison.verdict()


def scales_of(
    wanted: Mapping[str, Outputs], dtypes: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Return the largest magnitude of each output over all samples."""
    kinds = dtypes or {}
    scales: dict[str, float] = {}
    for outputs in wanted.values():
        for name, array in outputs.items():
            scales[name] = max(scales.get(name, 0.0), largest_of(array, kinds.get(name)))
    return scales


def difference(
    want: Array,
    have: Array,
    allowed: Tolerance,
    dtype: str | None = None,
    largest: float = 0.0,
) -> str | None:
    """Return how one output differs, in words that follow its name; None: it agrees.

    Args:
        want: the array that is wanted.
        have: the array that is judged.
        allowed: its tolerance.
        dtype: as the model declares it.
        largest: as `scales_of` tells of all samples.
    """
    wrong = _form(want, have, dtype)
    if wrong is None:
        wrong = fault(measure(want, have, allowed, dtype, largest), allowed)
    return wrong.in_full if wrong else None


def varying(
    once: Outputs, again: Outputs, dtypes: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the outputs that two runs of one session on the same inputs do not agree on."""
    kinds = dtypes or {}
    return tuple(
        name
        for name, array in once.items()
        if difference(array, again[name], _SAME, kinds.get(name)) is not None
    )


class _Total:
    """Figures of one output over all samples."""

    def __init__(self) -> None:
        self._numeric = False
        self._max_abs_error = 0.0
        self._max_rel_error = 0.0
        self._cosine: float | None = None
        self._rows = 0
        self._rows_agreeing = 0
        self._nan = 0
        self._inf = 0

    def add(self, figures: Figures) -> None:
        if not figures.numeric:
            return
        self._numeric = True
        self._max_abs_error = max(self._max_abs_error, figures.max_abs_error)
        self._max_rel_error = max(self._max_rel_error, figures.max_rel_error)
        if figures.cosine is not None:
            self._cosine = min(figures.cosine, 1.0 if self._cosine is None else self._cosine)
        self._rows += figures.rows
        self._rows_agreeing += figures.rows_agreeing
        self._nan += figures.nan
        self._inf += figures.inf

    def parity(self, name: str, compared_with: str) -> OutputParity:
        return OutputParity(
            name=name,
            compared_with=compared_with,
            max_abs_error=_finite(self._max_abs_error) if self._numeric else None,
            max_rel_error=_finite(self._max_rel_error) if self._numeric else None,
            cosine=self._cosine,
            top1_agreement=self._rows_agreeing / self._rows if self._rows else None,
            nan=self._nan,
            inf=self._inf,
        )


def _finite(value: float) -> float:
    """Return a number that JSON can hold."""
    return min(value, float(np.finfo(np.float64).max))


def _form(want: Array, have: Array, dtype: str | None) -> Fault | None:
    """Return what of shape and type differs, in words; None: they can be compared."""
    types = dtype_of(want, dtype), dtype_of(have, dtype)
    if types[0] != types[1]:
        return Fault("type", f"has type {types[1]}, expected {types[0]}")
    if want.ndim != have.ndim:
        return Fault(
            "shape",
            f"has {have.ndim} dimensions, shape {list(have.shape)}, expected {want.ndim},"
            f" shape {list(want.shape)}",
        )
    if want.shape != have.shape:
        return Fault("shape", f"has shape {list(have.shape)}, expected {list(want.shape)}")
    return None


def _severity(wrong: Fault, figures: Figures) -> float:
    if wrong.figure == "finite":
        return np.inf
    share = figures.outside / figures.elements
    return figures.max_abs_error / (figures.largest or 1.0) if figures.numeric else share
