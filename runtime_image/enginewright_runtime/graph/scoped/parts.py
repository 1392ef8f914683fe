"""Cuts parts out of a model, to be built as engines. Pure, on ONNX protobufs without their weights."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from enginewright_runtime.core.labels import reported_label
from enginewright_runtime.graph.raw.graphs import nodes_in
from enginewright_runtime.graph.scoped.scopes import Scope, Value

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


class Cutter:
    """Cuts parts out of a model; initializers stay where external ones are found: in the same folder."""

    def __init__(self, model: ModelProto, types: Mapping[str, TensorType]) -> None:
        """Begin; `types` are those of all tensors that may be inputs or outputs of a part."""
        self._model = model
        self._types = types
        self._nodes = Scope(model.graph).nodes
        self._place = {node: index for index, node in enumerate(self._nodes)}

    def part(self, nodes: Sequence[int]) -> Part | None:
        """Return a part of these nodes, none of them a constant.

        None if it has no inputs, no outputs, or one of unknown type.
        """
        graph, types = self._model.graph, self._types
        chosen = [self._nodes[index] for index in nodes]
        needed = [value for node in chosen for value in sorted(node.consumes(), key=_name)]
        used = {value.name for value in needed}
        makers = {value.producer for value in needed} - {None, *chosen}
        constants = sorted(
            self._place[maker]
            for maker in makers
            if maker is not None and maker.proto.op_type == CONSTANT
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
        part.graph.initializer.extend(each for each in graph.initializer if each.name in used)
        part.graph.sparse_initializer.extend(
            each for each in graph.sparse_initializer if each.values.name in used
        )
        return Part(part, origins, tuple(inputs), outputs)


def _name(value: Value) -> str:
    return value.name


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
