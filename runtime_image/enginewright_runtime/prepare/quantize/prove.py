"""Compares models of a lower precision with the golden outputs, whole and by part: every proof here uses this.

Samples are golden ones and calibration data: random inputs prove little about a detector.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from enginewright_contract.manifest import OutputParity, VaryingOutput
from numpy.typing import NDArray

from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.proof.golden_run import (
    EXPECTED,
    INPUTS,
    OUTPUTS,
    load_runner,
    run_sample,
    types_of,
)
from enginewright_runtime.proof.parity.axes import select_axes
from enginewright_runtime.proof.parity.comparison import (
    ComparedWith,
    Comparison,
    ParityVerdict,
    scales_of,
)
from enginewright_runtime.proof.parity.parts import Parts
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.session.arrays import read_arrays
from enginewright_runtime.session.optimization import LOWEST
from enginewright_runtime.session.samples import in_memory, read_samples

_log: Final = logging.getLogger(__name__)

Array = NDArray[Any]
MAX_CALIBRATION_SAMPLES: Final = 8  # used in proofs
_REFERENCE: Final = "cpu"


@dataclass(frozen=True)
class ProofSample:
    """Inputs, and the outputs that the model must have."""

    name: str
    feeds: Mapping[str, Array]
    golden: Mapping[str, Array]
    expected: Mapping[str, Array]  # of the exporting framework, if known


@dataclass(frozen=True)
class Proof:
    """The result of a comparison."""

    agrees: bool
    error: float  # see `error_of`
    disagreement: str | None  # the first thing that does not agree
    outputs: tuple[OutputParity, ...]


class ReferenceModel:
    """A session on ONNX Runtime's CPU provider, run as the server does."""

    def __init__(self, path: Path, level: str | None = None) -> None:
        """Load the model; `level` is of graph optimizations, a key of `optimization.LEVELS`."""
        self._runner, self.signature, _ = load_runner(_REFERENCE, path, level)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return all outputs; raises SessionError with ONNX Runtime's message."""
        try:
            return run_sample(self._runner, self.signature, dict(feeds))
        except Exception as error:
            # exceptions of ONNX Runtime share no base class but Exception
            raise SessionError(str(error)) from error


class ParityProver:
    """Compares models with the same samples and tolerances."""

    def __init__(
        self,
        source: Path,
        golden: Path,
        tolerances: Tolerances,
        further: Iterable[Mapping[str, Array]],
        varying: Sequence[VaryingOutput],
        emulated: Path | None = None,
    ) -> None:
        """Read the golden samples, and run the original model on `further` inputs; raises SessionError.

        `emulated` is the original model with the rounding of the precision; None if there is none.
        """
        model = ReferenceModel(source)
        signature = model.signature
        self._tolerances = tolerances
        self._dtypes = types_of(signature)
        self._varying = varying
        path = golden / EXPECTED
        expected = read_arrays(path) if path.exists() else {}
        self._samples = [
            ProofSample(
                sample.name,
                sample.feeds,
                sample.expected,
                {
                    name: in_memory(array, signature.outputs[name].datatype)
                    for name, array in expected.get(sample.name, {}).items()
                    if name in signature.outputs
                },
            )
            for sample in read_samples(golden / INPUTS, golden / OUTPUTS, signature)
        ]
        count = len(self._samples)
        self._samples += [
            ProofSample(f"calibration {index}", feeds, model.run(feeds), {})
            for index, feeds in enumerate(further)
        ]
        # the golden samples' are those that serving pods judge by
        self._parts, self.golden_parts = self._measure_parts(source, emulated, count)

    def prove(self, path: Path, level: str | None = None, *, as_rounding: bool = False) -> Proof:
        """Run a model on all samples; raises SessionError if ONNX Runtime refuses it.

        `as_rounding`: whole outputs may be as wrong as rounding makes them, not only as the table allows.
        """
        model = ReferenceModel(path, level)
        sides: tuple[tuple[ComparedWith, dict[str, Mapping[str, Array]]], ...] = (
            ("source", {proof_sample.name: proof_sample.golden for proof_sample in self._samples}),
            (
                "expected",
                {
                    proof_sample.name: proof_sample.expected
                    for proof_sample in self._samples
                    if proof_sample.expected
                },
            ),
        )
        comparisons = []
        for name, expected in sides:
            if expected:
                scales = scales_of(expected, self._dtypes)
                comparison = Comparison(
                    name,
                    self._tolerances,
                    self._dtypes,
                    scales,
                    self._varying,
                    self._parts,
                    as_rounding=as_rounding,
                )
                comparisons.append((comparison, expected))
        for sample in self._samples:
            outputs, again = model.run(sample.feeds), partial(model.run, sample.feeds)
            for comparison, expected in comparisons:
                comparison.add(sample.name, expected.get(sample.name, {}), outputs, again)
        verdicts = [comparison.verdict() for comparison, _ in comparisons]
        return Proof(
            agrees=all(verdict.agrees for verdict in verdicts),
            error=error_of(verdicts[0]),
            disagreement=next(
                (verdict.description for verdict in verdicts if not verdict.agrees), None
            ),
            outputs=tuple(output for verdict in verdicts for output in verdict.outputs),
        )

    def _measure_parts(
        self, source: Path, emulated: Path | None, golden: int
    ) -> tuple[Parts, Parts]:
        """Return what is expected of the parts over all samples, and over the first `golden` ones."""
        proto = graphs.parse(source)
        varying = {output.name for output in self._varying}
        specs = [spec for spec in graphs.outputs_of(proto) if spec.name not in varying]
        outputs = {sample.name: sample.golden for sample in self._samples}
        axes = select_axes(graphs.inputs_of(proto), specs, self._samples[0].feeds, outputs)
        tolerances = Tolerances(self._tolerances.precision)
        scales = scales_of(outputs, self._dtypes)
        builder = PartsBuilder(axes, self._dtypes, tolerances, scales)
        of_golden: Parts = {}
        model = None if emulated is None else _load_emulated(emulated)
        for number, sample in enumerate(self._samples, 1):
            try:
                rounded = None if model is None else model.run(sample.feeds)
            except SessionError as error:
                _log.warning("rounding is not emulated for sample %s: %s", sample.name, error)
                rounded = None
            builder.add(sample.golden, rounded, sample.feeds)
            if number == golden:
                of_golden = builder.build()
        return builder.build(), of_golden


def _load_emulated(path: Path) -> ReferenceModel | None:
    try:
        return ReferenceModel(path, LOWEST)
    except SessionError as error:
        _log.warning("rounding is not emulated: ONNX Runtime refuses the model: %s", error)
        return None


def error_of(verdict: ParityVerdict) -> float:
    """Return one figure: 1 - cosine of the worst output, infinite if there is NaN.

    With independent rounding in each node, the costs of nodes add up in this figure (cosine = 1 /
    sqrt(1 + e^2), and squares of errors add up); so a share of it is a share of the cost.
    """
    return max(map(_error, verdict.outputs), default=0.0)


def _error(output: OutputParity) -> float:
    if output.nan or output.inf:
        return math.inf
    if output.cosine is not None:
        return max(0.0, 1.0 - output.cosine)
    return float(np.square(output.max_rel_error or 0.0) / 2)
