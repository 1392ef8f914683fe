"""Finds the nodes that are shape arithmetic, by the rule in docs/placement.md. Pure graph analysis.

Providers leave them on the CPU, where their values are needed: ONNX Runtime's CUDA provider does so
for everything after a Shape node. They compute sizes and never touch data, so promises about
placement ignore them. In doubt, a node counts as compute.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

from onnx import GraphProto, ModelProto, NodeProto, TensorShapeProto

from enginewright_runtime.core.labels import format_label
from enginewright_runtime.graph.raw.constants import LARGE
from enginewright_runtime.graph.raw.graphs import elements, nodes_in
from enginewright_runtime.graph.raw.graphs import list_given_names as given_names
from enginewright_runtime.graph.raw.schemas import STANDARD, is_function
from enginewright_runtime.graph.scoped.inference import infer_shapes, lighten
from enginewright_runtime.graph.scoped.scopes import Node, Scope, Value

_SOURCES: Final = frozenset({"Shape", "Size"})
# Operators that exporters compute sizes, axes, pads and scales with. Not included: operators with
# bodies, which can capture data; random ones, which are not functions of a shape; NonZero, Unique
# and the like, whose output sizes depend on values.
ARITHMETIC: Final = frozenset(
    {
        *("Cast", "CastLike", "Identity", "Where"),
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Pad"),
        *("Slice", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"),
        *("Concat", "Split", "ConstantOfShape", "Range"),
        *("Abs", "Add", "Sub", "Mul", "Div", "Mod", "Neg", "Sign", "Min", "Max", "Pow", "Sqrt"),
        *("Reciprocal", "Floor", "Ceil", "Round", "Clip", "CumSum"),
        *("ReduceProd", "ReduceSum", "ReduceMin", "ReduceMax"),
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Xor"),
    }
)
# The output has as many elements as the largest input, if it has at most one dimension
_ELEMENTWISE: Final = ARITHMETIC & {
    *("Cast", "CastLike", "Identity", "Where"),
    *("Abs", "Add", "Sub", "Mul", "Div", "Mod", "Neg", "Sign", "Min", "Max", "Pow", "Sqrt"),
    *("Reciprocal", "Floor", "Ceil", "Round", "Clip"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Xor"),
}
# The output has no more elements than the first input
_SELECTING: Final = ARITHMETIC & {
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split"),
    *("ReduceProd", "ReduceSum", "ReduceMin", "ReduceMax"),
}
_RANDOM: Final = frozenset({"RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"})
_MOST_DIMENSIONS: Final = 2  # exporters transpose lists of pads as [n, 2]
_MOST_ELEMENTS: Final = 64  # more than the pads of a tensor of any common rank
_MOST_SIZES: Final = 8  # from a Shape of a tensor of unknown rank: models have no larger rank
_FIRST_WITH_CONSTANTS: Final = 4  # the first IR version with initializers that are not inputs


def shape_nodes(model: ModelProto) -> tuple[str, ...]:
    """Return the labels that only nodes of shape arithmetic have, in the order of the graph."""
    main = Scope(infer_shapes(lighten(model)).graph)
    constants = {item.name for item in model.graph.initializer if elements(item) <= LARGE}
    constants |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    if model.ir_version >= _FIRST_WITH_CONSTANTS:  # callers may override those
        constants -= {value.name for value in model.graph.input}
    kinds = _Kinds({value for value in main.own() if value.name in constants})
    kinds.walk(main)
    doubtful: set[str] = set()
    if any(True for _ in function_calls(model)):  # inlining may add unnamed nodes that compute data
        doubtful = {format_label("", operator) for operator in ARITHMETIC}
    return tuple(key for key, is_shape in kinds.labels.items() if is_shape and key not in doubtful)


class _Kinds:
    """Classifies values as constant or computed from shapes, and labels as shape arithmetic or not."""

    def __init__(self, constants: set[Value]) -> None:
        self._constants = constants
        self._shapes: dict[Value, int | None] = {}  # elements at most, if known
        self.labels: dict[str, bool] = {}

    def walk(self, scope: Scope) -> None:
        graph = scope.graph
        facts = _Facts.of(graph)
        for node in scope.nodes:
            inputs = {scope.find(name) for name in node.proto.input if name}
            most = self._elements(node, facts)
            is_shape = self._is_shape_arithmetic(node.proto, inputs, facts.small, most)
            name = format_label(node.proto.name, node.proto.op_type)
            self.labels[name] = is_shape and self.labels.get(name, True)
            if is_shape:
                self._shapes.update(dict.fromkeys(node.produces(), most))
            elif self._is_constant(node, inputs):
                self._constants.update(node.produces())
            for body in node.bodies:
                weights = {*given_names(body.graph)} - {item.name for item in body.graph.input}
                self._constants.update(body.values[weight] for weight in weights)
                self.walk(body)

    def _is_shape_arithmetic(
        self,
        node: NodeProto,
        inputs: set[Value | None],
        small: frozenset[str],
        most: int | None,
    ) -> bool:
        if node.domain not in STANDARD:
            return False
        if node.op_type in _SOURCES:
            return True
        computed = inputs - self._constants
        return (
            node.op_type in ARITHMETIC
            and bool(computed)  # else it is folded, and so not placed
            and computed <= self._shapes.keys()
            and (
                {name for name in node.output if name} <= small
                or (most is not None and most <= _MOST_ELEMENTS)
            )
        )

    def _elements(self, node: Node, facts: "_Facts") -> int | None:
        """Return how many elements an output of a node has at most, if known, also after a tensor of unknown rank."""
        operator = node.proto.op_type
        if operator in _SOURCES:
            return 1 if operator == "Size" else _MOST_SIZES
        if not facts.deep.isdisjoint(node.proto.output):
            return None
        inputs = [self._input_elements(node, name, facts) for name in node.proto.input if name]
        counts = [count for count in inputs if count is not None]
        if not counts or len(counts) < len(inputs):
            return None
        most: int | None = None
        if operator == "Concat":
            most = sum(counts)
        elif operator in _SELECTING:
            most = counts[0]
        elif operator == "Gather" and node.proto.input[0] in facts.lists:
            most = counts[1]
        elif operator in _ELEMENTWISE and facts.lists.issuperset(node.proto.output):
            most = max(counts)
        return most

    def _input_elements(self, node: Node, name: str, facts: "_Facts") -> int | None:
        value = node.scope.find(name)
        bound = self._shapes.get(value) if value is not None else None
        return facts.elements.get(name) if bound is None else bound

    def _is_constant(self, node: Node, inputs: set[Value | None]) -> bool:
        """Return whether ONNX Runtime folds the node."""
        operator = node.proto.op_type
        return operator == "Constant" or (
            bool(inputs)
            and inputs <= self._constants
            and operator not in _RANDOM
            and not node.bodies
        )


@dataclass(frozen=True)
class _Facts:
    elements: Mapping[str, int]  # of values of fixed sizes
    small: frozenset[str]  # values that sizes are computed in
    lists: frozenset[str]  # values of at most one dimension
    deep: frozenset[str]  # values of more dimensions than sizes are computed in

    @classmethod
    def of(cls, graph: GraphProto) -> Self:
        weights = {item.name: tuple(item.dims) for item in graph.initializer}
        values = (*graph.value_info, *graph.output, *graph.input)
        shaped = [value for value in values if value.type.tensor_type.HasField("shape")]
        dimensions: dict[str, tuple[int | None, ...]] = {
            value.name: tuple(map(_size, value.type.tensor_type.shape.dim)) for value in shaped
        }
        fixed = {
            name: math.prod(size for size in sizes if size is not None)
            for name, sizes in dimensions.items()
            if None not in sizes
        }
        produced = {value.name for value in (*graph.value_info, *graph.output)}
        return cls(
            elements=fixed | {name: math.prod(sizes) for name, sizes in weights.items()},
            small=frozenset(
                name
                for name, count in fixed.items()
                if name in produced
                and len(dimensions[name]) <= _MOST_DIMENSIONS
                and count <= _MOST_ELEMENTS
            ),
            lists=frozenset(
                name for name, sizes in (*dimensions.items(), *weights.items()) if len(sizes) <= 1
            ),
            deep=frozenset(
                name for name, sizes in dimensions.items() if len(sizes) > _MOST_DIMENSIONS
            ),
        )


def _size(dimension: TensorShapeProto.Dimension) -> int | None:
    fixed = dimension.WhichOneof("value") == "dim_value" and dimension.dim_value >= 0
    return dimension.dim_value if fixed else None


def function_calls(model: ModelProto) -> Iterator[NodeProto]:
    """Yield nodes that ONNX Runtime inlines if no provider has a kernel for them, whose nodes may then be unnamed."""
    own = {(function.name, function.domain) for function in model.functions}
    versions = defaultdict(int, {entry.domain: entry.version for entry in model.opset_import})
    for node in nodes_in(model.graph.node):
        operator = (node.op_type, node.domain)
        if operator in own or is_function(*operator, versions[node.domain]):
            yield node
