"""Finds tensors whose sizes depend on the values of inputs, such as the boxes that a detector keeps. Pure graph analysis.

Golden samples cannot show it where they all happen to have one size; and a batch of such outputs cannot be divided
among its requests, nor can an engine be built around one: what its sizes were with golden samples bounds nothing. In
doubt, a size depends on values: an If takes one branch for all rows, and of an operator of a library of the user's only
its name is known.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from onnx import ModelProto

from enginewright_runtime.core.labels import format_label
from enginewright_runtime.graph.raw.graphs import PLACEHOLDER_DIMENSIONS
from enginewright_runtime.graph.raw.schemas import STANDARD
from enginewright_runtime.graph.scoped.inference import lighten
from enginewright_runtime.graph.scoped.scopes import Node, Scope, Value

# how many elements an output has depends on the values of any input
_SELECTING: Final = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
_FIRST: Final = ("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow", "If", "Loop")
_SECOND: Final = ("AffineGrid", "CenterCropPad", "DFT", "Expand", "OneHot", "Pad", "Reshape")
# places of the inputs whose values are sizes, or choose among them
SIZES: Final[dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(_FIRST, (0,)),
    **dict.fromkeys((*_SECOND, "Split", "SplitToSequence", "Tile", "TopK", "Upsample"), (1,)),
    "Col2Im": (1, 2),
    "MaxUnpool": (2,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
}
# outputs are as large as the first input alone
_IN_PLACE: Final = frozenset({"Scatter", "ScatterElements", "ScatterND", "TensorScatter"})


# domains whose operators ONNX Runtime itself has, and those of them that select
_OF_RUNTIME: Final = frozenset({"ai.onnx.ml", "com.microsoft"})
_SELECTING_OF_RUNTIME: Final = frozenset(
    {
        *(
            "BeamSearch",
            "CropAndResize",
            "GreedySearch",
            "Pad",
            "Range",
            "RemovePadding",
            "Sampling",
        ),
        *("Tokenizer", "Unique", "WhisperBeamSearch"),
    }
)


def find_sized_by_values(model: ModelProto) -> dict[str, str]:
    """Return the outputs whose sizes depend on values, each with the label of the node that this comes from.

    An operator of another library may select, unless the sizes of all that it leads to are declared as those of inputs.
    """
    certain = find_tensors_sized_by_values(model)
    possible = find_tensors_sized_by_values(model, foreign=True)
    declared = _find_declared(model)
    return {
        item.name: certain.get(item.name, possible[item.name])
        for item in model.graph.output
        if item.name in certain or (item.name in possible and item.name not in declared)
    }


def find_tensors_sized_by_values(model: ModelProto, *, foreign: bool = False) -> dict[str, str]:
    """Return all such tensors of the main graph, if operators of other libraries select where `foreign`."""
    main = Scope(lighten(model).graph)
    weights = {item.name for item in model.graph.initializer}
    weights |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    sizes = _Sizes(model, foreign=foreign)
    sizes.data = {main.values[item.name] for item in model.graph.input if item.name not in weights}
    sizes.walk(main)
    return {
        name: sizes.causes[value] for name, value in main.values.items() if value in sizes.causes
    }


def _find_declared(model: ModelProto) -> set[str]:
    """Return the outputs of which each size is declared as a number, or by a name that inputs have."""
    names = {
        dimension.dim_param
        for item in model.graph.input
        for dimension in item.type.tensor_type.shape.dim
        if dimension.dim_param and dimension.dim_param not in PLACEHOLDER_DIMENSIONS
    }
    return {
        item.name
        for item in model.graph.output
        if item.type.tensor_type.HasField("shape")
        and all(
            dimension.HasField("dim_value") or dimension.dim_param in names
            for dimension in item.type.tensor_type.shape.dim
        )
    }


class _Sizes:
    """Follows values through the graph."""

    def __init__(self, model: ModelProto, *, foreign: bool) -> None:
        # values that depend on the values of inputs, not only on their sizes
        self.data: set[Value] = set()
        # labels of nodes by the values whose sizes depend on values
        self.causes: dict[Value, str] = {}
        self._foreign = foreign
        self._functions = {(item.name, item.domain) for item in model.functions}
        self._functions_select = any(
            node.op_type in _SELECTING or self._may_select(node.op_type, node.domain)
            for item in model.functions
            for node in item.node
        )

    def _may_select(self, operator: str, domain: str) -> bool:
        """Whether an operator that is not standard, nor a function of the model, selects."""
        if domain in STANDARD or (operator, domain) in self._functions:
            return False
        if domain in _OF_RUNTIME:
            return operator in _SELECTING_OF_RUNTIME
        return self._foreign

    def walk(self, scope: Scope) -> None:
        for node in scope.nodes:
            for body in node.bodies:
                self.walk(body)
                while self._link(_pair(node, body)):
                    self.walk(body)
            self._follow(node)

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
        operator = node.proto.op_type
        if node.proto.domain not in STANDARD:
            if (operator, node.proto.domain) in self._functions:
                return self._functions_select
            return self._may_select(operator, node.proto.domain)
        names = [name for at, name in enumerate(node.proto.input) if at in SIZES.get(operator, ())]
        sizes = [node.scope.find(name) for name in names]
        if operator == "Loop":  # ends where its body says so
            sizes += [body.find(body.graph.output[0].name) for body in node.bodies]
        return operator in _SELECTING or not self.data.isdisjoint(sizes)

    def _link(self, pairs: Iterable[tuple[Value | None, Value | None]]) -> bool:
        """Give the first of each pair what is known of the second; return whether that was news."""
        before = len(self.data) + len(self.causes)
        for target, source in pairs:
            if target is not None and source in self.data:
                self.data.add(target)
            if target is not None and source in self.causes:
                self.causes.setdefault(target, self.causes[source])
        return len(self.data) + len(self.causes) > before


def _pair(node: Node, body: Scope) -> Iterator[tuple[Value | None, Value | None]]:
    """Yield the inputs of a body with those of its node and with what its turn before left; and the node's outputs."""
    # a Loop's body counts the turns, and says whether another follows
    skipped = 1 if node.proto.op_type == "Loop" else 0
    inputs = [body.find(item.name) for item in body.graph.input][skipped:]
    outputs = [body.find(item.name) for item in body.graph.output]
    yield from zip(inputs, map(node.scope.find, node.proto.input[skipped:]), strict=False)
    yield from zip(inputs, outputs, strict=False)
    yield from zip(map(node.scope.find, node.proto.output), outputs[skipped:], strict=False)
