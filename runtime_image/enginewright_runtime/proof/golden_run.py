"""Runs models on golden inputs as the server does it, in child processes of the stages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import onnxruntime as ort
from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.manifest import OutputParity, VaryingOutput
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Recipe
from numpy.typing import NDArray

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain
from enginewright_runtime.core.time_limit import TimeLimit
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.proof.natural.choosing import NO_NATURAL, NaturalInputs, run_natural
from enginewright_runtime.proof.parity.comparison import (
    ComparedWith,
    Comparison,
    ParityVerdict,
    scales_of,
)
from enginewright_runtime.proof.parity.observing import is_random, observe
from enginewright_runtime.proof.parity.parts import PARTS, Parts, read_parts
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.session import loading
from enginewright_runtime.session.arrays import Arrays, read_arrays, write_arrays
from enginewright_runtime.session.datatypes import BF16
from enginewright_runtime.session.loading import find
from enginewright_runtime.session.optimization import above, below
from enginewright_runtime.session.reference import allow_unreleased
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.samples import in_memory, type_name
from enginewright_runtime.session.signature import Signature, read_signature

INPUTS: Final = "inputs.npz"
OUTPUTS: Final = "outputs.npz"
EXPECTED: Final = "expected.npz"
EXPECTED_OUTPUTS: Final = "the expected outputs in spec.parity.samples"  # for messages
_LARGEST: Final = 256 << 20  # bytes of outputs that are stored per sample
_FAST_LOAD: Final = 2.0  # seconds of `TimeLimit` up to which a second session is compared


@dataclass(frozen=True)
class GoldenFiles:
    """Golden samples: .npz files of arrays SAMPLE/NAME."""

    inputs: Path
    outputs: Path  # of the source
    expected: Path | None  # of the exporting framework, for some samples
    parts: Path | None = None  # what is expected of the parts of the outputs

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return the files that `prepare.golden` writes to its folder."""
        expected, parts = (
            path if path.exists() else None for path in (folder / EXPECTED, folder / PARTS)
        )
        return cls(folder / INPUTS, folder / OUTPUTS, expected, parts)


@dataclass(frozen=True)
class Disagreement:
    """The worst output and sample of a comparison that failed."""

    output: str
    sample: str
    description: str
    against: ComparedWith


@dataclass(frozen=True)
class GoldenRun:
    """The result of running the golden inputs."""

    refused: Mapping[str, str] = field(default_factory=dict)  # ONNX Runtime's message by sample
    refusal: str | None = None  # why a `JudgedRun` has no result; text that follows "the model"
    samples: int = 0  # that were run
    level: str | None = None  # of graph optimizations
    lowered: str | None = None  # why not the highest, where ONNX Runtime refuses the model at that
    parity: tuple[OutputParity, ...] = ()  # of every output
    failed: Disagreement | None = None  # of the first comparison that failed
    max_abs_error: float | None = None  # of the first comparison, if there were numbers
    varying: tuple[VaryingOutput, ...] = ()  # outputs that differ between runs
    warnings: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()  # which outputs are not, in how many values


def run_reference(
    model: Path,
    folder: Path,
    recipe: Recipe,
    precision: str,
    natural: NaturalInputs = NO_NATURAL,
    level: str | None = None,
) -> GoldenRun:
    """Run inputs.npz on the CPU provider, write outputs.npz, compare with expected.npz by the model's own precision.

    Samples that the model rejects, or whose outputs are too large, are removed from inputs.npz; natural ones get the
    range in which the outputs move most, and those that the model rejects are not reported. `level` is that of graph
    optimizations where only one makes a reference; what serves need not have it.
    """
    allow_unreleased()
    run = partial(_run_reference, model, folder, Tolerances.of(recipe, precision), natural)
    return _at_the_right_level("cpu", run) if level is None else replace(run(level), level=None)


def _run_reference(
    model: Path, folder: Path, tolerances: Tolerances, natural: NaturalInputs, level: str | None
) -> GoldenRun:
    load_limit = TimeLimit(_FAST_LOAD)
    runner, signature, level = load_runner("cpu", model, level)
    loads_fast = not load_limit.over()
    inputs = read_arrays(folder / INPUTS)
    of_nature = {name: inputs.pop(name) for name in natural.names if name in inputs}
    outputs: dict[str, Arrays] = {}
    refused: dict[str, str] = {}
    warnings: list[str] = []
    for name, feeds in inputs.items():
        try:
            outputs[name] = run_sample(runner, signature, feeds)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
            _raise_out_of_memory(error, name, "cpu")
            refused[name] = plain(str(error))
            continue
        size = sum(array.nbytes for array in outputs[name].values())
        if size > _LARGEST and len(outputs) > 1:
            del outputs[name]
            warnings.append(
                f"golden sample {name!r} is dropped: its outputs ({format_bytes(size)}) are too large"
            )
    not_finite = _find_not_finite(signature, outputs)  # not of the drawn ones beside them
    as_run = run_natural(
        partial(run_sample, runner, signature), of_nature if outputs else {}, natural.images
    )
    inputs |= as_run.inputs
    outputs |= as_run.outputs
    write_arrays(folder / OUTPUTS, outputs)
    write_arrays(folder / INPUTS, {name: inputs[name] for name in outputs})
    varying = observe(
        partial(run_sample, runner, signature),
        inputs,
        outputs,
        types_of(signature),
        random=is_random(graphs.parse(model)),
        fresh=partial(_run_fresh, model, level) if loads_fast else None,
    )
    warnings += map(_describe_varying, varying)
    judged = []
    if (expected := folder / EXPECTED).exists():
        comparison, by_sample = _judge(expected, signature, tolerances, "expected", varying)
        for name in outputs.keys() & by_sample.keys():
            again = partial(run_sample, runner, signature, inputs[name])
            comparison.add(name, by_sample[name], outputs[name], again)
        judged.append(comparison)
    return replace(
        _outcome(judged),
        refused=refused,
        samples=len(outputs),
        level=level,
        varying=tuple(varying),
        warnings=tuple(warnings),
        not_finite=not_finite,
    )


def _run_fresh(model: Path, level: str, feeds: Arrays) -> Arrays:
    runner, signature, _ = load_runner("cpu", model, level)
    return run_sample(runner, signature, feeds)


def _describe_varying(output: VaryingOutput) -> str:
    how = "by distribution" if output.spreads else "only by type and shape"
    return f"output {output.name!r} differs between runs of the source, so it is compared {how}"


@dataclass(frozen=True)
class JudgedRun:
    """A run of the golden inputs on a backend, compared with the golden and the expected outputs."""

    model: Path  # the judged model
    backend: str  # that runs it
    files: GoldenFiles
    recipe: Recipe  # with the user's tolerances
    compared_with: ComparedWith  # the origin of the golden outputs
    precision: str | None  # of the model, unless it has the source's
    source_precision: str | None = None
    rounding: bool = False  # whether FP32 outputs may differ only by rounding
    varying: tuple[VaryingOutput, ...] = ()  # outputs that differ between runs of the source
    level: str | None = None  # as of `run_reference`

    def run(self, seconds: float | None = None) -> GoldenRun:
        """Run and compare in a child process within a time limit; raises StageFailure."""
        try:
            doing = f"running the golden inputs on backend {self.backend}"
            limits = Limits.of_model(seconds, on_device=self.backend in DEVICE_BACKENDS)
            return Call(run_judged, doing, limits).run(self)
        except SessionError as error:
            return GoldenRun(
                refusal=f"cannot be loaded on backend {self.backend}: {plain(str(error))}"
            )


def run_judged(asked: JudgedRun) -> GoldenRun:
    """Run golden inputs and compare, in this process; raises SessionError if the model does not load."""
    tolerances = Tolerances.of(asked.recipe, asked.precision or asked.source_precision)
    exact = replace(tolerances, rounding=asked.rounding)
    files, backend, varying = asked.files, asked.backend, asked.varying

    def judge(level: str | None) -> GoldenRun:
        runner, signature, level = load_runner(backend, asked.model, level)
        parts = None if files.parts is None else read_parts(files.parts)
        judged = [_judge(files.outputs, signature, exact, asked.compared_with, varying, parts)]
        if files.expected is not None:
            judged.append(_judge(files.expected, signature, tolerances, "expected", varying, parts))
        count = 0
        for name, feeds in read_arrays(files.inputs).items():
            try:
                outputs = run_sample(runner, signature, feeds)
            except Exception as error:  # noqa: BLE001 - ONNX Runtime has no common class
                _raise_out_of_memory(error, name, backend)
                cause = plain(str(error))
                return GoldenRun(
                    refusal=f"fails on backend {backend} with golden sample {name!r}: {cause}"
                )
            again = partial(run_sample, runner, signature, feeds)
            for comparison, expected in judged:
                comparison.add(name, expected.get(name, {}), outputs, again)
            count += 1
        return replace(_outcome([item for item, _ in judged]), samples=count, level=level)

    if asked.level is not None:
        return replace(judge(asked.level), level=None)
    # below ALL a quantized model runs QuantizeLinear and DequantizeLinear instead of integer kernels
    return judge(None) if asked.precision is not None else _at_the_right_level(backend, judge)


def _judge(
    path: Path,
    signature: Signature,
    tolerances: Tolerances,
    compared_with: ComparedWith,
    varying: Iterable[VaryingOutput],
    parts: Parts | None = None,
) -> tuple[Comparison, dict[str, Arrays]]:
    kinds = types_of(signature)
    expected = {
        sample: {
            name: in_memory(array, signature.outputs[name].datatype)
            for name, array in arrays.items()
            if name in signature.outputs
        }
        for sample, arrays in read_arrays(path).items()
    }
    scales = scales_of(expected, kinds)
    return Comparison(compared_with, tolerances, kinds, scales, varying, parts), expected


def _outcome(comparisons: Sequence[Comparison]) -> GoldenRun:
    verdicts = [comparison.verdict() for comparison in comparisons]
    return GoldenRun(
        parity=tuple(output for verdict in verdicts for output in verdict.outputs),
        failed=next(
            (_find_disagreement(verdict) for verdict in verdicts if not verdict.agrees), None
        ),
        max_abs_error=verdicts[0].max_abs_error if verdicts else None,
    )


def _find_disagreement(verdict: ParityVerdict) -> Disagreement | None:
    worst = verdict.worst
    if worst is None:
        return None
    return Disagreement(worst.output, worst.sample, str(verdict.description), verdict.compared_with)


def _raise_out_of_memory(error: Exception, sample: str, backend: str) -> None:
    if is_out_of_memory(str(error)):
        raise StageFailure(
            Reason.OUT_OF_MEMORY,
            f"golden sample {sample!r} does not fit into memory on backend {backend}",
        ) from error


def load_runner(
    backend: str, model: Path, level: str | None = None
) -> tuple[Runner, Signature, str]:
    """Load a model as `loading.create` does; return the level of graph optimizations too."""
    loaded = loading.create(backend, model, level=level)
    session = loaded.session
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    return Runner(session, signature), signature, loaded.level


def _at_the_right_level(backend: str, judge: Callable[[str | None], GoldenRun]) -> GoldenRun:
    """Judge at the highest level of graph optimizations that loads; if outputs fail, at lower ones.

    Return the result at the first level at which the outputs agree, otherwise at the highest.
    """
    first = judge(None)
    if first.level is not None and (refused := [*above(first.level)]):
        first = replace(
            first,
            lowered=f"ONNX Runtime {ort.__version__} refuses the model at graph optimization"
            f" {', '.join(refused)}; backend {backend} runs it at {first.level}",
        )
    if first.failed is None or first.level is None or not find(backend).optimized:
        return first
    for level in below(first.level):
        lowered = judge(level)
        if not lowered.refused and lowered.refusal is None and lowered.failed is None:
            lowering = f"graph optimizations are lowered to {level}: at {first.level}, {first.failed.description}"
            # samples refused in the first run are no longer in the file
            warnings = (*lowered.warnings, lowering)
            return replace(lowered, refused=first.refused, warnings=warnings)
    return first


def types_of(signature: Signature) -> dict[str, str]:
    """Return the types of the outputs by name, as `parity` expects them."""
    return {name: type_name(tensor.datatype) for name, tensor in signature.outputs.items()}


def run_sample(runner: Runner, signature: Signature, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return all outputs for one sample's inputs."""
    names = list(signature.outputs)
    ready = {
        name: array.astype(object) if signature.inputs[name].datatype.is_string else array
        for name, array in feeds.items()
    }
    return dict(zip(names, runner.run(names, ready), strict=True))


def _find_not_finite(signature: Signature, outputs: dict[str, Arrays]) -> tuple[str, ...]:
    sentences = []
    for name, arrays in outputs.items():
        for output, array in arrays.items():
            if signature.outputs[output].datatype is BF16 or array.dtype.kind != "f":
                continue
            if count := int(np.count_nonzero(~np.isfinite(array))):
                sentences.append(
                    f"output {output!r} of golden sample {name!r} has {count} NaN or infinite values"
                    f" of {array.size}"
                )
    return tuple(sentences)
