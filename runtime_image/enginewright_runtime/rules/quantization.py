"""What TensorRT takes of a model that others have quantised: symmetric types, zero points of 0."""

from typing import Final

import numpy as np
from onnx import TensorProto, numpy_helper

from enginewright_runtime.core.logs import counted
from enginewright_runtime.rules.base import Hit, Subject, labels, named
from enginewright_runtime.rules.view import RawNode

_NODES: Final = ("QuantizeLinear", "DequantizeLinear")
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


def asymmetric(subject: Subject) -> Hit | None:
    """Find quantisation that TensorRT leaves outside the engine."""
    if not subject.compiled:
        return None
    found = [
        node
        for node in subject.view.nodes
        if node.is_standard(*_NODES) and not _is_bias(subject, node) and not _fits(subject, node)
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


def _fits(subject: Subject, node: RawNode) -> bool:
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
