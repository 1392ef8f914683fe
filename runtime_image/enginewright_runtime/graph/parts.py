"""Cuts a model into parts and puts parts in order. Pure, on ONNX protobufs without their weights."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    ValueInfoProto,
    helper,
)

from enginewright_runtime.core.labels import label
from enginewright_runtime.graph.shapes import CORNERS

CONSTANT: Final = "Constant"


@dataclass(frozen=True)
class TensorType:
    """Element type, as TensorProto numbers it, and dimensions (a name or None: dynamic)."""

    element: int
    dimensions: tuple[int | str | None, ...]

    @classmethod
    def parse(cls, value: Sequence[Any]) -> Self:
        """Read what `tensors.types` gives."""
        element, dimensions = value
        return cls(element, tuple(dimensions))

    def info(self, name: str) -> ValueInfoProto:
        """Return a tensor `name` of this type."""
        return helper.make_tensor_value_info(name, self.element, self.dimensions)


@dataclass(frozen=True)
class Part:
    """Nodes cut out of a model, as a model of their own."""

    model: ModelProto
    origins: tuple[int, ...]  # index in the whole model of every node here
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def origin(self, index: int) -> int | None:
        """Return the node's index in the whole model; None for none of its nodes."""
        return self.origins[index] if 0 <= index < len(self.origins) else None


def computing(model: ModelProto, nodes: Iterable[int]) -> list[int]:
    """Return those nodes that are no constants: a constant goes wherever it is used."""
    return [index for index in nodes if model.graph.node[index].op_type != CONSTANT]


def labels(node: NodeProto) -> list[str]:
    """Return the labels of a node and of all nodes in its subgraphs."""
    found = [label(node.name, node.op_type)]
    for graph in _subgraphs(node):
        for inner in graph.node:
            found += labels(inner)
    return found


def extract(
    model: ModelProto, nodes: Sequence[int], types: Mapping[str, TensorType]
) -> Part | None:
    """Cut `nodes`, none of them a constant, out of the model.

    Initializers stay where they are: external ones are found from the same folder.

    Returns:
        The part, None if it has no inputs, no outputs, or one of unknown type.
    """
    graph = model.graph
    inside = set(nodes)
    values = {tensor.name for tensor in graph.initializer}
    values |= {sparse.values.name for sparse in graph.sparse_initializer}
    constants = {
        name: index
        for index, node in enumerate(graph.node)
        if node.op_type == CONSTANT
        for name in node.output
    }
    produced = {name for index in nodes for name in graph.node[index].output if name}
    needed = dict.fromkeys(name for index in nodes for name in sorted(uses(graph.node[index])))
    inputs = tuple(
        name
        for name in needed
        if name not in produced and name not in values and name not in constants
    )
    wanted = {value.name for value in graph.output}
    for index, node in enumerate(graph.node):
        if index not in inside:
            wanted |= uses(node)
    outputs = tuple(
        name for index in nodes for name in graph.node[index].output if name in wanted and name
    )
    if not inputs or not outputs or not types.keys() >= {*inputs, *outputs}:
        return None
    origins = (*sorted({constants[name] for name in needed if name in constants}), *sorted(nodes))
    part = ModelProto(ir_version=model.ir_version)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.name = graph.name or "part"
    part.graph.node.extend(graph.node[index] for index in origins)
    part.graph.input.extend(types[name].info(name) for name in inputs)
    part.graph.output.extend(types[name].info(name) for name in outputs)
    part.graph.initializer.extend(each for each in graph.initializer if each.name in needed)
    part.graph.sparse_initializer.extend(
        each for each in graph.sparse_initializer if each.values.name in needed
    )
    return Part(part, origins, inputs, outputs)


def contradicts(model: ModelProto, profiles: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return names of dimensions that the profiles give several sizes.

    TensorRT takes equal names for equal sizes; some exporters call every open dimension "?".

    Args:
        model: its inputs name the dimensions.
        profiles: `min`, `opt` and `max` by input.
    """
    found: dict[str, set[tuple[int, ...]]] = {}
    for value in model.graph.input:
        if profile := profiles.get(value.name):
            dimensions = value.type.tensor_type.shape.dim
            rows = zip(*(profile[corner] for corner in CORNERS), strict=True)
            for dimension, sizes in zip(dimensions, rows, strict=False):
                if dimension.dim_param:
                    found.setdefault(dimension.dim_param, set()).add(sizes)
    return {name for name, sizes in found.items() if len(sizes) > 1}


def forget(model: ModelProto, names: Collection[str]) -> None:
    """Take these names from the dimensions of the model's inputs, in place."""
    for value in model.graph.input:
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in names:
                dimension.ClearField("dim_param")


def uses(node: NodeProto) -> set[str]:
    """Return the tensors that a node reads, those that its subgraphs take from outside too."""
    found = {name for name in node.input if name}
    for graph in _subgraphs(node):
        found |= _free(graph)
    return found


def order(nodes: Sequence[NodeProto]) -> list[int] | None:
    """Return the nodes' indices so that each comes after what it reads; None for a cycle.

    Stable: of those that could come next, the first does.
    """
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    readers: dict[int, list[int]] = {}
    waiting: Counter[int] = Counter()
    for index, node in enumerate(nodes):
        for maker in {makers[name] for name in uses(node) if name in makers}:
            readers.setdefault(maker, []).append(index)
            waiting[index] += 1
    ready = [index for index in range(len(nodes)) if not waiting[index]]
    found = []
    while ready:
        index = heapq.heappop(ready)
        found.append(index)
        for reader in readers.get(index, []):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return found if len(found) == len(nodes) else None


def _free(graph: GraphProto) -> set[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {sparse.values.name for sparse in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    found = {value.name for value in graph.output}
    for node in graph.node:
        found |= uses(node)
    return found - own


def _subgraphs(node: NodeProto) -> list[GraphProto]:
    found = []
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            found.append(attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            found += attribute.graphs
    return found
