"""Types and sizes of a model's values, by ONNX's shape inference, without its weights.

Native code: to be called in a child process.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from enginewright_runtime.graph.parts import order

_LARGE: Final = 1024  # elements of a weight, which no size is computed from
Sizes = Mapping[str, Sequence[int | None]]


def infer(
    model: ModelProto,
    sizes: Sizes | None = None,
    known: Mapping[str, TensorProto] | None = None,
) -> dict[str, TypeProto]:
    """Return the types of the values of the graph and its subgraphs, by name, as far as known.

    Args:
        model: left unchanged; external data need not be loaded. No two bodies may share a name
            (`scopes.rename_apart`) where types inside them matter.
        sizes: dimensions of inputs that are known beyond what the model declares.
        known: values that are known beyond the model's constants.
    """
    light = _light(model, known or {})
    for value in light.graph.input:
        for dimension, size in zip(
            value.type.tensor_type.shape.dim, (sizes or {}).get(value.name, ()), strict=False
        ):
            if size is not None:
                dimension.dim_value = size
    # where it fails, what the model declares has to do
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        light = onnx.shape_inference.infer_shapes(light, data_prop=True)
    found: dict[str, TypeProto] = {}
    _collect(light.graph, found)
    return found


def constants(graph: GraphProto, outer: Mapping[str, TensorProto]) -> dict[str, TensorProto]:
    """Return the small constants that a graph sees, by name; `outer`: those around it."""
    found = {**outer}
    for value in graph.input:
        found.pop(value.name, None)
    for tensor in graph.initializer:
        _keep(found, tensor.name, tensor)
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                _keep(found, node.output[0], _tensor(attribute))
    return found


def elements(tensor: TensorProto) -> int:
    """Return how many elements a tensor has."""
    count = 1
    for size in tensor.dims:
        count *= size
    return count


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def sort(graph: GraphProto) -> None:
    """Put every node after those that it reads, in place: ONNX Runtime loads graphs in any order."""
    for node in graph.node:
        for body in bodies(node):
            sort(body)
    found = order(graph.node)
    if found is not None and found != list(range(len(graph.node))):
        nodes = [NodeProto.FromString(graph.node[index].SerializeToString()) for index in found]
        del graph.node[:]
        graph.node.extend(nodes)


def _keep(found: dict[str, TensorProto], name: str, tensor: TensorProto | None) -> None:
    if (
        tensor is not None
        and tensor.data_location != TensorProto.EXTERNAL
        and elements(tensor) <= _LARGE
    ):
        found[name] = tensor


def _tensor(attribute: AttributeProto) -> TensorProto | None:
    """Return the value of a Constant node."""
    match attribute.name:
        case "value":
            return attribute.t
        case "value_int":
            return onnx.helper.make_tensor("", TensorProto.INT64, [], [attribute.i])
        case "value_ints":
            size = [len(attribute.ints)]
            return onnx.helper.make_tensor("", TensorProto.INT64, size, attribute.ints)
        case "value_float":
            return onnx.helper.make_tensor("", TensorProto.FLOAT, [], [attribute.f])
        case "value_floats":
            size = [len(attribute.floats)]
            return onnx.helper.make_tensor("", TensorProto.FLOAT, size, attribute.floats)
        case _:
            return None


def _light(model: ModelProto, known: Mapping[str, TensorProto]) -> ModelProto:
    """Return a sorted copy whose large weights are inputs, and whose known values are constants."""
    light = ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.input.extend(model.graph.input)
    given = {value.name for value in graph.input}
    weights: list[tuple[str, TensorProto]] = []
    for tensor in model.graph.initializer:
        if elements(tensor) > _LARGE or tensor.data_location == TensorProto.EXTERNAL:
            weights.append((tensor.name, tensor))
        else:
            graph.initializer.append(tensor)
    weights += [
        (sparse.values.name, TensorProto(data_type=sparse.values.data_type, dims=sparse.dims))
        for sparse in model.graph.sparse_initializer
    ]
    for node in model.graph.node:
        large = [
            attribute.t
            for attribute in node.attribute
            if attribute.type == AttributeProto.TENSOR and elements(attribute.t) > _LARGE
        ]
        if node.op_type == "Constant" and large:
            weights.append((node.output[0], large[0]))
        else:
            graph.node.append(node)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        for name, tensor in weights
        if name not in given
    )
    sort(graph)
    _set_known(graph, known)
    return light


def _set_known(graph: GraphProto, known: Mapping[str, TensorProto]) -> None:
    """Put constants in the place of the nodes that make known values, in bodies too."""
    for node in graph.node:
        for body in bodies(node):
            _set_known(body, known)
    own = {tensor.name for tensor in graph.initializer}
    outputs = {value.name for value in graph.output}
    for index in reversed(range(len(graph.node))):
        made = list(graph.node[index].output)
        if made and all(name in known and name not in outputs for name in made):
            graph.initializer.extend(known[name] for name in made if name not in own)
            del graph.node[index]


def _collect(graph: GraphProto, found: dict[str, TypeProto]) -> None:
    for value in (*graph.value_info, *graph.output, *graph.input):
        if value.type.WhichOneof("value"):
            found[value.name] = value.type
    for tensor in graph.initializer:
        kind = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        found[tensor.name] = kind
    for node in graph.node:
        for body in bodies(node):
            _collect(body, found)
