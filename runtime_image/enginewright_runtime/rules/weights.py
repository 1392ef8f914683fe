"""Rules on the values of weights. They are read once, piece by piece.

NaN alone is no error: some models use it as a fill value. Where it is multiplied and summed, every
answer is NaN, which `nan-answers` finds when the model runs. Minus infinity masks attention, and
infinity bounds a Clip, so infinities are reported only in operands of products.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from onnx import TensorProto

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.rules import contents
from enginewright_runtime.rules.base import Hit, Subject, hit_of
from enginewright_runtime.rules.view import RawNode

_NORMALIZATIONS: Final = {
    "BatchNormalization": (1, 2, 3, 4),
    "LayerNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "RMSNormalization": (1,),
}
# Inputs that are multiplied and added into the outputs, for all values of the other inputs
# (docs/Operators.md of onnx).
_LINEAR: Final = _NORMALIZATIONS | {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (0, 1),
    "MatMul": (0, 1),
    "LSTM": (1, 2, 3),
    "GRU": (1, 2, 3),
    "RNN": (1, 2, 3),
}
_PASS_THROUGH: Final = frozenset(
    {"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "DequantizeLinear"}
)
# the smallest value that float16 rounds to infinity (IEEE 754-2019, 4.3)
_HALF_OVERFLOW: Final = 65520.0
_MAX_INTEGERS: Final = 1 << 20  # elements of one constant; larger ones are not checked
_SENTINEL: Final = 1 << 62  # "to the end", as exporters write it


def nan_in_weights(subject: Subject) -> Hit | None:
    """Find NaN in weights that are multiplied, and among numbers in other constants."""
    operands = {id(tensor) for _, _, tensor in _operands(subject)}
    attributes = {id(tensor) for tensor in _of_other_attributes(subject)}
    names = []
    for name, tensor in subject.tensors:
        summary = subject.summaries.get(id(tensor))
        if summary is None or not summary.nan or id(tensor) in attributes:
            continue
        count = graphs.elements(tensor)
        if id(tensor) in operands or summary.nan < count:  # all NaN is a fill value
            names.append(f"{name} ({summary.nan} of {count} values)")
    return hit_of(names, "weights are NaN")


def infinity_in_weights(subject: Subject) -> Hit | None:
    """Find infinity in weights that are multiplied."""
    names: dict[str, None] = {}
    nodes: dict[str, None] = {}
    for node, name, tensor in _operands(subject):
        summary = subject.summary(tensor)
        if summary is not None and (summary.positive_infinities or summary.negative_infinities):
            infinite = summary.positive_infinities + summary.negative_infinities
            names[f"{name} ({infinite} of {graphs.elements(tensor)} values)"] = None
            nodes[node.label] = None
    return hit_of(list(names), "weights are infinite", nodes)


def half_overflow(subject: Subject) -> Hit | None:
    """Find constants that overflowed in float16, or will when cast to it; negative ones mostly mask attention."""
    values = []
    nodes = []
    for node in subject.view.nodes:
        if node.is_standard("Add", "Mul") and _adds_infinity(subject, node):
            values.append(f"infinity in {node.label}")
            nodes.append(node.label)
    for node in _casts(subject, TensorProto.FLOAT16):
        tensor = subject.view.constant(node.scope, node.input(0))
        summary = None if tensor is None else subject.summary(tensor)
        if summary is not None and summary.maximum >= _HALF_OVERFLOW:
            values.append(f"{summary.maximum:.6g} before {node.label}")
            nodes.append(node.label)
    return hit_of(values, "constants exceed the range of float16", nodes)


def _adds_infinity(subject: Subject, node: RawNode) -> bool:
    for name in node.inputs:
        tensor = subject.view.constant(node.scope, name)
        if tensor is not None and tensor.data_type == TensorProto.FLOAT16:
            summary = subject.summary(tensor)
            if summary is not None and summary.positive_infinities:
                return True
    return False


def half_range(subject: Subject) -> Hit | None:
    """Find weights that float16 cannot represent, if the model, or what is not quantized of it, is to be served in FP16."""
    if "FP16" not in {subject.recipe.precision, subject.recipe.rest}:
        return None
    names: dict[str, None] = {}
    nodes: dict[str, None] = {}
    for node, name, tensor in _operands(subject):
        summary = subject.summary(tensor)
        if tensor.data_type == TensorProto.FLOAT16 or summary is None:
            continue
        largest = max(summary.maximum, -summary.minimum)
        if largest >= _HALF_OVERFLOW:
            names[f"{name} (up to {largest:.6g})"] = None
            nodes[node.label] = None
    return hit_of(list(names), "float16 cannot represent these weights", nodes)


def integer_overflow(subject: Subject) -> Hit | None:
    """Find integer constants that overflow in a Cast."""
    casts = []
    nodes = []
    for node in subject.view.nodes:
        kind = node.integer("to") if node.is_standard("Cast") else 0
        if kind not in _INTEGERS:
            continue
        limits = np.iinfo(_INTEGERS[kind])
        values = _constant_integers(subject, node)
        if (
            values is not None
            and (outside := values[(values < limits.min) | (values > limits.max)]).size
        ):
            casts.append(f"{int(outside[0])} to {_INTEGERS[kind]} in {node.label}")
            nodes.append(node.label)
    return hit_of(casts, "constants overflow in a Cast", nodes)


def find_narrowed_integers(subject: Subject) -> Hit | None:
    """Find 64-bit constants where the backend computes in 32 bits."""
    if subject.recipe.backend != "openvino":
        return None
    limits = np.iinfo(np.int32)
    names = []
    for name, tensor in subject.tensors:
        if tensor.data_type not in {TensorProto.INT64, TensorProto.UINT64}:
            continue
        values = contents.integers(tensor, subject.folder, _MAX_INTEGERS)
        if values is None:
            continue
        large = values[(values > limits.max) | (values < limits.min)]
        large = large[(large < _SENTINEL) & (large > -_SENTINEL)]
        if large.size:
            names.append(f"{name} ({int(large[0])})")
    return hit_of(
        names, "backend openvino computes in 32-bit integers, and these constants need more"
    )


_INTEGERS: Final[dict[int, str]] = {
    TensorProto.INT32: "int32",
    TensorProto.INT16: "int16",
    TensorProto.INT8: "int8",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT8: "uint8",
}


def _operands(subject: Subject) -> Iterator[tuple[RawNode, str, TensorProto]]:
    names = {id(tensor): name for name, tensor in subject.tensors}
    for node in subject.view.nodes:
        for index in _LINEAR.get(node.op, ()) if node.domain == "" else ():
            tensor = subject.view.origin(node.scope, node.input(index), _PASS_THROUGH)
            if tensor is not None:
                yield node, names.get(id(tensor), node.label), tensor


def _of_other_attributes(subject: Subject) -> Iterator[TensorProto]:
    """Yield tensors in attributes that are not weights, in which NaN may mean "no value"."""
    for node in subject.view.nodes:
        if not node.is_standard("Constant"):
            yield from (entry.t for entry in node.proto.attribute if entry.HasField("t"))


def _casts(subject: Subject, kind: int) -> Iterator[RawNode]:
    for node in subject.view.nodes:
        if node.is_standard("Cast") and node.integer("to") == kind:
            yield node


def _constant_integers(subject: Subject, node: RawNode) -> contents.Array | None:
    tensor = subject.view.constant(node.scope, node.input(0))
    if tensor is None:
        return None
    return contents.integers(tensor, subject.folder, _MAX_INTEGERS)
