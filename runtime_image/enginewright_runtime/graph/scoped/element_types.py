"""Infers the element type of every value of a model, without native code and without weights.

ONNX's shape inference also finds shapes, but needs a copy of the model and a child process. Element types
suffice to decide whether an older version of an operator supports a node, and its schema defines how they
propagate from inputs to outputs.

Types are ONNX's type strings: "tensor(float16)". Unknown ones are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from enginewright_runtime.graph.raw.constants import constant_tensor
from enginewright_runtime.graph.raw.graphs import bodies, has_bodies, list_defined_names
from enginewright_runtime.graph.raw.schemas import STANDARD, attribute
from enginewright_runtime.graph.raw.signatures import (
    OperatorSignature,
    onnx_signature,
    output_types,
)

Types = Mapping[str, str]
Signatures = Callable[[NodeProto], OperatorSignature | None]

# attributes that name the element type of the first output
_TYPE_ATTRIBUTES: Final = ("to", "dtype", "output_dtype")
_STRINGS: Final = ("value_string", "value_strings")  # of a Constant


def type_string(element: int) -> str | None:
    """Return the type string of tensors of an element type of TensorProto; None if it is undefined."""
    try:
        return f"tensor({TensorProto.DataType.Name(element).lower()})"
    except ValueError:
        return None


def types_of(model: ModelProto, others: Signatures = lambda _: None) -> dict[str, str]:
    """Return the types of all values of the graph and its bodies, by name; no two scopes may share a name.

    Values of model-local functions have none. `others` returns the signatures of operators that ONNX lacks.
    """
    opset = max((item.version for item in model.opset_import if item.domain in STANDARD), default=1)
    types: dict[str, str] = {}
    _graph(model.graph, opset, others, types)
    return types


def _graph(graph: GraphProto, opset: int, others: Signatures, types: dict[str, str]) -> None:
    own = {*list_defined_names(graph)}  # value_info of outer values may predate a renaming
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.name in own:
            _note(types, value.name, format_type(value.type))
    for tensor in graph.initializer:
        _note(types, tensor.name, type_string(tensor.data_type))
    for node in graph.node:
        for body in bodies(node):
            _graph(body, opset, others, types)
        for name, kind in zip(node.output, _outputs(node, opset, types), strict=False):
            _note(types, name, kind)
        unknown = any(name and name not in types for name in node.output)
        if unknown and (signature := others(node)) is not None:
            for name, kind in zip(node.output, output_types(node, signature, types), strict=True):
                _note(types, name, kind)


def _note(types: dict[str, str], name: str, kind: str | None) -> None:
    if name and kind:
        types.setdefault(name, kind)


def format_type(kind: TypeProto) -> str | None:
    """Return the type string of a declared type; None for kinds that are not supported here."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            return type_string(kind.tensor_type.elem_type)
        case "sequence_type":
            inner = format_type(kind.sequence_type.elem_type)
            return f"seq({inner})" if inner else None
        case "optional_type":
            inner = format_type(kind.optional_type.elem_type)
            return f"optional({inner})" if inner else None
        case _:
            return None


def _outputs(node: NodeProto, opset: int, types: Types) -> Sequence[str | None]:
    unknown: list[str | None] = [None] * len(node.output)
    if node.domain not in STANDARD or not node.output:
        return unknown
    for name in _TYPE_ATTRIBUTES:
        entry = attribute(node, name)
        if entry is not None and entry.i:
            return [type_string(entry.i), *unknown[1:]]
    match node.op_type:
        case "Constant":
            return [_constant(node)]
        case "ConstantOfShape":
            entry = attribute(node, "value")
            return [type_string(entry.t.data_type) if entry else "tensor(float)"]
        case "If" | "Loop" | "Scan":
            first = next(bodies(node), None)
            outputs = list(first.output) if first else []
            if node.op_type == "Loop":  # the first output of its body is the condition
                del outputs[:1]
            return [types.get(value.name) for value in outputs] or unknown
        case _:
            pass
    return _by_schema(node, opset, types)


def _by_schema(node: NodeProto, opset: int, types: Types) -> Sequence[str | None]:
    signature = onnx_signature(node.op_type, "", opset)
    if signature is None or has_bodies(node):
        return [None] * len(node.output)
    if node.op_type == "DequantizeLinear":  # since opset 23 no type variable binds scale and result
        return [types.get(node.input[1])]
    return output_types(node, signature, types)


def _constant(node: NodeProto) -> str | None:
    if (tensor := constant_tensor(node)) is not None:
        return type_string(tensor.data_type)
    for entry in node.attribute:
        if entry.type == AttributeProto.SPARSE_TENSOR:
            return type_string(entry.sparse_tensor.values.data_type)
        if entry.name in _STRINGS:
            return "tensor(string)"
    return None
