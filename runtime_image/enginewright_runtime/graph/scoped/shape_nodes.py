"""Finds the nodes that are shape arithmetic, by the rule in docs/placement.md. Pure graph analysis.

Providers deliberately leave them on the CPU, where their values are needed: ONNX Runtime's CUDA
provider does so for everything after a Shape node. They compute sizes and never touch data, so that
promises about placement ignore them. In doubt, a node counts as compute.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from onnx import ModelProto, NodeProto, ValueInfoProto

from enginewright_runtime.core.labels import reported_label
from enginewright_runtime.graph.raw.constants import LARGE
from enginewright_runtime.graph.raw.graphs import elements, nodes_in
from enginewright_runtime.graph.raw.graphs import given as given_names
from enginewright_runtime.graph.raw.schemas import STANDARD, is_function
from enginewright_runtime.graph.scoped.inference import inferred, lightened
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
_RANDOM: Final = frozenset({"RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"})
_MOST_DIMENSIONS: Final = 2  # exporters transpose lists of pads as [n, 2]
_MOST_ELEMENTS: Final = 64  # more than the pads of a tensor of any common rank
_FIRST_WITH_CONSTANTS: Final = 4  # the first IR version with initializers that are not inputs


def shape_nodes(model: ModelProto) -> tuple[str, ...]:
    """Return the labels of shape arithmetic, in the order of the graph.

    If several nodes share a label, it is returned only if all of them are shape arithmetic.

    External data need not be loaded; the model is left unchanged.
    """
    main = Scope(inferred(lightened(model)).graph)
    constants = {each.name for each in model.graph.initializer if elements(each) <= LARGE}
    constants |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    if model.ir_version >= _FIRST_WITH_CONSTANTS:  # callers may override those
        constants -= {value.name for value in model.graph.input}
    kinds = _Kinds({value for value in main.own() if value.name in constants})
    kinds.walk(main)
    doubtful: set[str] = set()
    if any(True for _ in function_calls(model)):  # inlining may add unnamed nodes that compute data
        doubtful = {reported_label("", operator) for operator in ARITHMETIC}
    return tuple(
        each for each, is_shape in kinds.found.items() if is_shape and each not in doubtful
    )


class _Kinds:
    """Classifies values as constant or computed from shapes, and labels as shape arithmetic or not."""

    def __init__(self, constants: set[Value]) -> None:
        self._constants = constants
        self._shapes: set[Value] = set()
        self.found: dict[str, bool] = {}

    def walk(self, scope: Scope) -> None:
        graph = scope.graph
        small = {value.name for value in (*graph.value_info, *graph.output) if _is_small(value)}
        for node in scope.nodes:
            given = {scope.find(name) for name in node.proto.input if name}
            is_shape = self._is_shape_arithmetic(node.proto, given, small)
            name = reported_label(node.proto.name, node.proto.op_type)
            self.found[name] = is_shape and self.found.get(name, True)
            if is_shape:
                self._shapes.update(node.produces())
            elif self._is_constant(node, given):
                self._constants.update(node.produces())
            for body in node.bodies:
                weights = {*given_names(body.graph)} - {each.name for each in body.graph.input}
                self._constants.update(body.values[each] for each in weights)
                self.walk(body)

    def _is_shape_arithmetic(
        self, node: NodeProto, given: set[Value | None], small: set[str]
    ) -> bool:
        if node.domain not in STANDARD:
            return False
        if node.op_type in _SOURCES:
            return True
        computed = given - self._constants
        return (
            node.op_type in ARITHMETIC
            and bool(computed)  # else it is folded, and so not placed
            and computed <= self._shapes
            and {name for name in node.output if name} <= small
        )

    def _is_constant(self, node: Node, given: set[Value | None]) -> bool:
        """Return whether ONNX Runtime folds the node."""
        operator = node.proto.op_type
        return operator == "Constant" or (
            bool(given) and given <= self._constants and operator not in _RANDOM and not node.bodies
        )


def _is_small(value: ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or len(tensor.shape.dim) > _MOST_DIMENSIONS:
        return False
    elements = 1
    for dimension in tensor.shape.dim:
        if dimension.WhichOneof("value") != "dim_value" or dimension.dim_value < 0:
            return False
        elements *= dimension.dim_value
    return elements <= _MOST_ELEMENTS


def function_calls(model: ModelProto) -> Iterator[NodeProto]:
    """Yield nodes that ONNX Runtime may inline as functions, whose nodes may be unnamed.

    It inlines them if no provider has a kernel for the node.
    """
    own = {(function.name, function.domain) for function in model.functions}
    versions = defaultdict(int, {entry.domain: entry.version for entry in model.opset_import})
    for node in nodes_in(model.graph.node):
        operator = (node.op_type, node.domain)
        if operator in own or is_function(*operator, versions[node.domain]):
            yield node
