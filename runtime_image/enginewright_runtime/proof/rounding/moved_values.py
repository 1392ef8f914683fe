"""Which values reach a model's outputs as an operator has made them, at other places or chosen among others. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Final

from onnx import GraphProto, NodeProto

from enginewright_runtime.graph.raw import graphs

# Operators whose results are elements of their inputs, at most with another sign: they round nothing.
MOVING: Final = frozenset(
    {
        *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile"),
        *("Slice", "Split", "Gather", "GatherElements", "GatherND", "Compress", "Concat", "Pad"),
        *("DepthToSpace", "SpaceToDepth", "ReverseSequence", "Trilu", "Where"),
        *("Relu", "Clip", "Max", "Min", "ReduceMax", "ReduceMin", "TopK", "Neg", "Abs"),
        *("MaxPool", "GlobalMaxPool"),
    }
)
# Those, and others that move values, but round some of their own or move sequences.
_MOVING_TOO: Final = MOVING | {
    *("Cast", "Scatter", "ScatterElements", "ScatterND", "ConcatFromSequence"),
    *("SequenceAt", "SequenceConstruct", "SequenceInsert", "SplitToSequence"),
}


def find_moved(
    graph: GraphProto, operators: Collection[str], readers: Mapping[str, int] | None = None
) -> frozenset[str]:
    """Return the names of values that are results of these operators and, moved or not, of the model.

    With `readers`, operators and one of the inputs of each, they are what these read instead. Values in bodies
    included; a name that two bodies have counts if either value does.
    """
    nodes = [*graphs.nodes_in(graph.node)]
    sources: dict[str, list[str]] = defaultdict(list)  # values whose elements one may hold
    moved_to: dict[str, list[str]] = defaultdict(list)  # the reverse
    for node in nodes:
        for value, source in _list_moves(node):
            sources[value].append(source)
            moved_to[source].append(value)
    made = [name for node in nodes if node.op_type in operators for name in node.output]
    ends = graphs.outputs_named(graph)
    if readers is not None:
        ends = [node.input[readers[node.op_type]] for node in nodes if node.op_type in readers]
    return find_reachable(made, moved_to) & find_reachable(ends, sources)


def _list_moves(node: NodeProto) -> Iterator[tuple[str, str]]:
    """Yield values with those whose elements they may hold as they are: outputs, and inputs of bodies."""
    if node.op_type in _MOVING_TOO:
        yield from product(node.output, filter(None, node.input))
    for body in graphs.bodies(node):
        given, made = ([value.name for value in values] for values in (body.input, body.output))
        # a body of Loop begins with its number and condition, and returns the condition first
        skipped = max(0, len(made) - len(node.output))
        yield from zip(node.output, made[skipped:], strict=False)
        yield from zip(given, node.input, strict=False)
        yield from zip(given[2 * skipped :], made[skipped:], strict=False)  # in the next step


def find_reachable(
    names: Collection[str], further: Mapping[str, Collection[str]]
) -> frozenset[str]:
    """Return the names and all that follow from them; names that bodies share may lead in a circle."""
    reached: set[str] = set()
    waiting = [*names]
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += further.get(name, ())
    return frozenset(reached)
