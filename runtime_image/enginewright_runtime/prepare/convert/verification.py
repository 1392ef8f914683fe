"""Whether a changed model is equivalent: same interface, same kinds of weights, same outputs."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import onnx
from enginewright_contract.manifest import VaryingOutput
from enginewright_contract.task import Recipe
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.checker import checker_error
from enginewright_runtime.proof.golden_run import INPUTS, OUTPUTS, load_runner, run_sample, types_of
from enginewright_runtime.proof.parity.comparison import difference
from enginewright_runtime.proof.parity.observing import is_random, observe
from enginewright_runtime.proof.parity.tolerances import Tolerance
from enginewright_runtime.proof.parity.variation import VaryingOutputs
from enginewright_runtime.session.arrays import Arrays, read_arrays, write_arrays
from enginewright_runtime.session.optimization import LOWEST
from enginewright_runtime.session.reference import allow_unreleased

Array = NDArray[Any]
_REFERENCE: Final = "cpu"
# The error of another order of summation, by the type of the sums; a change of meaning is orders of
# magnitude larger. Tighter than the tolerances of artefacts, since nothing is approximated here.
_TOLERANCES: Final[dict[int, Tolerance]] = {
    kind: Tolerance(rtol=share, scale=share, unequal=0.001)
    for kind, share in (
        (TensorProto.BFLOAT16, 6e-2),
        (TensorProto.FLOAT16, 2e-2),
        (TensorProto.FLOAT, 1e-3),
    )
}
_LARGEST_GROWTH: Final = 2.0  # of the weights, by folding constants
_FOLDABLE_ELEMENTS: Final = 1024  # of shapes and zero points, which may be folded
_ALLOWED_GROWTH: Final = 16 << 20  # bytes that weights may always grow by
_QUANTIZED: Final = frozenset(
    {
        *(TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4),
        *(TensorProto.INT2, TensorProto.UINT2, TensorProto.FLOAT4E2M1),
        *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ),
        *(TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ),
    }
)


def form_differs(source: ModelProto, changed: ModelProto, recipe: Recipe) -> str | None:
    """Return how a changed model's interface, versions or weights are wrong, if they are. Pure."""
    if graphs.inputs_of(source) != graphs.inputs_of(changed):
        return "its inputs differ"
    if graphs.outputs_of(source) != graphs.outputs_of(changed):
        return "its outputs differ in name, order, type or declared shape"
    opset = graphs.default_opset(changed)
    if opset is not None and opset > recipe.max_opset:
        return f"it has opset {opset}, above {recipe.max_opset}"
    if changed.ir_version > recipe.max_ir_version:
        return f"it has IR version {changed.ir_version}, above {recipe.max_ir_version}"
    return _weights_differ(source, changed)


def _weights_differ(source: ModelProto, changed: ModelProto) -> str | None:
    """Return how weights differ, if they do: simplifiers may silently dequantize them."""
    before, after = _weights(source), _weights(changed)
    for kind in _QUANTIZED & before.keys():
        if before[kind] - after[kind] > _FOLDABLE_ELEMENTS:
            name = TensorProto.DataType.Name(kind)
            return f"it is dequantized: {after[kind]} of {before[kind]} {name} weights remain"
    sizes = [_bytes(weights) for weights in (before, after)]
    if sizes[1] > sizes[0] * _LARGEST_GROWTH + _ALLOWED_GROWTH:
        return f"its weights grow from {sizes[0]} to {sizes[1]} bytes"
    return None


def _weights(model: ModelProto) -> Counter[int]:
    counts: Counter[int] = Counter()
    for tensor in graphs.walk_tensors(model):
        counts[tensor.data_type] += graphs.elements(tensor)
    return counts


def _bytes(weights: Counter[int]) -> int:
    return sum(
        count * int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
        for kind, count in weights.items()
        if kind != TensorProto.STRING  # strings have no fixed size
    )


@dataclass(frozen=True)
class SourceRun:
    """The result of running the source on inputs.npz; outputs.npz has the outputs."""

    outputs: int  # number of samples that it accepts
    varying: tuple[VaryingOutput, ...] = ()  # outputs that differ from run to run


def run_source(model: Path, folder: Path) -> SourceRun:
    """Run a model on inputs.npz on the CPU provider; write outputs.npz for accepted samples."""
    allow_unreleased()
    runner, signature, _ = load_runner(_REFERENCE, model, LOWEST)
    outputs: dict[str, Arrays] = {}
    inputs = read_arrays(folder / INPUTS)
    for name, feeds in inputs.items():
        # ONNX Runtime's exceptions share no base class but Exception
        with suppress(Exception):
            outputs[name] = run_sample(runner, signature, feeds)
    run = partial(run_sample, runner, signature)
    random = is_random(graphs.parse(model))
    varying = observe(run, inputs, outputs, types_of(signature), random=random)
    write_arrays(folder / OUTPUTS, outputs)
    return SourceRun(len(outputs), tuple(varying))


def compare(
    model: Path, source: Path, folder: Path, varying: Sequence[VaryingOutput]
) -> str | None:
    """Run a changed model on inputs.npz; return how its outputs differ from outputs.npz, if they do."""
    if complaint := _complaint(model, source):
        return complaint
    # graph optimizations would fold some of what is compared
    runner, signature, _ = load_runner(_REFERENCE, model, LOWEST)
    dtypes, allowed = types_of(signature), _choose_tolerance(model)
    varying_outputs = VaryingOutputs(varying, dtypes, lambda *_: allowed)
    expected = read_arrays(folder / OUTPUTS)
    for name, feeds in read_arrays(folder / INPUTS).items():
        if name not in expected:
            continue
        try:
            outputs = run_sample(runner, signature, feeds)
            for output, want in expected[name].items():
                if output not in varying_outputs and (
                    differs := difference(want, outputs[output], allowed, dtypes.get(output))
                ):
                    return f"output {output!r} of sample {name!r} {differs}"
            trial = varying_outputs.trial(name, expected[name])
            while trial.take(outputs):
                outputs = run_sample(runner, signature, feeds)
            for output, fault in trial.faults.items():
                return f"output {output!r} of sample {name!r} {fault.full_description}"
        except Exception as error:
            # exceptions of ONNX Runtime share no base class but Exception
            raise SessionError(f"sample {name}: {error}") from error
    return None


def check(model: Path, source: Path) -> str | None:
    """Return onnx.checker's error for a changed model; raises SessionError if it does not load."""
    complaint = _complaint(model, source)
    if complaint is None:
        load_runner(_REFERENCE, model, LOWEST)
    return complaint


def _complaint(model: Path, source: Path) -> str | None:
    error = checker_error(model)
    return f"onnx.checker reports: {error}" if error and not checker_error(source) else None


def _choose_tolerance(model: Path) -> Tolerance:
    kinds = _weights(graphs.parse(model))
    return _TOLERANCES[next((kind for kind in _TOLERANCES if kinds[kind] > 1), TensorProto.FLOAT)]
