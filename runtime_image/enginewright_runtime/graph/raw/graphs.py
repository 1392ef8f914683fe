"""Reads a model's protobuf as parsed: rules, limits and format detection must see it unrepaired.

The only traversal of its graphs, nodes and tensors, including those of subgraphs (the bodies of If,
Loop and Scan) and of model-local functions. Code that resolves names to values is in `scopes`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import onnx
from enginewright_contract.manifest import TensorSpec
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)

# names that exporters give to every dynamic dimension, even if their sizes differ
PLACEHOLDER_DIMENSIONS: Final = frozenset({"?", "unknown", "None"})

_Proto = TypeVar("_Proto", ModelProto, NodeProto, TensorProto, ValueInfoProto)


class UnparsableError(ValueError):
    """The file's protobuf cannot be parsed: it is not an ONNX model, or is truncated."""


def parse(path: Path) -> ModelProto:
    """Parse a model without its external data; raises UnparsableError."""
    try:
        return onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise UnparsableError(str(path)) from error


def label(node: NodeProto, show: Callable[[str], str] = str) -> str:
    """Return "name (OpType)"; an unnamed node goes by its first output."""
    name = node.name or next((output for output in node.output if output), "unnamed")
    return f"{show(name)} ({show(node.op_type)})"


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def has_bodies(node: NodeProto) -> bool:
    """Return whether a node has bodies: If, Loop, Scan and SequenceMap do."""
    return any(True for _ in bodies(node))


def nodes_in(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes, each before the nodes of its bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from nodes_in(body.node)


def graphs_in(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield the graph and all bodies in it."""
    yield graph
    for node in nodes_in(graph.node):
        yield from bodies(node)


def walk_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield every node of the graph, of bodies and of model-local functions."""
    yield from nodes_in(model.graph.node)
    for function in model.functions:
        yield from nodes_in(function.node)


def walk_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """Yield the graph and every body, including those in model-local functions."""
    yield model.graph
    for node in walk_nodes(model):
        yield from bodies(node)


def walk_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every constant tensor: initializers and attributes, including those in bodies."""
    for graph in walk_graphs(model):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
            yield sparse.indices
    for node in walk_nodes(model):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors


def list_given_names(graph: GraphProto | FunctionProto) -> list[str]:
    """Return the names of the inputs and weights of a graph, or of a function's inputs."""
    if isinstance(graph, FunctionProto):
        return list(graph.input)
    names = [value.name for value in graph.input]
    names += [tensor.name for tensor in graph.initializer]
    return names + [sparse.values.name for sparse in graph.sparse_initializer]


def outputs_named(graph: GraphProto | FunctionProto) -> list[str]:
    """Return the names of the outputs of a graph or a function."""
    if isinstance(graph, FunctionProto):
        return list(graph.output)
    return [value.name for value in graph.output]


def list_defined_names(graph: GraphProto | FunctionProto) -> list[str]:
    """Return the names of a graph's own values, each once: inputs, initializers, node outputs."""
    names = [*list_given_names(graph), *(name for node in graph.node for name in node.output)]
    return [name for name in dict.fromkeys(names) if name]


def copy_of(proto: _Proto) -> _Proto:
    """Return a copy of a protobuf that may be changed."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Replace a graph's nodes; the new ones may include old ones."""
    # copied, since messages removed from a repeated field must not be used again
    copies = [copy_of(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def keep(entries: Any, is_kept: Callable[[Any], bool]) -> None:  # noqa: ANN401 - repeated field
    """Remove the entries of a repeated field that are not to be kept, in place."""
    for index in reversed(range(len(entries))):
        if not is_kept(entries[index]):
            del entries[index]


def elements(tensor: TensorProto) -> int:
    """Return the product of the dimensions; negative ones are multiplied as they are."""
    return math.prod(tensor.dims)


def external_entries(tensor: TensorProto) -> dict[str, str] | None:
    """Return location, offset and length of external data; None if the tensor is in the file."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    return {entry.key: entry.value for entry in tensor.external_data}


def is_inside(location: str) -> bool:
    """Return whether an external location is inside the model's folder."""
    path = PurePosixPath(location)
    return (
        bool(location)
        and not path.is_absolute()
        and ".." not in path.parts
        and "\\" not in location
    )


def default_opset(model: ModelProto) -> int | None:
    """Return the version of the domain ai.onnx that the model imports; None if it imports none."""
    versions = [entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}]
    return max(versions, default=None)


def inputs_of(model: ModelProto) -> tuple[TensorSpec, ...]:
    """Return the inputs that a caller must provide: those without an initializer."""
    constant = {tensor.name for tensor in model.graph.initializer}
    constant |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    return tuple(_spec(value) for value in model.graph.input if value.name not in constant)


def outputs_of(model: ModelProto) -> tuple[TensorSpec, ...]:
    """Return the graph's outputs."""
    return tuple(_spec(value) for value in model.graph.output)


def has_rank(model: ModelProto, name: str) -> bool:
    """Return whether the input `name` declares its rank."""
    return any(
        value.type.tensor_type.HasField("shape")
        for value in model.graph.input
        if value.name == name
    )


def _spec(value: ValueInfoProto) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return TensorSpec(
            name=value.name, dtype=(kind or "unknown").removesuffix("_type"), shape=()
        )
    tensor = value.type.tensor_type
    dimensions: list[int | str | None] = []
    for dimension in tensor.shape.dim:
        if dimension.WhichOneof("value") == "dim_value":
            # some exporters write -1 for dynamic, and ONNX Runtime accepts it
            dimensions.append(dimension.dim_value if dimension.dim_value >= 0 else None)
        else:
            dimensions.append(dimension.dim_param or None)
    return TensorSpec(name=value.name, dtype=_dtype_name(tensor.elem_type), shape=tuple(dimensions))


def _dtype_name(element: int) -> str:
    if element == TensorProto.STRING:
        return "string"
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(element).name)
    except KeyError:
        return "unknown"
