"""Compares models of a lower precision with the golden outputs: every proof here uses this.

The samples are the golden ones, with the source's outputs, and some of the calibration data, with the
original model's outputs: golden inputs may be random, which proves little about a detector.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from enginewright_contract.manifest import OutputParity, VaryingOutput
from numpy.typing import NDArray

from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.proof.golden_run import (
    EXPECTED,
    INPUTS,
    OUTPUTS,
    load_runner,
    run_sample,
    types_of,
)
from enginewright_runtime.proof.parity.comparison import (
    ComparedWith,
    Comparison,
    ParityVerdict,
    scales_of,
)
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.session.arrays import read_arrays
from enginewright_runtime.session.samples import in_memory, read_samples

Array = NDArray[Any]
MAX_CALIBRATION_SAMPLES: Final = 8  # used in proofs
_REFERENCE: Final = "cpu"


@dataclass(frozen=True)
class ProofSample:
    """Inputs, and the outputs that they must have."""

    name: str
    feeds: Mapping[str, Array]
    wanted: Mapping[str, Array]
    expected: Mapping[str, Array]  # of the exporting framework; {}: not known


@dataclass(frozen=True)
class Proof:
    """The result of a comparison."""

    agrees: bool
    error: float  # see `error_of`; to compare proofs of one model with each other
    disagreement: str | None  # the first thing that does not agree
    outputs: tuple[OutputParity, ...]


class ReferenceModel:
    """A session on ONNX Runtime's CPU provider, run as the server does."""

    def __init__(self, path: Path, level: str | None = None) -> None:
        """Load the model; `level`: of graph optimisations, a key of `optimization.LEVELS`."""
        self._runner, self.signature, _ = load_runner(_REFERENCE, path, level)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return all outputs; raises SessionError with ONNX Runtime's message."""
        try:
            return run_sample(self._runner, self.signature, dict(feeds))
        except Exception as error:
            # exceptions of ONNX Runtime share no base class but Exception
            raise SessionError(str(error)) from error


@dataclass
class ParityProver:
    """Samples and tolerances with which each model is compared."""

    tolerances: Tolerances
    samples: list[ProofSample] = field(default_factory=list)
    dtypes: dict[str, str] = field(default_factory=dict)
    varying: Sequence[VaryingOutput] = ()

    @classmethod
    def of(
        cls,
        source: Path,
        golden: Path,
        tolerances: Tolerances,
        further: Iterable[Mapping[str, Array]] = (),
        varying: Sequence[VaryingOutput] = (),
    ) -> "ParityProver":
        """Read the golden samples, and run the original model on further ones.

        `further` are inputs beyond the golden ones, `varying` outputs that differ from run to run
        of the source.

        Raises:
            SessionError: ONNX Runtime's CPU provider cannot run the original model.
        """
        model = ReferenceModel(source)
        prover = cls(tolerances, dtypes=types_of(model.signature), varying=varying)
        signature = model.signature
        path = golden / EXPECTED
        expected = read_arrays(path) if path.exists() else {}
        prover.samples = [
            ProofSample(
                each.name,
                each.feeds,
                each.expected,
                {
                    name: in_memory(array, signature.outputs[name].datatype)
                    for name, array in expected.get(each.name, {}).items()
                    if name in signature.outputs
                },
            )
            for each in read_samples(golden / INPUTS, golden / OUTPUTS, signature)
        ]
        prover.samples += [
            ProofSample(f"calibration {index}", feeds, model.run(feeds), {})
            for index, feeds in enumerate(further)
        ]
        return prover

    def prove(self, path: Path, level: str | None = None) -> Proof:
        """Run a model on all samples; raises SessionError if ONNX Runtime refuses it."""
        model = ReferenceModel(path, level)
        sides: tuple[tuple[ComparedWith, dict[str, Mapping[str, Array]]], ...] = (
            ("source", {each.name: each.wanted for each in self.samples}),
            ("expected", {each.name: each.expected for each in self.samples if each.expected}),
        )
        comparisons = [(self._comparison(name, wanted), wanted) for name, wanted in sides if wanted]
        for sample in self.samples:
            found = model.run(sample.feeds)
            for comparison, wanted in comparisons:
                again = partial(model.run, sample.feeds)
                comparison.add(sample.name, wanted.get(sample.name, {}), found, again)
        verdicts = [comparison.verdict() for comparison, _ in comparisons]
        return Proof(
            agrees=all(verdict.agrees for verdict in verdicts),
            error=error_of(verdicts[0]),
            disagreement=next(
                (verdict.description for verdict in verdicts if not verdict.agrees), None
            ),
            outputs=tuple(output for verdict in verdicts for output in verdict.outputs),
        )

    def _comparison(
        self, name: ComparedWith, wanted: Mapping[str, Mapping[str, Array]]
    ) -> Comparison:
        scales = scales_of(wanted, self.dtypes)
        return Comparison(name, self.tolerances, self.dtypes, scales, self.varying)


def error_of(verdict: ParityVerdict) -> float:
    """Return one figure: 1 - cosine of the worst output, infinite if there is NaN.

    With independent rounding in each node, the costs of nodes add up in this figure (cosine = 1 /
    sqrt(1 + e^2), and squares of errors add up); so a share of it is a share of the cost.
    """
    errors = [_error(output) for output in verdict.outputs]
    return max(errors, default=0.0)


def _error(output: OutputParity) -> float:
    if output.nan or output.inf:
        return math.inf
    if output.cosine is not None:
        return max(0.0, 1.0 - output.cosine)
    return float(np.square(output.max_rel_error or 0.0) / 2)
