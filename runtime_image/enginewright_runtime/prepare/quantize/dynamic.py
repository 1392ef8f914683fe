"""Quantises products of matrices whose activations get their range while they run: no calibration data.

Only for ONNX Runtime's CPU provider, which fuses the nodes written here into one kernel; TensorRT's
parser takes none of them. Convolutions stay: with ranges found at run time they are 5 to 10 times
slower than in single precision (docs/precision.md). Pure.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from enginewright_runtime.graph.branches import remove_unused
from enginewright_runtime.graph.schemas import attribute
from enginewright_runtime.graph.splicing import Names
from enginewright_runtime.prepare.quantize.forms import Form
from enginewright_runtime.prepare.quantize.scales import quantize_weight
from enginewright_runtime.prepare.quantize.static import EXCLUDED, Layer, Layers, Written
from enginewright_runtime.prepare.quantize.subject import Subject
from enginewright_runtime.prepare.quantize.tensors import Sink

Array = NDArray[Any]
_MATRIX: Final = 2


def write(
    subject: Subject,
    layers: Layers,
    form: Form,
    sink: Sink,
    *,
    excluded: frozenset[int] = frozenset(),
) -> Written:
    """Return a copy of the model in which products are of integers; weights are written to `sink`.

    Args:
        subject: the model, of opset 11 or later.
        layers: what can be quantised: MatMul and Gemm.
        form: of the weights.
        sink: of the model to be written.
        excluded: indices of nodes that stay as they are.
    """
    return _Writer(subject, form, sink).run(layers, excluded)


class _Writer:
    def __init__(self, subject: Subject, form: Form, sink: Sink) -> None:
        self._subject = subject
        self._grid = form.weights
        self._sink = sink
        self._model = subject.copy()
        self._names = Names(self._model)
        self._activations: dict[str, tuple[str, str, str]] = {}  # value, scale, zero point

    def run(self, layers: Layers, excluded: frozenset[int]) -> Written:
        written = Written(self._model, left=dict(layers.left))
        by_index = {layer.index: layer for layer in layers.layers}
        nodes: list[NodeProto] = []
        for index, node in enumerate(self._model.graph.node):
            layer = by_index.get(index)
            if layer is None:
                nodes.append(node)
                continue
            label = self._subject.label(index)
            why = EXCLUDED if index in excluded else self._why_not(node, layer)
            if why:
                written.left[label] = why
                nodes.append(node)
            else:
                written.quantized.append(label)
                nodes += self._product(node, layer)
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del self._model.graph.node[:]
        self._model.graph.node.extend(copies)
        remove_unused(self._model.graph)
        return written

    def _why_not(self, node: NodeProto, layer: Layer) -> str | None:
        tensor = self._subject.constants.tensor(layer.weight)
        if tensor is None or len(tensor.dims) != _MATRIX:
            return "its weight is a stack of matrices"
        if _number(node, "transA", 0):
            return "its input is transposed"
        return None

    def _product(self, node: NodeProto, layer: Layer) -> Iterator[NodeProto]:
        """Yield the nodes in the place of one: the product of integers has its name."""
        prefix = node.name or node.output[0]
        if layer.activation not in self._activations:
            names = [
                self._names.fresh(f"{layer.activation}_{each}")
                for each in ("quantized", "scale", "zero_point")
            ]
            self._activations[layer.activation] = (names[0], names[1], names[2])
            name = self._names.fresh(f"{layer.activation}/DynamicQuantizeLinear")
            yield helper.make_node("DynamicQuantizeLinear", [layer.activation], names, name=name)
        value, scale, zero_point = self._activations[layer.activation]
        weight, scales = self._weight(node, layer)
        bias = self._bias(node, layer)
        integers, single, factor = (
            self._names.fresh(f"{prefix}_{each}") for each in ("integers", "single", "factor")
        )
        output = self._names.fresh(f"{prefix}_product") if bias else node.output[0]
        yield helper.make_node(
            "MatMulInteger", [value, weight, zero_point], [integers], name=node.name or None
        )
        yield self._node("Cast", [integers], single, prefix, to=TensorProto.FLOAT)
        yield self._node("Mul", [scale, scales], factor, prefix)
        yield self._node("Mul", [single, factor], output, prefix)
        if bias:
            yield self._node("Add", [output, bias], node.output[0], prefix)

    def _node(
        self,
        operator: str,
        inputs: list[str],
        output: str,
        prefix: str,
        **attributes: Any,  # noqa: ANN401 - of the operator
    ) -> NodeProto:
        name = self._names.fresh(f"{prefix}/{operator}")
        return helper.make_node(operator, inputs, [output], name=name, **attributes)

    def _weight(self, node: NodeProto, layer: Layer) -> tuple[str, str]:
        array = self._subject.constants.array(layer.weight)
        assert array is not None  # noqa: S101 - layers have weights
        axis = layer.axis
        if _number(node, "transB", 0):
            array, axis = array.T, None if axis is None else 1 - axis
        array = array * np.float32(_number(node, "alpha", 1.0))
        quantized = quantize_weight(array, self._grid, axis)
        return (
            self._add(f"{layer.weight}_quantized", self._grid.element, quantized.values),
            self._add(f"{layer.weight}_scale", TensorProto.FLOAT, quantized.scales),
        )

    def _bias(self, node: NodeProto, layer: Layer) -> str:
        """Return what is added to the product; "": nothing."""
        beta = np.float32(_number(node, "beta", 1.0))
        if not layer.bias or beta == 1:
            return layer.bias
        array = self._subject.constants.array(layer.bias)
        assert array is not None  # noqa: S101 - `find_layers` takes constant biases only
        return self._add(f"{layer.bias}_scaled", TensorProto.FLOAT, array * beta)

    def _add(self, wanted: str, element: int, array: Array) -> str:
        name = self._names.fresh(wanted)
        self._model.graph.initializer.append(self._sink.tensor(name, element, array))
        return name


def _number(node: NodeProto, name: str, default: float) -> float:
    found = attribute(node, name)
    if found is None:
        return default
    return found.f if found.type == found.FLOAT else float(found.i)
