"""The rule on names that are no text. Every other rule, and most of Python, takes them for text."""

from collections.abc import Iterable, Iterator

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from enginewright_runtime.graph.raw.graphs import bodies
from enginewright_runtime.rules.base import Hit
from enginewright_runtime.rules.text import LONGEST_NAME


def undecodable(model: ModelProto) -> Hit | None:
    """Find names that are no UTF-8; protobuf gives such as bytes, so they are looked for first."""
    found = next((name for name in _texts(model) if not isinstance(name, str)), None)
    if found is None:
        return None
    return Hit(f"names are no UTF-8: {found!r:.{LONGEST_NAME}}")


def _texts(model: ModelProto) -> Iterator[str | bytes]:
    for imported in model.opset_import:
        yield imported.domain
    yield from _texts_of(model.graph)
    for function in model.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output)
        for imported in function.opset_import:
            yield imported.domain
        yield from _texts_of_nodes(function.node)


def _texts_of(graph: GraphProto) -> Iterator[str | bytes]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        for dimension in value.type.tensor_type.shape.dim:
            yield dimension.dim_param
    for tensor in graph.initializer:
        yield from _texts_of_tensor(tensor)
    for sparse in graph.sparse_initializer:
        yield from _texts_of_tensor(sparse.values)
        yield from _texts_of_tensor(sparse.indices)
    yield from _texts_of_nodes(graph.node)


def _texts_of_nodes(nodes: Iterable[NodeProto]) -> Iterator[str | bytes]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.overload)
        yield from node.input
        yield from node.output
        for entry in node.attribute:
            yield entry.name
            if entry.HasField("t"):
                yield from _texts_of_tensor(entry.t)
            for tensor in entry.tensors:
                yield from _texts_of_tensor(tensor)
        for body in bodies(node):
            yield from _texts_of(body)


def _texts_of_tensor(tensor: TensorProto) -> Iterator[str | bytes]:
    yield tensor.name
    for entry in tensor.external_data:
        yield entry.key
        yield entry.value
