"""Rounds the weights of products alone, as compressed models have them: values are computed in single precision."""

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

Array = NDArray[Any]
_PRODUCTS: Final = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
_WEIGHT: Final = 1  # index of the input
_HALVES: Final = {"FP16": np.float16, "BF16": ml_dtypes.bfloat16}
_SCALED: Final = {"INT8": (127, np.int8), "FP8": (448, ml_dtypes.float8_e4m3fn)}


def round_weights(model: ModelProto, precision: str) -> None:
    """Round the constant weights of the main graph, in place; INT8 and FP8 with one scale per channel."""
    weights = {item.name: item for item in model.graph.initializer}
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                weights[node.output[0]] = attribute.t
    rounded = set()
    for node in model.graph.node:
        name = node.input[_WEIGHT] if node.op_type in _PRODUCTS else ""
        if name in weights and name not in rounded:
            rounded.add(name)
            array = numpy_helper.to_array(weights[name])
            if array.dtype == np.float32:
                made = round_array(array, precision, _find_axes(node, array.ndim))
                weights[name].CopyFrom(numpy_helper.from_array(made, name))


def round_array(array: Array, precision: str, axes: tuple[int, ...]) -> Array:
    """Return a weight after rounding; `axes` are those over which one scale holds."""
    if precision in _HALVES:
        with np.errstate(over="ignore"):
            return array.astype(_HALVES[precision]).astype(np.float32)
    largest, dtype = _SCALED[precision]
    step = np.abs(array).max(axis=axes, keepdims=True) / np.float32(largest)
    step[step == 0] = 1
    small = array / step
    rounded = np.round(small) if dtype is np.int8 else small.astype(dtype)
    return np.asarray(rounded.astype(np.float32) * step, np.float32)


def _find_axes(node: NodeProto, rank: int) -> tuple[int, ...]:
    """Return all axes but that of the output channels."""
    if node.op_type == "ConvTranspose":
        channel = 1
    elif node.op_type == "Conv" or any(item.name == "transB" and item.i for item in node.attribute):
        channel = 0
    else:
        channel = rank - 1
    return tuple(axis for axis in range(rank) if axis != channel)
