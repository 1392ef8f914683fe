"""What lower precision costs, computed on any CPU: a model whose values are rounded where a device rounds them."""

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
_PRODUCTS: Final = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_HALVES: Final = {"FP16": TensorProto.FLOAT16, "BF16": TensorProto.BFLOAT16}
_TF32_SPLIT: Final = np.float32(2**13 + 1)  # Veltkamp's: leaves 10 bits of the mantissa
_NO_FLOATS: Final = ("Constant", "If", "Loop", "Scan", "Shape", "Size")


def emulate(model: ModelProto, precision: str, *, weights_only: bool = False) -> ModelProto:
    """Return a copy that computes in single precision, and rounds weights and, without `weights_only`, values."""
    changed = ModelProto()
    changed.CopyFrom(model)
    return _Emulation(changed, precision).run(weights_only=weights_only)


class _Emulation:
    def __init__(self, model: ModelProto, precision: str) -> None:
        self._model = model
        self._precision = precision
        self._weights = {item.name: item for item in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        self._weights[node.output[0]] = attribute.t
        self._rounded: dict[str, str] = {}
        self._nodes: list[NodeProto] = []

    def run(self, *, weights_only: bool) -> ModelProto:
        types = self._types()
        for node in list(self._model.graph.node):
            if node.op_type in _PRODUCTS:
                for index, name in enumerate(list(node.input)[:2]):
                    if name in self._weights:
                        node.input[index] = self._round_weight(node, name)
                    elif (
                        not weights_only
                        and self._precision not in _HALVES
                        and types.get(name) == TensorProto.FLOAT
                    ):
                        node.input[index] = self._round_value(name)
            self._nodes.append(node)
            if self._precision in _HALVES and not weights_only and node.op_type not in _NO_FLOATS:
                for index, name in enumerate(list(node.output)):
                    if name and types.get(name) == TensorProto.FLOAT:
                        node.output[index] = f"{name}/exact"
                        self._cast(f"{name}/exact", name, _HALVES[self._precision])
        del self._model.graph.node[:]
        self._model.graph.node.extend(self._nodes)
        return self._model

    def _types(self) -> dict[str, int]:
        graph = onnx.shape_inference.infer_shapes(self._model).graph
        return {
            value.name: value.type.tensor_type.elem_type
            for value in (*graph.value_info, *graph.input, *graph.output)
        }

    def _round_weight(self, node: NodeProto, name: str) -> str:
        array = numpy_helper.to_array(self._weights[name])
        if array.dtype != np.float32:
            return name
        made = f"{name}/{node.op_type}/{self._precision}"
        if made not in self._rounded:
            self._rounded[made] = made
            rounded = round_weight(array, self._precision, _find_reduced(node, array.ndim))
            self._model.graph.initializer.append(numpy_helper.from_array(rounded, made))
        return made

    def _round_value(self, name: str) -> str:
        made = f"{name}/{self._precision}"
        if name not in self._rounded:
            self._rounded[name] = made
            {"FP32": self._split, "INT8": self._quantize, "FP8": self._scale}[self._precision](
                name, made
            )
        return self._rounded[name]

    def _split(self, name: str, made: str) -> None:
        factor = self._constant("split", _TF32_SPLIT)
        self._add("Mul", [name, factor], f"{made}/scaled")
        self._add("Sub", [f"{made}/scaled", name], f"{made}/rest")
        self._add("Sub", [f"{made}/scaled", f"{made}/rest"], made)

    def _quantize(self, name: str, made: str) -> None:
        values = [f"{made}/{item}" for item in ("quantized", "scale", "zero")]
        self._nodes.append(helper.make_node("DynamicQuantizeLinear", [name], values))
        self._add("DequantizeLinear", values, made)

    def _scale(self, name: str, made: str) -> None:
        self._add("Abs", [name], f"{made}/size")
        self._add("ReduceMax", [f"{made}/size"], f"{made}/most", keepdims=0)
        self._add(
            "Div", [f"{made}/most", self._constant("largest", np.float32(448))], f"{made}/raw"
        )
        self._add(
            "Max", [f"{made}/raw", self._constant("least", np.float32(1e-30))], f"{made}/step"
        )
        self._add("Div", [name, f"{made}/step"], f"{made}/small")
        self._cast(f"{made}/small", f"{made}/single", TensorProto.FLOAT8E4M3FN)
        self._add("Mul", [f"{made}/single", f"{made}/step"], made)

    def _cast(self, source: str, target: str, element: int) -> None:
        self._add("Cast", [source], f"{target}/rounded", to=element)
        self._add("Cast", [f"{target}/rounded"], target, to=TensorProto.FLOAT)

    def _add(self, operator: str, read: list[str], made: str, **attributes: Any) -> None:  # noqa: ANN401 - of the operator
        self._nodes.append(
            helper.make_node(operator, read, [made], name=f"{made}/rounding", **attributes)
        )

    def _constant(self, name: str, value: np.float32) -> str:
        full = f"{name}/{self._precision}"
        if full not in self._rounded:
            self._rounded[full] = full
            self._model.graph.initializer.append(numpy_helper.from_array(np.array(value), full))
        return full


def _find_reduced(node: NodeProto, rank: int) -> tuple[int, ...]:
    """Return the axes of a weight over which one scale holds: all but that of the channels."""
    if node.op_type == "Conv":
        channel = 0
    elif node.op_type == "ConvTranspose":
        channel = 1
    elif any(item.name == "transB" and item.i for item in node.attribute):
        channel = 0
    else:
        channel = rank - 1
    return tuple(axis for axis in range(rank) if axis != channel)


def round_weight(array: Array, precision: str, reduced: tuple[int, ...]) -> Array:
    """Return a weight as it is after rounding; with one scale per channel where the precision has scales."""
    if precision in _ROUND:
        with np.errstate(over="ignore"):
            return _ROUND[precision](array)
    largest, dtype = (127, np.int8) if precision == "INT8" else (448, ml_dtypes.float8_e4m3fn)
    step = np.abs(array).max(axis=reduced, keepdims=True) / np.float32(largest)
    step[step == 0] = 1
    small = array / step
    rounded = np.round(small) if dtype is np.int8 else small.astype(dtype)
    return np.asarray(rounded.astype(np.float32) * step, np.float32)


def _round_tf32(array: Array) -> Array:
    scaled = array * _TF32_SPLIT
    return np.asarray(scaled - (scaled - array))


_ROUND: Final[dict[str, Callable[[Array], Array]]] = {
    "FP32": _round_tf32,
    "FP16": lambda array: array.astype(np.float16).astype(np.float32),
    "BF16": lambda array: array.astype(ml_dtypes.bfloat16).astype(np.float32),
}
