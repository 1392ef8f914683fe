"""What each IR version of ONNX introduced, and whether a model uses it.

From the comments at `enum Version` in onnx.proto and docs/IR.md of onnx 1.23.
"""

from collections.abc import Callable, Iterator
from typing import Final

from onnx import AttributeProto, ModelProto, TensorProto, TypeProto

from enginewright_runtime.graph.raw import graphs

_TYPES: Final[dict[int, tuple[str, ...]]] = {
    4: ("BFLOAT16",),
    9: ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    10: ("UINT4", "INT4"),
    11: ("FLOAT4E2M1",),
    12: ("FLOAT8E8M0",),
    13: ("UINT2", "INT2"),
    14: ("FLOAT6E2M3", "FLOAT6E3M2"),
}
_TYPE_ATTRIBUTES: Final = frozenset({"to", "dtype", "output_dtype"})
_TYPED_OPERATORS: Final = frozenset(
    {"Cast", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "EyeLike"}
    | {"Multinomial", "Bernoulli", "QuantizeLinear", "DequantizeLinear", "SequenceEmpty"}
)


def newer_than(model: ModelProto, version: int) -> list[str]:
    """Return the features of IR versions above `version` that the model uses, oldest first."""
    used = _element_types(model)
    features = [
        (at, f"element type {name}")
        for at, names in _TYPES.items()
        if at > version
        for name in names
        if TensorProto.DataType.Value(name) in used
    ]
    features += [
        (at, feature)
        for at, (feature, is_used) in _FEATURES.items()
        if at > version and is_used(model)
    ]
    return [feature for _, feature in sorted(features)]


def remove_annotations(model: ModelProto, version: int) -> None:
    """Remove, in place, annotations of newer IR versions: they affect no computation."""
    if version < 11:
        del model.configuration[:]
        for node in graphs.walk_nodes(model):
            del node.device_configurations[:]
    if version < 10:
        for graph in graphs.walk_graphs(model):
            del graph.metadata_props[:]
            for value in (*graph.input, *graph.output, *graph.value_info):
                del value.metadata_props[:]
        for tensor in graphs.walk_tensors(model):
            del tensor.metadata_props[:]
        for node in graphs.walk_nodes(model):
            del node.metadata_props[:]
        for function in model.functions:
            del function.metadata_props[:]
    if version < 7:
        del model.training_info[:]


def _element_types(model: ModelProto) -> set[int]:
    used = {tensor.data_type for tensor in graphs.walk_tensors(model)}
    for kind in _types(model):
        used |= {tensor.elem_type for tensor in _tensors_in(kind)}
    for node in graphs.walk_nodes(model):
        if node.op_type in _TYPED_OPERATORS:
            used |= {entry.i for entry in node.attribute if entry.name in _TYPE_ATTRIBUTES}
    return used


def _types(model: ModelProto) -> Iterator[TypeProto]:
    for graph in graphs.walk_graphs(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.type
    for node in graphs.walk_nodes(model):
        for entry in node.attribute:
            if entry.type == AttributeProto.TYPE_PROTO:
                yield entry.tp


def _tensors_in(kind: TypeProto) -> Iterator[TypeProto.Tensor]:
    match kind.WhichOneof("value"):
        case "tensor_type":
            yield kind.tensor_type
        case "sequence_type":
            yield from _tensors_in(kind.sequence_type.elem_type)
        case "optional_type":
            yield from _tensors_in(kind.optional_type.elem_type)
        case "map_type":
            yield from _tensors_in(kind.map_type.value_type)
        case _:
            return


def _uses_kind(*kinds: str) -> Callable[[ModelProto], bool]:
    return lambda model: any(kind.WhichOneof("value") in kinds for kind in _types(model))


def _has_free_initializers(model: ModelProto) -> bool:
    inputs = {value.name for value in model.graph.input}
    return any(tensor.name not in inputs for tensor in model.graph.initializer)


def _has_sparse(model: ModelProto) -> bool:
    return any(graph.sparse_initializer for graph in graphs.walk_graphs(model)) or any(
        entry.type in {AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS}
        for node in graphs.walk_nodes(model)
        for entry in node.attribute
    )


_FEATURES: Final[dict[int, tuple[str, Callable[[ModelProto], bool]]]] = {
    4: ("initializers that are not inputs", _has_free_initializers),
    6: ("sparse tensors", _has_sparse),
    8: (
        "model-local functions or optional values",
        lambda model: (
            bool(model.functions) or _uses_kind("optional_type", "sparse_tensor_type")(model)
        ),
    ),
    9: (
        "default attributes of functions",
        lambda model: any(function.attribute_proto for function in model.functions),
    ),
    10: (
        "overloaded functions",
        lambda model: any(function.overload for function in model.functions),
    ),
    14: ("opaque types", _uses_kind("opaque_type")),
}
