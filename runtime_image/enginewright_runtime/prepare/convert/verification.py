"""Whether a changed model still is the model: same interface, same kinds of weights, same outputs.

The parts that run models are called in child processes.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from enginewright.contract.manifest import VaryingOutput
from enginewright.contract.task import Recipe
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.graph import graphs
from enginewright_runtime.graph.inference import elements
from enginewright_runtime.graph.opsets import allow_unreleased
from enginewright_runtime.proof.parity import Tolerance, Trial, difference, form_fault
from enginewright_runtime.proof.parity.observing import is_random, observe
from enginewright_runtime.session import loading
from enginewright_runtime.session.arrays import Arrays, read_arrays, write_arrays
from enginewright_runtime.session.optimization import LOWEST
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import Signature, read_signature

Array = NDArray[Any]
INPUTS: Final = "inputs.npz"
OUTPUTS: Final = "outputs.npz"
_VARYING: Final = "varying.json"  # VaryingOutput of each output that differs from run to run
_QUICK: Final = 0.5  # seconds: the reference implementation is run again if not slower
_REFERENCE: Final = "cpu"
# What another order of the same sums costs, by the type that sums are made in; a change of meaning costs
# orders of magnitude more. Tighter than what artefacts are allowed, for here nothing is approximated.
_TOLERANCES: Final[dict[int, Tolerance]] = {
    kind: Tolerance(
        rtol=share, atol=1e-6, scale=share, outliers=0.0, outlier_size=0.0, unequal=0.001
    )
    for kind, share in (
        (TensorProto.BFLOAT16, 6e-2),
        (TensorProto.FLOAT16, 2e-2),
        (TensorProto.FLOAT, 1e-3),
    )
}
_LARGEST_GROWTH: Final = 2.0  # of the weights, by folding constants
_FEW: Final = 1024  # elements of sizes and zero points, which may be folded
_SMALL: Final = 16 << 20  # bytes that weights may grow by in any case
_QUANTIZED: Final = frozenset(
    {
        *(TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4),
        *(TensorProto.INT2, TensorProto.UINT2, TensorProto.FLOAT4E2M1),
        *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ),
        *(TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ),
    }
)


def form_differs(source: ModelProto, changed: ModelProto, recipe: Recipe) -> str | None:
    """Return what of a changed model's form is not as it must be, in words; None: nothing. Pure."""
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
    """Tell whether quantised weights were undone, which simplifiers do without a word."""
    before, after = _weights(source), _weights(changed)
    for kind in _QUANTIZED & before.keys():
        if before[kind] - after[kind] > _FEW:
            name = TensorProto.DataType.Name(kind)
            return f"of {before[kind]} {name} weights {after[kind]} are left: it is dequantised"
    sizes = [_bytes(weights) for weights in (before, after)]
    if sizes[1] > sizes[0] * _LARGEST_GROWTH + _SMALL:
        return f"its weights grow from {sizes[0]} to {sizes[1]} bytes"
    return None


def _weights(model: ModelProto) -> Counter[int]:
    found: Counter[int] = Counter()
    for tensor in graphs.walk_tensors(model):
        found[tensor.data_type] += elements(tensor)
    return found


def _bytes(weights: Counter[int]) -> int:
    # strings have no size of their own
    known = {kind: count for kind, count in weights.items() if kind != TensorProto.STRING}
    return sum(
        count * int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
        for kind, count in known.items()
    )


def run_source(*, model: str, folder: str) -> dict[str, Any]:
    """Run a model on inputs.npz with ONNX Runtime's CPU provider, and write outputs.npz.

    Samples that the model refuses are left out of outputs.npz; beside it is told which outputs vary.

    Returns:
        `refused`: ONNX Runtime's words by sample.

    Raises:
        SessionError: the model does not load.
    """
    allow_unreleased()
    runner, signature = _load(model)
    refused: dict[str, str] = {}
    outputs: dict[str, Arrays] = {}
    inputs = read_arrays(Path(folder) / INPUTS)
    for name, feeds in inputs.items():
        try:
            outputs[name] = _run(runner, signature, feeds)
        except Exception as error:  # noqa: BLE001 - of ONNX Runtime, which has no class of its own
            refused[name] = plain(str(error))
    proto = graphs.parse(Path(model))
    run = partial(_run, runner, signature)
    found = observe(run, inputs, outputs, _dtypes(model), random=is_random(proto))
    _write(Path(folder), outputs, found)
    return {"refused": refused}


def run_source_by_definition(*, model: str, folder: str) -> dict[str, Any]:
    """Do as `run_source`, with ONNX's reference implementation: slow, and knows every opset."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow, and seldom needed

    outputs: dict[str, Arrays] = {}
    refused: dict[str, str] = {}
    found: tuple[VaryingOutput, ...] = ()
    proto = onnx.load(model)
    names = [value.name for value in proto.graph.output]
    inputs = read_arrays(Path(folder) / INPUTS)
    began = time.monotonic()
    try:
        evaluator = ReferenceEvaluator(proto)

        def run(feeds: Arrays) -> Arrays:
            return dict(zip(names, map(np.asarray, evaluator.run(names, feeds)), strict=True))

        for name, feeds in inputs.items():
            outputs[name] = run(feeds)
        if time.monotonic() - began < _QUICK:
            found = observe(run, inputs, outputs, _dtypes(model), random=is_random(proto))
    except Exception as error:  # noqa: BLE001 - a reference operator may raise anything
        refused["all"] = plain(str(error))
    _write(Path(folder), outputs, found)
    return {"refused": refused}


def compare(*, model: str, source: str, folder: str) -> dict[str, Any]:
    """Run a changed model on inputs.npz and compare with outputs.npz.

    Returns:
        `differs`: words, or None; `compared`: how many outputs were, over all samples.

    Raises:
        SessionError: the model does not load, or fails on a sample that the source takes.
    """
    if words := _complaint(model, source):
        return {"differs": words, "compared": 0}
    runner, signature = _load(model)
    judge = _Judge(_dtypes(model), _allowed(model), _read_varying(Path(folder)))
    expected = read_arrays(Path(folder) / OUTPUTS)
    for name, feeds in read_arrays(Path(folder) / INPUTS).items():
        if name not in expected:
            continue
        try:
            if words := judge.differs(
                name, expected[name], partial(_run, runner, signature, feeds)
            ):
                return {"differs": words, "compared": 0}
        except Exception as error:
            # exceptions of ONNX Runtime share no base class but Exception
            raise SessionError(f"sample {name}: {error}") from error
    return {"differs": None, "compared": judge.compared}


class _Judge:
    """Compares the outputs of samples."""

    def __init__(
        self, dtypes: Mapping[str, str], allowed: Tolerance, varying: Sequence[VaryingOutput]
    ) -> None:
        self._dtypes = dtypes
        self._allowed = allowed
        self._spreads = {
            each.name: {spread.sample: spread for spread in each.spreads} for each in varying
        }
        self.compared = 0  # outputs, over all samples

    def differs(self, sample: str, expected: Arrays, run: Callable[[], Arrays]) -> str | None:
        """Return which output of a sample differs and how, in words; `run` runs it."""
        found = run()
        for output, want in expected.items():
            if output in self._spreads:
                words = self._varies_otherwise(sample, output, want, found[output], run)
            else:
                self.compared += 1
                words = difference(want, found[output], self._allowed, self._dtypes.get(output))
            if words:
                return f"output {output!r} of sample {sample!r} {words}"
        return None

    def _varies_otherwise(
        self, sample: str, output: str, want: Array, have: Array, run: Callable[[], Arrays]
    ) -> str | None:
        kind = self._dtypes.get(output)
        spread = self._spreads[output].get(sample)
        if spread is None or not spread.ranges:
            fault = form_fault(want, have, kind, (None,) * want.ndim)
            return fault.in_full if fault else None
        self.compared += 1
        trial = Trial(spread, want, self._allowed, kind)
        while trial.take(have):
            have = run()[output]
        return trial.wrong


def check(*, model: str, source: str) -> dict[str, Any]:
    """Do what can be done where nothing can be compared: check a changed model's form, and load it.

    Returns as `compare`.

    Raises:
        SessionError: it does not load.
    """
    words = _complaint(model, source)
    if words is None:
        _load(model)
    return {"differs": words, "compared": 0}


def _complaint(model: str, source: str) -> str | None:
    """Return what onnx.checker has against a model that it has nothing against the source for."""
    found = [_checked(path) for path in (model, source)]
    return f"onnx.checker says: {found[0]}" if found[0] and not found[1] else None


def _checked(model: str) -> str | None:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        return plain(str(error))
    return None


def _load(model: str) -> tuple[Runner, Signature]:
    # as the model is written: optimisations fold some of what is compared here
    session = loading.create(_REFERENCE, Path(model), level=LOWEST).session
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    return Runner(session, signature), signature


def _run(runner: Runner, signature: Signature, feeds: Arrays) -> Arrays:
    names = list(signature.outputs)
    ready = {
        name: array.astype(object) if signature.inputs[name].datatype.is_string else array
        for name, array in feeds.items()
        if name in signature.inputs
    }
    return dict(zip(names, runner.run(names, ready), strict=True))


def _dtypes(model: str) -> dict[str, str]:
    return {spec.name: spec.dtype for spec in graphs.outputs_of(graphs.parse(Path(model)))}


def _allowed(model: str) -> Tolerance:
    kinds = _weights(graphs.parse(Path(model)))
    return _TOLERANCES[next((kind for kind in _TOLERANCES if kinds[kind] > 1), TensorProto.FLOAT)]


def _read_varying(folder: Path) -> list[VaryingOutput]:
    told = json.loads((folder / _VARYING).read_text())
    return [VaryingOutput.model_validate(each) for each in told]


def _write(folder: Path, groups: dict[str, Arrays], varying: Sequence[VaryingOutput]) -> None:
    told = [each.model_dump(mode="json") for each in varying]
    (folder / _VARYING).write_text(json.dumps(told))
    # types that NumPy does not know itself are stored as floats
    write_arrays(
        folder / OUTPUTS,
        {
            sample: {
                name: array.astype(np.float32) if array.dtype.kind == "V" else array
                for name, array in members.items()
            }
            for sample, members in groups.items()
        },
    )
