"""Cuts parts out of a model, to be built as engines. Pure, on ONNX protobufs without their weights."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from enginewright_runtime.core.labels import reported_label
from enginewright_runtime.graph.raw.graphs import nodes_in
from enginewright_runtime.graph.scoped.order import uses

CONSTANT: Final = "Constant"


@dataclass(frozen=True)
class TensorType:
    """Element type, as TensorProto numbers it, and dimensions (a name or None: dynamic)."""

    element: int
    dimensions: tuple[int | str | None, ...]

    def info(self, name: str) -> ValueInfoProto:
        """Return a tensor `name` of this type."""
        return helper.make_tensor_value_info(name, self.element, self.dimensions)


@dataclass(frozen=True)
class TensorProfile:
    """Sizes of a tensor that an engine takes; also values, where these are sizes themselves."""

    name: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]
    values: tuple[tuple[int, ...], ...] | None = None  # min, opt and max


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
    """Return the labels of a node and of all nodes in its bodies."""
    return [reported_label(each.name, each.op_type) for each in nodes_in([node])]


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


def contradicts(model: ModelProto, profiles: Sequence[TensorProfile]) -> set[str]:
    """Return names of dimensions that the profiles give several sizes.

    TensorRT takes equal names for equal sizes; some exporters call every open dimension "?".
    """
    known = {profile.name: profile for profile in profiles}
    found: dict[str, set[tuple[int, ...]]] = {}
    for value in model.graph.input:
        if profile := known.get(value.name):
            dimensions = value.type.tensor_type.shape.dim
            rows = zip(profile.min, profile.opt, profile.max, strict=True)
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
