"""Finds outputs whose sizes depend on the values of inputs, such as the boxes that a detector keeps. Pure graph analysis.

Golden samples cannot show it where they all happen to have one size; and a batch of such outputs cannot be divided
among its requests. In doubt, a size depends on values.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from onnx import ModelProto

from enginewright_runtime.core.labels import format_label
from enginewright_runtime.graph.raw.schemas import STANDARD
from enginewright_runtime.graph.scoped.inference import lighten
from enginewright_runtime.graph.scoped.scopes import Node, Scope, Value

# how many elements an output has depends on the values of any input
_SELECTING: Final = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
# inputs whose values are sizes
_SIZES: Final = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1,),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}
# outputs are as large as the first input, whatever the others are
_IN_PLACE: Final = frozenset({"Scatter", "ScatterElements", "ScatterND", "TensorScatter"})


def find_sized_by_values(model: ModelProto) -> dict[str, str]:
    """Return the outputs whose sizes depend on values, each with the label of the node that this comes from."""
    weights = {item.name for item in model.graph.initializer}
    weights |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    main = Scope(lighten(model).graph)
    sizes = _Sizes(model)
    sizes.data = {main.values[item.name] for item in model.graph.input if item.name not in weights}
    sizes.walk(main)
    outputs = ((item.name, main.find(item.name)) for item in model.graph.output)
    return {
        name: sizes.causes[value]
        for name, value in outputs
        if value is not None and value in sizes.causes
    }


class _Sizes:
    """Follows values through the graph."""

    def __init__(self, model: ModelProto) -> None:
        self.data: set[Value] = (
            set()
        )  # that depend on the values of inputs, not only on their sizes
        self.causes: dict[
            Value, str
        ] = {}  # labels of nodes, by values whose sizes depend on values
        functions = {(function.name, function.domain) for function in model.functions}
        selects = any(
            node.op_type in _SELECTING for function in model.functions for node in function.node
        )
        self._selecting_calls = functions if selects else set()

    def walk(self, scope: Scope) -> None:
        for node in scope.nodes:
            for body in node.bodies:
                self._link(_enter(node, body))
                self.walk(body)
                while self._link(_repeat(node, body)):  # what one turn leaves to the next
                    self.walk(body)
            self._follow(node)
            self._link(chain.from_iterable(_leave(node, body) for body in node.bodies))

    def _follow(self, node: Node) -> None:
        """Note what the outputs of a node depend on."""
        operator, consumed = node.proto.op_type, node.consumes()
        is_data = any(value in self.data for value in consumed)
        sized = node.inputs()[:1] if operator in _IN_PLACE else consumed
        cause = next((self.causes[value] for value in sized if value in self.causes), "")
        if operator in {"Shape", "Size"} and node.proto.domain in STANDARD:
            is_data, cause = bool(cause), ""
        elif is_data and self._selects(node):
            cause = format_label(node.proto.name, operator)
        for value in node.produces():
            if is_data and (operator == "If" or not node.bodies):  # those of bodies are followed
                self.data.add(value)
            if cause:
                self.causes.setdefault(value, cause)

    def _selects(self, node: Node) -> bool:
        """Whether sizes of its outputs are values of its inputs, or depend on them, where some are data."""
        proto = node.proto
        if (proto.op_type, proto.domain) in self._selecting_calls:
            return True
        if proto.domain not in STANDARD:
            return False
        names = [
            proto.input[index]
            for index in _SIZES.get(proto.op_type, ())
            if index < len(proto.input) and proto.input[index]
        ]
        sizes = [node.scope.find(name) for name in names]
        if proto.op_type == "Loop":  # ends where its body says so
            sizes += [body.find(body.graph.output[0].name) for body in node.bodies]
        return proto.op_type in _SELECTING or any(value in self.data for value in sizes)

    def _link(self, pairs: Iterable[tuple[Value | None, Value | None]]) -> bool:
        """Give the first of each pair what is known of the second; return whether that was news."""
        before = len(self.data) + len(self.causes)
        for target, source in pairs:
            if target is None or source is None:
                continue
            if source in self.data:
                self.data.add(target)
            if source in self.causes:
                self.causes.setdefault(target, self.causes[source])
        return len(self.data) + len(self.causes) > before


_Pairs = Iterator[tuple[Value | None, Value | None]]


def _enter(node: Node, body: Scope) -> _Pairs:
    """Yield the inputs of a body with those of its node, as Loop and Scan have in the same places."""
    for item, name in zip(body.graph.input, node.proto.input, strict=False):
        if node.proto.op_type != "Loop" or item != body.graph.input[0]:  # which counts the turns
            yield body.find(item.name), node.scope.find(name)


def _repeat(node: Node, body: Scope) -> _Pairs:
    """Yield the inputs of a body with its outputs of the turn before."""
    if node.proto.op_type == "If":
        return
    skipped = 1 if node.proto.op_type == "Loop" else 0
    kept = len(body.graph.input) - skipped
    for attribute in node.proto.attribute:
        if attribute.name == "num_scan_inputs":
            kept -= attribute.i
    inputs = list(body.graph.input)[skipped : skipped + kept]
    for item, output in zip(inputs, body.graph.output, strict=False):
        yield body.find(item.name), body.find(output.name)


def _leave(node: Node, body: Scope) -> _Pairs:
    """Yield the outputs of a node with those of its body."""
    skipped = 1 if node.proto.op_type == "Loop" else 0
    outputs = list(body.graph.output)[skipped:]
    for name, output in zip(node.proto.output, outputs, strict=False):
        yield node.scope.find(name), body.find(output.name)
