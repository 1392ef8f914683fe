"""Infers types and shapes by ONNX's shape inference, without weights. Native code: to be called in a child process."""

from collections.abc import Mapping, Sequence

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, TypeProto

from enginewright_runtime.graph.raw.constants import LARGE
from enginewright_runtime.graph.raw.graphs import (
    bodies,
    elements,
    graphs_in,
    keep,
    list_defined_names,
)
from enginewright_runtime.graph.scoped.scopes import Scope

Sizes = Mapping[str, Sequence[int | None]]


def infer(
    model: ModelProto,
    sizes: Sizes | None = None,
    values: Mapping[str, TensorProto] | None = None,
) -> dict[str, TypeProto]:
    """Return the known types of the values of the graph and its bodies, by name; the model is left unchanged.

    `sizes` are dimensions of inputs that the model does not declare, `values` known ones besides its constants. No two
    bodies may share a name (`scopes.rename_apart`) if types inside them matter.
    """
    light = lighten(model)
    _set_values(light.graph, values or {})
    for value in light.graph.input:
        for dimension, size in zip(
            value.type.tensor_type.shape.dim, (sizes or {}).get(value.name, ()), strict=False
        ):
            if size is not None:
                dimension.dim_value = size
    return _types(infer_shapes(light).graph)


def infer_shapes(light: ModelProto) -> ModelProto:
    """Return a `lightened` model with inferred shapes; unchanged if ONNX's shape inference fails."""
    try:
        return onnx.shape_inference.infer_shapes(light, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return light  # only declared shapes are known then


def lighten(model: ModelProto) -> ModelProto:
    """Return a sorted copy whose large weights are inputs, since inference would copy their data."""
    light = ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.input.extend(model.graph.input)
    inputs = {value.name for value in graph.input}
    weights: list[tuple[str, TensorProto]] = []
    for tensor in model.graph.initializer:
        if elements(tensor) > LARGE or tensor.data_location == TensorProto.EXTERNAL:
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
            if attribute.type == AttributeProto.TENSOR and elements(attribute.t) > LARGE
        ]
        if node.op_type == "Constant" and large:
            weights.append((node.output[0], large[0]))
        else:
            graph.node.append(node)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        for name, tensor in weights
        if name not in inputs
    )
    Scope(graph).sort()
    for proto in graphs_in(graph):
        _forget_others(proto)
    return light


def _forget_others(graph: GraphProto) -> None:
    """Remove value_info of values of other graphs, which may have been renamed."""
    own = {*list_defined_names(graph)}
    keep(graph.value_info, lambda value: value.name in own)


def _set_values(graph: GraphProto, values: Mapping[str, TensorProto]) -> None:
    if not values:
        return
    for node in graph.node:
        for body in bodies(node):
            _set_values(body, values)
    own = {tensor.name for tensor in graph.initializer}
    outputs = {value.name for value in graph.output}
    for index in reversed(range(len(graph.node))):
        produced = list(graph.node[index].output)
        if produced and all(name in values and name not in outputs for name in produced):
            graph.initializer.extend(values[name] for name in produced if name not in own)
            del graph.node[index]


def _types(graph: GraphProto) -> dict[str, TypeProto]:
    types: dict[str, TypeProto] = {}
    for proto in graphs_in(graph):
        for value in (*proto.value_info, *proto.output, *proto.input):
            if value.type.WhichOneof("value"):
                types[value.name] = value.type
        for tensor in proto.initializer:
            kind = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            types[tensor.name] = kind
    return types
