"""What engines, and the providers that serve them, do not support, found before anything is built.

Control flow: ONNX Runtime runs If, Loop and Scan on its CPU and CUDA providers
(docs/OperatorKernels.md of onnxruntime); OpenVINO shows whether it does when it loads the model.
TensorRT's parser supports them under conditions (docs/operators.md of onnx-tensorrt, for TensorRT
10): the outputs of both branches of an If have the same rank; scan outputs of a Loop have a fixed
length, and loop-carried values keep their shape. A model that violates them is refused only where
TensorRT-RTX 1.7 refuses it: contrary to that page, it accepts branches whose outputs share a name,
and a Scan over integers.

Quantized models: only symmetric types, and zero points of 0.
"""

from typing import Final

import numpy as np
from enginewright_contract.engines import PROVIDERS, find_unserved_tensors, whole_only
from enginewright_contract.report import name_nodes
from onnx import TensorProto, ValueInfoProto, numpy_helper

from enginewright_runtime.core.logs import format_count
from enginewright_runtime.graph.raw.graphs import bodies
from enginewright_runtime.rules.base import Hit, Subject, hit_of, hit_on, labels, list_nodes
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
    nodes = [node for node in subject.view.nodes if node.is_standard(*FLOW)]
    if not nodes:
        return None
    message = (
        f"backend {subject.recipe.backend} supports control flow only under conditions:"
        f" {list_nodes(nodes)}"
    )
    if refused := [why for node in nodes if (why := _explain_refusal(node)) is not None]:
        message += f"; it refuses {name_nodes(refused)}"
    if constant := sum(_has_constant_condition(subject, node) for node in nodes):
        message += f"; {format_count(constant, 'condition')} of {len(nodes)} can be folded away"
    return Hit(message, labels(nodes))


def _explain_refusal(node: RawNode) -> str | None:
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
    """Find quantization that TensorRT leaves outside the engine."""
    if not subject.compiled:
        return None
    nodes = [
        node
        for node in subject.view.nodes
        if node.is_standard(*_QUANTIZERS)
        and not _is_bias(subject, node)
        and not _is_symmetric(subject, node)
    ]
    return hit_on(
        nodes,
        f"{format_count(len(nodes), 'quantization node')} with unsigned types, or zero points other than"
        " 0, and the nodes between them stay outside the engine",
    )


def integer_operators(subject: Subject) -> Hit | None:
    """Find operators that compute with integers, which TensorRT lacks."""
    if not subject.compiled:
        return None
    nodes = [node for node in subject.view.nodes if node.is_standard(*_INTEGER)]
    return hit_on(
        nodes, f"{format_count(len(nodes), 'node')} of dynamic or operator-by-operator quantization"
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
    nodes = [node for node in subject.view.graph.nodes if _stays_outside(subject, node)]
    if not nodes:
        return None
    return Hit(
        f"backend {backend} has no operator for {list_nodes(nodes)}, and {limit}", labels(nodes)
    )


def find_unserved_types(subject: Subject) -> Hit | None:
    """Find inputs and outputs of types that the engine's provider refuses."""
    backend = subject.recipe.backend
    # other rules find types that no request or response can carry
    tensors = [spec for spec in (*subject.inputs, *subject.outputs) if spec.dtype in SERVED]
    unserved = list(find_unserved_tensors(backend, tensors))
    if not unserved:
        return None
    provider = PROVIDERS[backend].title
    return hit_of(unserved, f"{provider} refuses a model with inputs or outputs of these types")


def _stays_outside(subject: Subject, node: RawNode) -> bool:
    if not node.is_standard(*UNKNOWN_TO_TENSORRT) or subject.view.is_local(node):
        return False
    # with constant inputs only, it may be folded
    return any(name and subject.view.constant(node.scope, name) is None for name in node.inputs)
