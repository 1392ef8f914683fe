"""What engines, and the providers that serve them, do not support, found before anything is built.

Control flow: ONNX Runtime runs If, Loop and Scan on its CPU and CUDA providers
(docs/OperatorKernels.md of onnxruntime), so nothing is found there. Whether OpenVINO supports a
model's control flow is found when it loads the model. TensorRT's parser supports it under conditions
(docs/operators.md of onnx-tensorrt, for TensorRT 10): If: outputs of both branches have the same
rank; Loop: scan outputs have a fixed length, loop-carried values keep their shape. A model that
violates them is refused only in the cases in which TensorRT-RTX 1.7 does so; it accepts branches
whose outputs share a name, and a Scan over integers, which that page excludes.

Models that are already quantised: only symmetric types, and zero points of 0.
"""

from typing import Final

import numpy as np
from enginewright_contract.engines import PROVIDERS, unserved_tensors, whole_only
from enginewright_contract.report import name_nodes
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
_UINT8: Final = int(TensorProto.UINT8)  # the default type (ONNX, QuantizeLinear)
# docs/operators.md of onnx-tensorrt for TensorRT 10.15: "N" in column Supported, except operators
# with a function body in ONNX, which are expanded for engines where that helps.
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
        f"backend {subject.recipe.backend} supports control flow only under conditions:"
        f" {named(found)}"
    )
    if refused := [why for node in found if (why := _refused(node)) is not None]:
        message += f"; it refuses {name_nodes(refused)}"
    if constant := sum(_has_constant_condition(subject, node) for node in found):
        message += f"; {counted(constant, 'condition')} of {len(found)} can be folded away"
    return Hit(message, labels(found))


def _refused(node: RawNode) -> str | None:
    """Return a sentence if TensorRT refuses the node, as far as the model's declarations show."""
    graphs = list(bodies(node.proto))
    if node.op == "If" and len(graphs) > 1:
        for first, second in zip(graphs[0].output, graphs[1].output, strict=False):
            one, other = _rank(first), _rank(second)
            if one is not None and other is not None and one != other:
                return (
                    f"{node.label}, whose branches have outputs of rank {one} and {other}, unless"
                    " its condition is constant"
                )
    if node.op == "Loop" and node.bodies and not node.input(1):
        condition = node.bodies[0].inputs[1:2]
        if any(name in condition for inner in node.bodies[0].nodes for name in inner.inputs):
            return (
                f"{node.label}, whose body reads the condition although the node has none as input"
            )
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
    """Find operators that compute with integers, which TensorRT lacks."""
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
    """Tell whether it is a bias of 32-bit integers, which `convert` dequantizes."""
    if node.op != "DequantizeLinear":
        return False
    tensor = subject.view.constant(node.scope, node.input(0))
    return tensor is not None and tensor.data_type == TensorProto.INT32


def _is_symmetric(subject: Subject, node: RawNode) -> bool:
    zero_point = subject.view.constant(node.scope, node.input(2)) if node.input(2) else None
    if zero_point is None:
        # the type is the attribute's, or the data's
        if node.op == "QuantizeLinear":
            return (node.integer("output_dtype") or _UINT8) in _SYMMETRIC
        tensor = subject.view.constant(node.scope, node.input(0))
        return tensor is None or tensor.data_type in _SYMMETRIC
    if zero_point.data_type not in _SYMMETRIC:
        return False
    try:
        values = numpy_helper.to_array(zero_point, str(subject.folder))
    except (OSError, ValueError):  # other rules find incomplete data
        return True
    return not np.any(values.astype(np.float32))


def outside_the_engine(subject: Subject) -> Hit | None:
    """Find nodes that no engine can contain, where only engines of complete models load."""
    backend = subject.recipe.backend
    limit = whole_only(backend)
    if limit is None or subject.recipe.extensions:
        return None  # only the builder knows the plug-ins' operators
    found = [node for node in subject.view.graph.nodes if _stays_outside(subject, node)]
    if not found:
        return None
    return Hit(f"backend {backend} has no operator for {named(found)}, and {limit}", labels(found))


def unserved_types(subject: Subject) -> Hit | None:
    """Find inputs and outputs of types that the engine's provider refuses."""
    backend = subject.recipe.backend
    # other rules find types that no request or response can carry
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
    # with constant inputs only, it may be folded
    return any(subject.view.constant(node.scope, name) is None for name in given)
