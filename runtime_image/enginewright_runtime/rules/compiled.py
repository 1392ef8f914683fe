"""What an engine, and the provider that is to serve it, does not take, known before anything is built.

Control flow: ONNX Runtime runs If, Loop and Scan on its CPU and CUDA providers
(docs/OperatorKernels.md of onnxruntime), so nothing is found there. What OpenVINO does with a
model's own is seen when it loads the model. TensorRT's parser takes them under conditions
(docs/operators.md of onnx-tensorrt, for TensorRT 10): If: outputs of both branches of one rank;
Loop: scan outputs of a fixed length, loop-carried values of one shape. That a model breaks them is
found where TensorRT-RTX 1.7 was seen to refuse it; it takes branches whose outputs have one name,
and a Scan over integers, which the page says it does not.

Models that others have quantised: symmetric types and zero points of 0 alone.
"""

from typing import Final

import numpy as np
from enginewright.contract.engines import PROVIDERS, unserved_tensors, whole_only
from enginewright.contract.report import name_nodes
from onnx import TensorProto, ValueInfoProto, numpy_helper

from enginewright_runtime.core.logs import counted
from enginewright_runtime.graph.raw.graphs import bodies
from enginewright_runtime.rules.base import Hit, Subject, labels, named
from enginewright_runtime.rules.types import SERVED
from enginewright_runtime.rules.view import RawNode

FLOW: Final = ("If", "Loop", "Scan")
_QUANTIZERS: Final = ("QuantizeLinear", "DequantizeLinear")
_SYMMETRIC: Final = frozenset(
    {
        TensorProto.INT8,
        TensorProto.INT4,
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT4E2M1,
    }
)
_INTEGER: Final = (
    *("DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"),
    *("QLinearConv", "QLinearMatMul"),
)
_UINT8: Final = int(TensorProto.UINT8)  # the type where a node names none (ONNX, QuantizeLinear)
# docs/operators.md of onnx-tensorrt for TensorRT 10.15: "N" in column Supported, less those that ONNX
# defines by other operators, of which engines are built where that helps.
UNKNOWN_TO_TENSORRT: Final = (
    *("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Col2Im", "Compress"),
    *("ConcatFromSequence", "ConvInteger", "DFT", "Det", "ImageDecoder", "MatMulInteger"),
    *("MaxRoiPool", "MaxUnpool", "MelWeightMatrix", "Multinomial", "Optional"),
    *("OptionalGetElement", "OptionalHasElement", "QLinearConv", "QLinearMatMul"),
    *("RegexFullMatch", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase"),
    *("SequenceInsert", "SequenceLength", "SplitToSequence", "StringNormalizer"),
    *("TfIdfVectorizer", "Unique"),
)


def control_flow(subject: Subject) -> Hit | None:
    """Find control flow where TensorRT parses the model."""
    if not subject.compiled:
        return None
    found = [node for node in subject.view.nodes if node.is_standard(*FLOW)]
    if not found:
        return None
    message = (
        f"backend {subject.recipe.backend} takes control flow only under conditions: {named(found)}"
    )
    if refused := [why for node in found if (why := _refused(node)) is not None]:
        message += f"; not these: {name_nodes(refused)}"
    if constant := sum(_has_constant_condition(subject, node) for node in found):
        message += f"; {counted(constant, 'condition')} of {len(found)} can be folded away"
    return Hit(message, labels(found))


def _refused(node: RawNode) -> str | None:
    """Return what is refused, as far as the model declares it."""
    graphs = list(bodies(node.proto))
    if node.op == "If" and len(graphs) > 1:
        for first, second in zip(graphs[0].output, graphs[1].output, strict=False):
            one, other = _rank(first), _rank(second)
            if one is not None and other is not None and one != other:
                return (
                    f"{node.label}, whose branches give {one} or {other} dimensions, unless its"
                    " condition is known beforehand"
                )
    if node.op == "Loop" and node.bodies and not node.input(1):
        go_on = node.bodies[0].inputs[1:2]
        if any(name in go_on for inner in node.bodies[0].nodes for name in inner.inputs):
            return f"{node.label}, whose body reads the condition that it is not given"
    return None


def _rank(value: ValueInfoProto) -> int | None:
    tensor = value.type.tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def _has_constant_condition(subject: Subject, node: RawNode) -> bool:
    return node.op == "If" and subject.view.constant(node.scope, node.input(0)) is not None


def asymmetric(subject: Subject) -> Hit | None:
    """Find quantisation that TensorRT leaves outside the engine."""
    if not subject.compiled:
        return None
    found = [
        node
        for node in subject.view.nodes
        if node.is_standard(*_QUANTIZERS)
        and not _is_bias(subject, node)
        and not _is_symmetric(subject, node)
    ]
    if not found:
        return None
    return Hit(
        f"{counted(len(found), 'quantisation node')} with unsigned types, or zero points other than"
        f" 0, and what lies between them stay outside the engine: {named(found)}",
        labels(found),
    )


def integer_operators(subject: Subject) -> Hit | None:
    """Find operators that compute with integers, which TensorRT has none of."""
    if not subject.compiled:
        return None
    found = [node for node in subject.view.nodes if node.is_standard(*_INTEGER)]
    if not found:
        return None
    return Hit(
        f"{counted(len(found), 'node')} of dynamic or operator-by-operator quantisation:"
        f" {named(found)}",
        labels(found),
    )


def _is_bias(subject: Subject, node: RawNode) -> bool:
    """Tell whether it is a bias of 32-bit integers, which `convert` makes numbers of."""
    if node.op != "DequantizeLinear":
        return False
    tensor = subject.view.constant(node.scope, node.input(0))
    return tensor is not None and tensor.data_type == TensorProto.INT32


def _is_symmetric(subject: Subject, node: RawNode) -> bool:
    zero_point = subject.view.constant(node.scope, node.input(2)) if node.input(2) else None
    if zero_point is None:
        # the type is what is asked for, or that of the data
        if node.op == "QuantizeLinear":
            return (node.integer("output_dtype") or _UINT8) in _SYMMETRIC
        tensor = subject.view.constant(node.scope, node.input(0))
        return tensor is None or tensor.data_type in _SYMMETRIC
    if zero_point.data_type not in _SYMMETRIC:
        return False
    try:
        values = numpy_helper.to_array(zero_point, str(subject.folder))
    except (OSError, ValueError):  # other rules tell of data that is not whole
        return True
    return not np.any(values.astype(np.float32))


def outside_the_engine(subject: Subject) -> Hit | None:
    """Find nodes that no engine holds, where the provider loads an engine of the whole model only."""
    backend = subject.recipe.backend
    limit = whole_only(backend)
    if limit is None or subject.recipe.extensions:
        return None  # what plug-ins bring only the builder can tell
    found = [node for node in subject.view.graph.nodes if _stays_outside(subject, node)]
    if not found:
        return None
    return Hit(f"backend {backend} has no operator for {named(found)}, and {limit}", labels(found))


def unserved_types(subject: Subject) -> Hit | None:
    """Find inputs and outputs of types that the engine's provider refuses."""
    backend = subject.recipe.backend
    # of what no request or answer carries other rules tell
    tensors = [each for each in (*subject.inputs, *subject.outputs) if each.dtype in SERVED]
    found = unserved_tensors(backend, tensors)
    if not found:
        return None
    return Hit(
        f"{PROVIDERS[backend].title} refuses a model with inputs or outputs of these types:"
        f" {name_nodes(list(found))}"
    )


def _stays_outside(subject: Subject, node: RawNode) -> bool:
    if not node.is_standard(*UNKNOWN_TO_TENSORRT) or subject.view.is_local(node):
        return False
    given = [name for name in node.inputs if name]
    # of constants alone it may be computed beforehand
    return any(subject.view.constant(node.scope, name) is None for name in given)
