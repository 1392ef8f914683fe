"""Which nodes are shape arithmetic, by a written rule: docs/placement.md. Pure graph analysis.

Providers leave them to the CPU on purpose, since their values are needed there: ONNX Runtime's CUDA
provider does so for whatever follows a Shape node. They compute sizes and never touch data, so a
promise about placement does not count them. Where the rule cannot decide, a node counts as compute.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from enginewright_runtime.core.labels import reported_label
from enginewright_runtime.graph.raw.constants import LARGE
from enginewright_runtime.graph.raw.graphs import bodies, elements, has_bodies, nodes_in
from enginewright_runtime.graph.raw.schemas import STANDARD, is_function
from enginewright_runtime.graph.scoped.inference import inferred, lightened

_SOURCES: Final = frozenset({"Shape", "Size"})
# What exporters compute sizes, axes, pads and scales with. Operators with bodies are not among
# them, since a body can read data that is no input; nor are random ones, which are no function of
# a shape; nor NonZero, Unique and the like, whose sizes depend on values.
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
_MOST_DIMENSIONS: Final = 2  # exporters turn lists of pads over as [n, 2]
_MOST_ELEMENTS: Final = 64  # more than all pads of a tensor of any rank in use
_FIRST_WITH_CONSTANTS: Final = 4  # IR version since which an initializer may be no input


def shape_nodes(model: ModelProto) -> tuple[str, ...]:
    """Return the labels of shape arithmetic, in the order of the graph.

    Several nodes may share a label; it is returned only when all of them are shape arithmetic.

    External data need not be loaded; the model is left unchanged.
    """
    graph = inferred(lightened(model)).graph
    constants = {each.name for each in model.graph.initializer if elements(each) <= LARGE}
    constants |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    if model.ir_version >= _FIRST_WITH_CONSTANTS:  # a caller may give another value then
        constants -= {value.name for value in model.graph.input}
    found: dict[str, bool] = {}
    _walk(graph, _Scope(constants), found)
    doubtful: set[str] = set()
    if any(True for _ in function_calls(model)):  # unnamed nodes that compute data may come
        doubtful = {reported_label("", operator) for operator in ARITHMETIC}
    return tuple(each for each, is_shape in found.items() if is_shape and each not in doubtful)


@dataclass
class _Scope:
    """Names of values that are visible in a graph: constant, computed from shapes, or with sizes."""

    constants: set[str] = field(default_factory=set)
    shapes: set[str] = field(default_factory=set)

    def inner(self) -> "_Scope":
        """Return the scope of a body, which sees all of this one."""
        return _Scope(set(self.constants), set(self.shapes))


def _walk(graph: GraphProto, scope: _Scope, found: dict[str, bool]) -> None:
    small = {value.name for value in (*graph.value_info, *graph.output) if _is_small(value)}
    for node in graph.node:
        is_shape = _is_shape_arithmetic(node, scope, small)
        name = reported_label(node.name, node.op_type)
        found[name] = is_shape and found.get(name, True)
        constant = not is_shape and _is_constant(node, scope)
        # an inner value may have the name of an outer one, in models that break the rules
        for names, belongs in ((scope.shapes, is_shape), (scope.constants, constant)):
            names.difference_update(node.output)
            names.update(node.output if belongs else ())
        for body in bodies(node):
            within = scope.inner()
            hidden = {value.name for value in body.input}
            within.constants = (within.constants - hidden) | _constants(body)
            within.shapes -= hidden
            _walk(body, within, found)


def _is_shape_arithmetic(node: NodeProto, scope: _Scope, small: set[str]) -> bool:
    if node.domain not in STANDARD:
        return False
    if node.op_type in _SOURCES:
        return True
    given = {name for name in node.input if name} - scope.constants
    return (
        node.op_type in ARITHMETIC
        and bool(given)  # else it is folded, and nothing is left to be placed
        and given <= scope.shapes
        and {name for name in node.output if name} <= small
    )


def _is_constant(node: NodeProto, scope: _Scope) -> bool:
    """Tell whether ONNX Runtime folds the node."""
    if node.op_type == "Constant":
        return True
    given = {name for name in node.input if name}
    return (
        bool(given)
        and given <= scope.constants
        and node.op_type not in _RANDOM
        and not has_bodies(node)
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


def _constants(graph: GraphProto) -> set[str]:
    names = {tensor.name for tensor in graph.initializer}
    return names | {sparse.values.name for sparse in graph.sparse_initializer}


def function_calls(model: ModelProto) -> Iterator[NodeProto]:
    """Yield nodes that ONNX Runtime may replace by the nodes of a function, some without a name.

    It does so where no provider has a kernel for the node.
    """
    own = {(function.name, function.domain) for function in model.functions}
    versions = defaultdict(int, {entry.domain: entry.version for entry in model.opset_import})
    for node in nodes_in(model.graph.node):
        operator = (node.op_type, node.domain)
        if operator in own or is_function(*operator, versions[node.domain]):
            yield node
