"""Folds batch normalizations into the convolutions before them, ahead of a lower precision.

A variance may exceed the range of float16 (97,903,600 in a text detector, against 65,504). After
folding, only the product of scale and 1/sqrt(variance) remains, which is as large as weights are. A
normalization that cannot be folded, and that float16 cannot represent, becomes a multiplication and
an addition.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Array, Constants
from enginewright_runtime.graph.raw.schemas import STANDARD, attribute
from enginewright_runtime.graph.scoped.inference import infer
from enginewright_runtime.graph.scoped.scopes import Names, Node, Scope, separate_names

_EPSILON: Final = 1e-5  # the operator's default
_HALF: Final = np.finfo(np.float16)


@dataclass
class Folded:
    """Labels of the normalizations that were replaced."""

    into_convolutions: list[str] = field(default_factory=list)
    into_arithmetic: list[str] = field(default_factory=list)


def fold(model: ModelProto, folder: Path) -> Folded:
    """Fold normalizations, in place, in a model of opset 7 or later whose external data is in `folder`."""
    folded = Folded()
    graph = model.graph
    if not any(node.op_type == "BatchNormalization" for node in graph.node):
        return folded
    scope = Scope(graph)
    scope.sort()
    names, values = Names(model), Constants(graph, folder)
    types = infer(separate_names(model))
    for node in scope.nodes:
        scale = _scale_and_shift(node.proto, values)
        if scale is None:
            continue
        label = graphs.label(node.proto)
        if (before := _only_read_by(node)) and _into_convolution(before, *scale, values, names):
            node.remove()
            before.set_output(0, node.proto.output[0])
            folded.into_convolutions.append(label)
        elif not _fits_half(node.proto, values) and (
            pair := _as_arithmetic(scope, node.proto, *scale, types, names)
        ):
            node.replace(pair)
            folded.into_arithmetic.append(label)
    if folded.into_convolutions or folded.into_arithmetic:
        scope.remove_unused()
    return folded


def _only_read_by(node: Node) -> Node | None:
    value = node.scope.find(node.proto.input[0])
    return value.producer if value is not None and [*value.readers] == [node] else None


def constants_to_initializers(model: ModelProto) -> int:
    """Turn the graph's Constant nodes of floats into initializers, in place; return how many."""
    scope = Scope(model.graph)
    moved = 0
    for node in scope.nodes:
        entry = attribute(node.proto, "value") if node.proto.op_type == "Constant" else None
        if (
            entry is not None
            and scope not in node.produces()[0].readers
            and entry.t.data_type in {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
        ):
            tensor = graphs.copy_of(entry.t)
            tensor.name = node.proto.output[0]
            node.remove()
            scope.add_weight(tensor)
            moved += 1
    scope.write()
    return moved


def _scale_and_shift(node: NodeProto, values: Constants) -> tuple[Array, Array] | None:
    """Return the node's factor and addend per channel, float64, if they are constant."""
    training = attribute(node, "training_mode")
    if (
        node.op_type != "BatchNormalization"
        or node.domain not in STANDARD
        or (training is not None and training.i)
        or any(node.output[1:])
    ):
        return None
    arrays = [values.array(name) for name in node.input[1:5]]
    parameters = [array.astype(np.float64) for array in arrays if array is not None]
    if len(parameters) < 4 or any(parameter.ndim != 1 for parameter in parameters):
        return None
    scale, shift, mean, variance = parameters
    epsilon = attribute(node, "epsilon")
    factor = scale / np.sqrt(variance + (epsilon.f if epsilon else _EPSILON))
    return factor, shift - mean * factor


def _into_convolution(
    convolution: Node, factor: Array, shift: Array, values: Constants, names: Names
) -> bool:
    """Fold the normalization into the convolution's weights and bias, if possible; return whether it was."""
    node, graph = convolution.proto, convolution.scope.graph
    group = attribute(node, "group")
    if node.op_type not in {"Conv", "ConvTranspose"} or node.domain not in STANDARD:
        return False
    if node.op_type == "ConvTranspose" and group is not None and group.i != 1:
        return False
    weight = values.array(node.input[1])
    has_bias = len(node.input) > 2 and bool(node.input[2])
    bias = values.array(node.input[2]) if has_bias else np.zeros_like(shift)
    axis = 0 if node.op_type == "Conv" else 1
    if weight is None or bias is None or weight.shape[axis] != factor.size:
        return False
    shape = [factor.size if index == axis else 1 for index in range(weight.ndim)]
    new_weight = (weight.astype(np.float64) * factor.reshape(shape)).astype(weight.dtype)
    new_bias = (bias.astype(np.float64) * factor + shift).astype(weight.dtype)
    if not (np.isfinite(new_weight).all() and np.isfinite(new_bias).all()):
        return False
    for index, (kind, name, array) in enumerate(
        (
            ("weight", node.input[1], new_weight),
            ("bias", node.input[2] if has_bias else "", new_bias),
        ),
        start=1,
    ):
        new_name = names.fresh(f"{name or f'{node.name or node.output[0]}/{kind}'}_folded")
        convolution.scope.add_weight(numpy_helper.from_array(array, new_name))
        convolution.set_input(index, new_name)
    values.add(graph.initializer[-2], graph.initializer[-1])
    return True


def _fits_half(node: NodeProto, values: Constants) -> bool:
    """Tell whether float16 represents the parameters: none overflows, no variance underflows."""
    arrays = [array for name in node.input[1:5] if (array := values.array(name)) is not None]
    largest = max((float(np.abs(array).max(initial=0)) for array in arrays), default=0.0)
    variance = arrays[3] if len(arrays) == 4 else np.ones(1)
    return largest <= float(_HALF.max) and float(variance.min(initial=1)) >= float(_HALF.tiny)


def _as_arithmetic(
    scope: Scope,
    node: NodeProto,
    factor: Array,
    shift: Array,
    types: Mapping[str, TypeProto],
    names: Names,
) -> list[NodeProto]:
    tensor = types[node.input[0]].tensor_type if node.input[0] in types else None
    if tensor is None or not tensor.HasField("shape") or len(tensor.shape.dim) < 2:
        return []
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = [factor.size] + [1] * (len(tensor.shape.dim) - 2)
    prefix = node.name or node.output[0]
    inner = names.fresh(f"{prefix}/scaled")
    nodes = []
    for kind, array, source, output in (
        ("Mul", factor, node.input[0], inner),
        ("Add", shift, inner, node.output[0]),
    ):
        name = names.fresh(f"{prefix}/{kind}")
        value = names.fresh(f"{name}_value")
        scope.add_weight(numpy_helper.from_array(array.astype(dtype).reshape(shape), value))
        nodes.append(helper.make_node(kind, [source, value], [output], name=name))
    return nodes
