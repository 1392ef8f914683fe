"""Extracts partitions of a model, to be built as engines. Pure; works without the weights."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from enginewright_runtime.core.labels import format_label
from enginewright_runtime.graph.raw.graphs import nodes_in
from enginewright_runtime.graph.scoped.scopes import Scope

CONSTANT: Final = "Constant"


@dataclass(frozen=True)
class TensorType:
    """Element type, as TensorProto numbers it, and dimensions, a name or None where dynamic."""

    element: int
    dimensions: tuple[int | str | None, ...]

    def info(self, name: str) -> ValueInfoProto:
        """Return a tensor `name` of this type."""
        return helper.make_tensor_value_info(name, self.element, self.dimensions)


@dataclass(frozen=True)
class TensorProfile:
    """The range of a tensor's shape in an engine; also of its values if it is a shape tensor."""

    name: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]
    values: tuple[tuple[int, ...], ...] | None = None  # min, opt and max of a shape tensor


@dataclass(frozen=True)
class Part:
    """Nodes extracted from a model, as a separate model."""

    model: ModelProto
    origins: tuple[int, ...]  # index in the full model of every node here
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def origin(self, index: int) -> int | None:
        """Return the node's index in the full model; None if the part has no such node."""
        return self.origins[index] if 0 <= index < len(self.origins) else None


def computing(model: ModelProto, nodes: Iterable[int]) -> list[int]:
    """Return the nodes that are not constants, since these are copied into every part that uses them."""
    return [index for index in nodes if model.graph.node[index].op_type != CONSTANT]


def labels(node: NodeProto) -> list[str]:
    """Return the labels of a node and of all nodes in its bodies."""
    return [format_label(proto.name, proto.op_type) for proto in nodes_in([node])]


class Cutter:
    """Extracts parts; they must be saved in the model's folder, where external data is found."""

    def __init__(self, model: ModelProto, types: Mapping[str, TensorType]) -> None:
        """Prepare; `types` has every tensor that may be an input or output of a part."""
        self._model = model
        self._types = types
        self._nodes = Scope(model.graph).nodes
        self._place = {node: index for index, node in enumerate(self._nodes)}

    def part(self, nodes: Sequence[int]) -> Part | None:
        """Return a part of these nodes, none a constant, or None without inputs or outputs, or with one of unknown type."""
        graph, types = self._model.graph, self._types
        chosen = [self._nodes[index] for index in nodes]
        needed = [
            value
            for node in chosen
            for value in sorted(node.consumes(), key=lambda value: value.name)
        ]
        used = {value.name for value in needed}
        producers = {value.producer for value in needed} - {None, *chosen}
        constants = sorted(
            self._place[producer]
            for producer in producers
            if producer is not None and producer.proto.op_type == CONSTANT
        )
        weights = {tensor.name for tensor in graph.initializer}
        weights |= {sparse.values.name for sparse in graph.sparse_initializer}
        inside = {*chosen, *(self._nodes[index] for index in constants)}
        inputs = dict.fromkeys(
            value.name
            for value in needed
            if value.producer not in inside and value.name not in weights
        )
        outputs = tuple(
            value.name
            for node in chosen
            for value in node.produces()
            if any(reader.top not in inside for reader in value.readers)
        )
        if not inputs or not outputs or not types.keys() >= {*inputs, *outputs}:
            return None
        origins = (*constants, *sorted(nodes))
        part = ModelProto(ir_version=self._model.ir_version)
        part.opset_import.extend(self._model.opset_import)
        part.functions.extend(self._model.functions)
        part.graph.name = graph.name or "part"
        part.graph.node.extend(graph.node[index] for index in origins)
        part.graph.input.extend(types[name].info(name) for name in inputs)
        part.graph.output.extend(types[name].info(name) for name in outputs)
        part.graph.initializer.extend(item for item in graph.initializer if item.name in used)
        part.graph.sparse_initializer.extend(
            item for item in graph.sparse_initializer if item.values.name in used
        )
        return Part(part, origins, tuple(inputs), outputs)


def contradicts(model: ModelProto, profiles: Sequence[TensorProfile]) -> set[str]:
    """Return names of dimensions with several sizes in the profiles; TensorRT assumes that each has one."""
    by_name = {profile.name: profile for profile in profiles}
    sizes_of: dict[str, set[tuple[int, ...]]] = {}
    for value in model.graph.input:
        if profile := by_name.get(value.name):
            dimensions = value.type.tensor_type.shape.dim
            rows = zip(profile.min, profile.opt, profile.max, strict=True)
            for dimension, sizes in zip(dimensions, rows, strict=False):
                if dimension.dim_param:
                    sizes_of.setdefault(dimension.dim_param, set()).add(sizes)
    return {name for name, sizes in sizes_of.items() if len(sizes) > 1}


def forget(model: ModelProto, names: Collection[str]) -> None:
    """Clear these names in the dimensions of the model's inputs, in place."""
    for value in model.graph.input:
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in names:
                dimension.ClearField("dim_param")
