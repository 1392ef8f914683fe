"""Quantizes a model and converts the rest of it to half precision. Pure.

A quantized node computes in half precision too, unless the rules of `halves` keep it single. Its DequantizeLinear
nodes have scales of the type in which it computes: a strongly typed TensorRT network takes the scale's type for the
result's, and fuses them only if no Cast is between. QuantizeLinear reads a value as its producer writes it. Scales are
rounded to half precision before anything is quantized by them, so they are the same number in both types.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from onnx import ModelProto, TensorProto
from typing_extensions import override

from enginewright_runtime.graph.scoped.passes import PassResult
from enginewright_runtime.graph.scoped.scopes import Node
from enginewright_runtime.prepare.quantize.halves import Halves, Lowering
from enginewright_runtime.prepare.quantize.scales import has_numbers
from enginewright_runtime.prepare.quantize.static import (
    EXCLUDED,
    Layer,
    Layers,
    StaticQuantization,
    StaticWriter,
    TypedName,
)
from enginewright_runtime.prepare.quantize.tensors import Sink


@dataclass(frozen=True)
class MixedQuantization(StaticQuantization):
    """Quantizes layers with calibrated ranges, and converts the rest; `excluded` nodes are converted too."""

    widened = True
    halves: Halves  # of the same subject
    single: frozenset[int] = frozenset()  # nodes that cost too much accuracy in half precision

    @override
    def change(self, model: ModelProto, sink: Sink, excluded: frozenset[int]) -> PassResult:
        return _MixedWriter(model, self, sink).run(self.layers, excluded)


class _MixedWriter(StaticWriter):
    def __init__(self, model: ModelProto, how: MixedQuantization, sink: Sink) -> None:
        super().__init__(model, how, sink, how.halves.half)
        self._format = how.halves.half
        self._lowering = Lowering(self, self._format, how.halves.largest)
        self._single = how.single
        self._lowered: frozenset[int] = frozenset()

    @override
    def run(self, layers: Layers, excluded: frozenset[int]) -> PassResult:
        chosen, kept = self.choose(layers, excluded)
        rest = self._lower(chosen)
        self.insert(chosen)
        self.scope.remove_unused()
        done = layers.result([self.subject.label(index) for index in chosen], kept)
        quantized = {*done.nodes}
        return replace(
            done,
            rest=tuple(label for label in rest.nodes if label not in quantized),
            single=rest.kept,
        )

    @override
    def find_source(self, layer: Layer, reader: Node) -> TypedName:
        name, element = self._lowering.find_form(layer.activation)
        if element == TensorProto.FLOAT or self._why_no_scale(layer) is None:
            return name, element
        single = self.names.fresh(f"{name}_single")
        reader.insert_before(self.node("Cast", [name], single, single, to=TensorProto.FLOAT))
        return single, TensorProto.FLOAT

    @override
    def find_element(self, layer: Layer) -> int:
        return self._format.element if layer.index in self._lowered else TensorProto.FLOAT

    def _lower(self, chosen: Mapping[int, Layer]) -> PassResult:
        single = {index: why for index, layer in chosen.items() if (why := self._why_single(layer))}
        rest = self._lowering.run(single | dict.fromkeys(self._single, EXCLUDED), chosen)
        self._lowered = frozenset(rest.units)
        return rest

    def _why_single(self, layer: Layer) -> str | None:
        """Return why a quantized node cannot compute in half precision."""
        if why := self._why_no_scale(layer):
            return why
        _, weight = self.quantize_weight(layer)
        largest = float(weight.scales.max(initial=0.0)) * self.form.weights.high
        if largest > self._format.largest:
            return f"weight {layer.weight} has {largest:.4g}, beyond {self._format.name}'s {self._format.largest:.4g}"
        if not has_numbers(self._format, weight.scales):
            return f"{self._format.name} has no numbers near the scales of {layer.weight}"
        return None

    def _why_no_scale(self, layer: Layer) -> str | None:
        scale = self.quantizers[layer.activation].scale
        # kernels may multiply by the reciprocal
        overflows = scale < 1 / self._format.largest
        if overflows or not has_numbers(self._format, np.array(scale, np.float32)):
            return f"{self._format.name} has no number near the scale of {layer.activation}"
        return None
