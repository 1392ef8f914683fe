"""Which values reach a model's outputs as an operator has made them, at other places or chosen among others. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
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


def find_moved(graph: GraphProto, operators: Collection[str]) -> frozenset[str]:
    """Return the names of values that are results of these operators and, moved or not, of the model.

    Values in bodies included; a name that two bodies have counts if either value does.
    """
    nodes = [*graphs.nodes_in(graph.node)]
    made_by: dict[str, list[NodeProto]] = defaultdict(list)
    for node in nodes:
        for name in node.output:
            made_by[name].append(node)
    moved_to: dict[str, list[str]] = defaultdict(list)  # of values that reach the outputs
    results: set[str] = set()
    waiting = graphs.outputs_named(graph)
    while waiting:
        if (name := waiting.pop()) in results:
            continue
        results.add(name)
        for node in made_by.get(name, ()):
            for source in _list_sources(node, name):
                moved_to[source].append(name)
                waiting.append(source)
    made = [name for node in nodes if node.op_type in operators for name in node.output]
    return _close(made, moved_to) & results


def _list_sources(node: NodeProto, name: str) -> Iterator[str]:
    """Yield the values whose elements one of a node's outputs may hold as they are."""
    if node.op_type in MOVING:
        yield from filter(None, node.input)
    index = [*node.output].index(name)
    for body in graphs.bodies(node):
        # the first output of a body of Loop is its condition
        first = max(0, len(body.output) - len(node.output))
        for value in body.output[first + index : first + index + 1]:
            yield value.name


def _close(names: Collection[str], moved_to: Mapping[str, Collection[str]]) -> frozenset[str]:
    reached: set[str] = set()
    waiting = [*names]
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += moved_to.get(name, ())
    return frozenset(reached)
