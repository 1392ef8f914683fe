"""Dequantizes biases that are stored as 32-bit integers before a DequantizeLinear.

ONNX Runtime's quantizer writes them so, and TensorRT accepts no 32-bit integers there
(docs/operators.md of onnx-tensorrt, DequantizeLinear): every layer with a bias would be split.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.raw.schemas import STANDARD
from enginewright_runtime.graph.scoped.function_bodies import inline_functions_with
from enginewright_runtime.graph.scoped.scopes import Scope


def fold_biases(model: ModelProto, folder: Path) -> list[str]:
    """Replace such nodes of the main graph and of functions by their outputs, in place; return their labels."""
    inline_functions_with(model, {"DequantizeLinear"})
    graph = model.graph
    constants = Constants(graph, folder)
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    scope = Scope(graph)
    folded: list[str] = []
    for node in scope.nodes:
        if (bias := _bias(node.proto, constants, kinds)) is not None:
            folded.append(graphs.label(node.proto))
            node.remove()
            scope.add_weight(numpy_helper.from_array(bias, node.proto.output[0]))
    if folded:
        scope.remove_unused()
    return folded


def _bias(
    node: NodeProto, constants: Constants, kinds: dict[str, int]
) -> NDArray[np.floating] | None:
    if node.op_type != "DequantizeLinear" or node.domain not in STANDARD:
        return None
    if kinds.get(node.input[0]) != TensorProto.INT32:
        return None
    names = [name for name in node.input if name]
    arrays = [array for name in names if (array := constants.array(name)) is not None]
    if len(arrays) < len(names):
        return None
    values, scale, *zero_point = arrays
    if values.ndim > 1 or scale.dtype not in (np.float32, np.float16):
        return None  # not a bias
    shifted = values - zero_point[0] if zero_point else values
    return (shifted.astype(scale.dtype) * scale).astype(scale.dtype)
