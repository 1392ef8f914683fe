"""Writes a model with quantized nodes: QuantizeLinear and DequantizeLinear around them (QDQ). Pure.

The form determines which values and weights are quantized. Only nodes of the main graph have
ranges.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper
from typing_extensions import override

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.raw.schemas import STANDARD, attribute
from enginewright_runtime.graph.scoped.passes import Needs, PassResult
from enginewright_runtime.graph.scoped.scopes import Node, Scope
from enginewright_runtime.prepare.quantize.forms import Form, Grid
from enginewright_runtime.prepare.quantize.scales import (
    QuantizedWeight,
    Quantizer,
    channel_axis,
    quantize_bias,
    quantize_weight,
    quantizer,
)
from enginewright_runtime.prepare.quantize.subject import ModelEditor, PrecisionPass, SourceModel
from enginewright_runtime.prepare.quantize.tensors import Sink
from enginewright_runtime.proof.rounding.angles import ABSOLUTE, find_angles
from enginewright_runtime.proof.rounding.half_rules import Half

Array = NDArray[Any]
TypedName = tuple[str, int]  # of a value, with its element type
_ACTIVATION: Final = 0  # input of a weighted node
_WEIGHT: Final = 1
_BIAS: Final = 2
OPERANDS: Final = frozenset(
    {_ACTIVATION, _WEIGHT}
)  # that a quantized node reads from DequantizeLinear
EXCLUDED: Final = "excluded for accuracy"


@dataclass(frozen=True)
class Layer:
    """A node that can be quantized."""

    index: int  # in the main graph
    activation: str
    weight: str
    bias: str  # empty if there is none
    axis: int | None  # of the weight's channels
    result: str  # the value quantized after it, if the form requires that


@dataclass
class Layers:
    """The nodes that can be quantized, and why others cannot."""

    layers: list[Layer] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)  # label to reason

    def values(self) -> list[str]:
        """Return the values that need ranges from calibration."""
        names = [name for layer in self.layers for name in (layer.activation, layer.result)]
        return list(dict.fromkeys(name for name in names if name))

    def result(self, nodes: Sequence[str], kept: Mapping[str, str]) -> PassResult:
        """Return the result of a pass that quantized `nodes` and not `kept`."""
        units = tuple(layer.index for layer in self.layers)
        return PassResult(nodes=tuple(nodes), kept={**self.left, **kept}, units=units)


def find_layers(subject: SourceModel, form: Form, *, per_channel: bool) -> Layers:
    """Return the nodes of the main graph that the form quantizes."""
    layers = Layers()
    main = Scope(subject.model.graph)
    angles = find_angles(subject.model.graph)
    for index, node in enumerate(main.nodes):
        if node.proto.domain not in STANDARD or node.proto.op_type not in form.operators:
            continue
        if angles & {*node.proto.output}:
            layers.left[graphs.label(node.proto)] = ABSOLUTE
            continue
        layer = _layer(subject, index, node, form, per_channel)
        if isinstance(layer, str):
            layers.left[graphs.label(node.proto)] = layer
        else:
            layers.layers.append(layer)
    layers.left |= {
        graphs.label(node): "it is in the body of an If, Loop or Scan"
        for body in main.bodies()
        for node in body.graph.node
        if node.domain in STANDARD and node.op_type in form.operators
    }
    return layers


def _layer(
    subject: SourceModel, index: int, quantizable: Node, form: Form, per_channel: bool
) -> Layer | str:
    node = quantizable.proto
    activation, weight = str(node.input[_ACTIVATION]), str(node.input[_WEIGHT])
    tensor = subject.constants.tensor(weight)
    constant = subject.constants.tensor(activation) is not None
    if tensor is None:
        return "its weight is its first input" if constant else "both of its inputs are computed"
    if tensor.data_type != TensorProto.FLOAT:
        return "its weight is not in single precision"
    if constant:
        return "it has no computed input"
    rank = len(tensor.dims)
    if rank < 2:
        return "its weight is not a matrix"
    transposed = attribute(node, "transB")
    axis = channel_axis(node.op_type, rank, transposed=bool(transposed and transposed.i))
    bias = str(node.input[_BIAS]) if len(node.input) > _BIAS else ""
    if bias and subject.constants.tensor(bias) is None:
        return "its bias is computed"
    result = _result(quantizable, subject.constants) if form.integers else ""
    return Layer(index, activation, weight, bias, axis if per_channel else None, result)


def _result(node: Node, constants: Constants) -> str:
    """Return the value to quantize after a node, or an empty name if its kernel returns floats itself."""
    made = node.produces()[0]
    readers = [reader.proto if isinstance(reader, Node) else None for reader in made.readers]
    match node.proto.op_type, readers:
        case "Conv", [NodeProto(op_type="Relu" | "Clip") as follower]:
            return str(follower.output[0])  # the activation is fused at no cost
        case "Conv", _:
            return made.name
        # ONNX Runtime fuses both into a single-precision Gemm before it looks for QDQ patterns
        case "MatMul", [NodeProto(op_type="Add") as follower] if any(
            constants.tensor(name) is not None for name in follower.input
        ):
            return made.name
        case _:
            return ""


@dataclass(frozen=True)
class StaticQuantization(PrecisionPass):
    """Quantizes layers with calibrated ranges."""

    order = 20
    needs = Needs(precisions=frozenset({"INT8", "FP8"}), data=True)
    layers: Layers
    ranges: Mapping[str, tuple[float, float]]  # minimum and maximum of activations and results
    form: Form  # the subject has its opset, or a later one

    @property
    @override
    def proof_level(self) -> str:
        return self.form.proof_level

    @override
    def change(self, model: ModelProto, sink: Sink, excluded: frozenset[int]) -> PassResult:
        return StaticWriter(model, self, sink).run(self.layers, excluded)


class StaticWriter(ModelEditor):
    """Inserts quantized values into a model."""

    def __init__(
        self, model: ModelProto, how: StaticQuantization, sink: Sink, half: Half | None = None
    ) -> None:
        """Take the pass; scales are numbers of `half` where that has some near them."""
        super().__init__(model, how.subject, sink)
        form = how.form
        self.form = form
        self.quantizers = {
            name: quantizer(low, high, form.activations, symmetric=form.symmetric, half=half)
            for name, (low, high) in how.ranges.items()
        }
        self._half = half
        self._weights: dict[tuple[str, int | None], tuple[str, QuantizedWeight]] = {}
        # value and element type to the output of its QDQ pair, or of its DequantizeLinear
        self._pairs: dict[tuple[str, int], str] = {}

    def run(self, layers: Layers, excluded: frozenset[int]) -> PassResult:
        """Quantize layers, except `excluded` ones."""
        chosen, kept = self.choose(layers, excluded)
        self.insert(chosen)
        self.scope.remove_unused()
        return layers.result([self.subject.label(index) for index in chosen], kept)

    def choose(
        self, layers: Layers, excluded: frozenset[int]
    ) -> tuple[dict[int, Layer], dict[str, str]]:
        """Return the layers to quantize by index, and the labels of others with the reason."""
        kept: dict[str, str] = {}
        chosen: dict[int, Layer] = {}
        for layer in layers.layers:
            label = self.subject.label(layer.index)
            if layer.index in excluded:
                kept[label] = EXCLUDED
            elif missing := self._missing(layer):
                kept[label] = f"calibration observed no values of {missing}"
            elif self.form.integers and layer.bias and self._integer_bias(layer) is None:
                kept[label] = "its bias does not fit into 32-bit integers"
            else:
                chosen[layer.index] = layer
        return chosen, kept

    def insert(self, chosen: Mapping[int, Layer]) -> None:
        """Let layers read quantized values, and write them if the form requires that."""
        results = {layer.result for layer in chosen.values() if layer.result}
        for index, node in enumerate(self.nodes):
            if index in chosen:
                self._quantize(node, chosen[index])
            for position, name in enumerate(node.proto.output):
                if name in results:
                    raw = self.names.fresh(f"{name}_raw")
                    node.set_output(position, raw)
                    single = TensorProto.FLOAT
                    self._pairs[name, single] = name
                    pair = self._pair((raw, single), (name, single), self.quantizers[name])
                    node.insert_after(*pair)

    def find_source(self, layer: Layer, reader: Node) -> TypedName:  # noqa: ARG002 - for subclasses
        """Return the value from which a layer's activation is quantized; `reader` is its first one."""
        return layer.activation, TensorProto.FLOAT

    def find_element(self, layer: Layer) -> int:  # noqa: ARG002 - for subclasses
        """Return the element type in which a layer computes."""
        return TensorProto.FLOAT

    def quantize_weight(self, layer: Layer) -> tuple[str, QuantizedWeight]:
        """Return a layer's weight on the grid, and the name of its integers."""
        key = (layer.weight, layer.axis)
        if key not in self._weights:
            grid = self.form.weights
            weight = quantize_weight(self.weight(layer.weight), grid, layer.axis, self._half)
            name = self.initializer(f"{layer.weight}_quantized", grid.element, weight.values)
            self._weights[key] = (name, weight)
        return self._weights[key]

    def _missing(self, layer: Layer) -> str | None:
        names = (layer.activation, layer.result)
        return next((name for name in names if name and name not in self.quantizers), None)

    def _integer_bias(self, layer: Layer) -> tuple[Array, NDArray[np.float32]] | None:
        _, weight = self.quantize_weight(layer)
        scale = self.quantizers[layer.activation].scale * weight.scales.astype(np.float64)
        values = quantize_bias(self.weight(layer.bias), scale)
        return None if values is None else (values, scale.astype(np.float32))

    def _quantize(self, node: Node, layer: Layer) -> None:
        element = self.find_element(layer)
        name = layer.activation
        if (name, element) not in self._pairs:  # inserted before its first reader
            source = self.find_source(layer, node)
            self._pairs[name, element] = target = self.names.fresh(f"{name}_dequantized")
            node.insert_before(*self._pair(source, (target, element), self.quantizers[name]))
        node.set_input(_ACTIVATION, self._pairs[name, element])
        name, weight = self.quantize_weight(layer)
        if (name, element) not in self._pairs:
            self._pairs[name, element] = target = self.names.fresh(f"{layer.weight}_dequantized")
            node.insert_before(
                self._dequantize(
                    name, (target, element), weight.scales, weight.axis, self.form.weights
                )
            )
        node.set_input(_WEIGHT, self._pairs[name, element])
        if self.form.integers and layer.bias:
            bias = self._integer_bias(layer)
            assert bias is not None  # noqa: S101 - checked before the layer was chosen
            values, scale = bias
            quantized = self.initializer(f"{layer.bias}_quantized", TensorProto.INT32, values)
            target = self.names.fresh(f"{layer.bias}_dequantized")
            axis = 0 if scale.ndim else None
            node.insert_before(
                self._dequantize(quantized, (target, TensorProto.FLOAT), scale, axis)
            )
            node.set_input(_BIAS, target)

    def _pair(self, source: TypedName, target: TypedName, how: Quantizer) -> Iterator[NodeProto]:
        name, read = source
        made, written = target
        quantized = self.names.fresh(f"{name}_quantized")
        grid = self.form.activations
        scale = np.array(how.scale, np.float32)
        scales = {item: self._scale(name, scale, item) for item in dict.fromkeys((read, written))}
        zero = self._zero(name, grid, how.zero_point, ())
        for operator, inputs, output in (
            ("QuantizeLinear", [name, scales[read], zero], quantized),
            ("DequantizeLinear", [quantized, scales[written], zero], made),
        ):
            yield self.node(operator, inputs, output, name)

    def _dequantize(
        self,
        source: str,
        target: TypedName,
        scales: NDArray[np.float32],
        axis: int | None,
        grid: Grid | None = None,
    ) -> NodeProto:
        made, element = target
        inputs = [source, self._scale(source, scales, element)]
        if grid is not None:
            inputs.append(self._zero(source, grid, 0, scales.shape))
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        return self.node("DequantizeLinear", inputs, made, source, **attributes)

    def _scale(self, name: str, scales: NDArray[np.float32], element: int) -> str:
        array = scales.astype(helper.tensor_dtype_to_np_dtype(element))
        return self.initializer(f"{name}_scale", element, array)

    def _zero(self, name: str, grid: Grid, value: int, shape: tuple[int, ...]) -> str:
        array = np.full(shape, value).astype(grid.dtype)
        return self.initializer(f"{name}_zero_point", grid.element, array)
