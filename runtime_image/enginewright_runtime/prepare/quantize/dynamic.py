"""Dynamic quantization of matrix products: activation ranges are computed at run time. Pure.

It needs no calibration data. Only ONNX Runtime's CPU provider fuses the nodes. Convolutions stay:
dynamically quantized they are 5 to 10 times slower than in single precision (docs/measurements.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper
from typing_extensions import override

from enginewright_runtime.graph.raw.schemas import attribute
from enginewright_runtime.graph.scoped.passes import Needs, PassResult
from enginewright_runtime.prepare.quantize.forms import Form
from enginewright_runtime.prepare.quantize.scales import quantize_weight
from enginewright_runtime.prepare.quantize.static import EXCLUDED, Layer, Layers
from enginewright_runtime.prepare.quantize.subject import ModelEditor, PrecisionPass
from enginewright_runtime.prepare.quantize.tensors import Sink

_MATRIX: Final = 2


@dataclass(frozen=True)
class DynamicQuantization(PrecisionPass):
    """Computes MatMul and Gemm layers with integers; the model has opset 11 or later."""

    order = 30
    needs = Needs(precisions=frozenset({"INT8"}))
    layers: Layers
    form: Form

    @property
    @override
    def proof_level(self) -> str:
        return self.form.proof_level

    @override
    def change(self, model: ModelProto, sink: Sink, excluded: frozenset[int]) -> PassResult:
        return _DynamicWriter(model, self, sink).run(self.layers, excluded)


class _DynamicWriter(ModelEditor):
    def __init__(self, model: ModelProto, how: DynamicQuantization, sink: Sink) -> None:
        super().__init__(model, how.subject, sink)
        self._grid = how.form.weights
        self._activations: dict[str, tuple[str, str, str]] = {}  # value, scale, zero point

    def run(self, layers: Layers, excluded: frozenset[int]) -> PassResult:
        nodes: list[str] = []
        kept: dict[str, str] = {}
        by_index = {layer.index: layer for layer in layers.layers}
        for index, node in enumerate(self.scope.nodes):
            layer = by_index.get(index)
            if layer is None:
                continue
            label = self.subject.label(index)
            if why := EXCLUDED if index in excluded else self._why_not(node.proto, layer):
                kept[label] = why
            else:
                nodes.append(label)
                node.replace(self._product(node.proto, layer))
        self.scope.remove_unused()
        return layers.result(nodes, kept)

    def _why_not(self, node: NodeProto, layer: Layer) -> str | None:
        tensor = self.subject.constants.tensor(layer.weight)
        if tensor is None or len(tensor.dims) != _MATRIX:
            return "its weight has more than two dimensions"
        return "its input is transposed" if _number(node, "transA", 0) else None

    def _product(self, node: NodeProto, layer: Layer) -> Iterator[NodeProto]:
        """Yield the nodes that replace one: the integer product keeps its name."""
        prefix = node.name or node.output[0]
        if layer.activation not in self._activations:
            names = [
                self.names.fresh(f"{layer.activation}_{item}")
                for item in ("quantized", "scale", "zero_point")
            ]
            self._activations[layer.activation] = (names[0], names[1], names[2])
            name = self.names.fresh(f"{layer.activation}/DynamicQuantizeLinear")
            yield helper.make_node("DynamicQuantizeLinear", [layer.activation], names, name=name)
        value, scale, zero_point = self._activations[layer.activation]
        weight, scales = self._quantize_weight(node, layer)
        bias = self._bias(node, layer)
        integers, single, factor = (
            self.names.fresh(f"{prefix}_{item}") for item in ("integers", "single", "factor")
        )
        output = self.names.fresh(f"{prefix}_product") if bias else node.output[0]
        yield helper.make_node(
            "MatMulInteger", [value, weight, zero_point], [integers], name=node.name or None
        )
        yield self.node("Cast", [integers], single, prefix, to=TensorProto.FLOAT)
        yield self.node("Mul", [scale, scales], factor, prefix)
        yield self.node("Mul", [single, factor], output, prefix)
        if bias:
            yield self.node("Add", [output, bias], node.output[0], prefix)

    def _quantize_weight(self, node: NodeProto, layer: Layer) -> tuple[str, str]:
        array, axis = self.weight(layer.weight), layer.axis
        if _number(node, "transB", 0):
            array, axis = array.T, None if axis is None else 1 - axis
        array = array * np.float32(_number(node, "alpha", 1.0))
        quantized = quantize_weight(array, self._grid, axis)
        return (
            self.initializer(f"{layer.weight}_quantized", self._grid.element, quantized.values),
            self.initializer(f"{layer.weight}_scale", TensorProto.FLOAT, quantized.scales),
        )

    def _bias(self, node: NodeProto, layer: Layer) -> str:
        beta = np.float32(_number(node, "beta", 1.0))
        if not layer.bias or beta == 1:
            return layer.bias
        scaled = self.weight(layer.bias) * beta
        return self.initializer(f"{layer.bias}_scaled", TensorProto.FLOAT, scaled)


def _number(node: NodeProto, name: str, default: float) -> float:
    entry = attribute(node, name)
    if entry is None:
        return default
    return entry.f if entry.type == entry.FLOAT else float(entry.i)
