"""What a graph says of its inputs: constants that they are compared with, sizes of what they meet."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.raw.graphs import elements, graphs_in, nodes_in

_COMPARISONS: Final = frozenset({"Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"})
# what hands a single number on as it is
_COPIES: Final = frozenset(
    {"Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Gather"}
)
_NUMBERS: Final = frozenset(
    TensorProto.DataType.Value(name)
    for name in (
        *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
        *("FLOAT16", "FLOAT", "DOUBLE"),
    )
)
_NEAR: Final = 12  # nodes from an input to a weight that may say something of its sizes
_MOST: Final = 12  # sizes or constants
_LARGEST: Final = 65536  # as a size


@dataclass(frozen=True)
class Clues:
    """What is known without running; likeliest first."""

    compared: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by input
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # likewise
    order: Mapping[str, int] = field(default_factory=dict)  # of nodes, by name


def read(model: ModelProto, inputs: Sequence[str]) -> Clues:
    """Return what the graph of `model`, whose external data need not be loaded, says of `inputs`."""
    known = dict(_constants(model.graph))
    weights = {name: tuple(tensor.dims) for name, tensor in _tensors(model.graph)}
    everywhere, outside = _Readers(nodes_in(model.graph.node)), _Readers(model.graph.node)
    return Clues(
        compared={name: found for name in inputs if (found := _compared(everywhere, name, known))},
        sizes={name: found for name in inputs if (found := _sizes(outside, name, weights))},
        order={node.name: index for index, node in enumerate(everywhere.nodes) if node.name},
    )


class _Readers:
    """The nodes that read each value: of thousands of nodes an input meets few."""

    def __init__(self, nodes: Iterable[NodeProto]) -> None:
        self.nodes = list(nodes)
        self._of_value: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in node.input:
                self._of_value.setdefault(name, []).append(index)

    def follow(self, name: str, visit: Callable[[NodeProto], Iterable[str]]) -> None:
        """Visit, in order, the nodes that read a value, or a later one that `visit` returns."""
        waiting = list(self._of_value.get(name, ()))
        last = -1
        while waiting:
            index = heappop(waiting)
            if index == last:
                continue
            last = index
            for each in visit(self.nodes[index]):
                for later in self._of_value.get(each, ()):
                    if later > index:
                        heappush(waiting, later)


def _constants(graph: GraphProto) -> Iterator[tuple[str, float]]:
    """Yield single numbers by name, those of bodies too: exporters give them names of their own."""
    for name, tensor in chain.from_iterable(map(_tensors, graphs_in(graph))):
        if elements(tensor) == 1 and tensor.data_type in _NUMBERS and not tensor.external_data:
            try:
                array = numpy_helper.to_array(tensor)
            except ValueError:  # damaged: rule tensor-data reports it
                continue
            yield name, float(array.reshape(-1)[0])


def _tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield the constants of a graph by name."""
    yield from Constants(graph, replaceable=False).own().items()


def _compared(readers: _Readers, name: str, known: Mapping[str, float]) -> tuple[float, ...]:
    """Return the constants that an input's own value is compared with, in the graph's order."""
    same = {name}
    found: list[float] = []

    def visit(node: NodeProto) -> Iterable[str]:
        if node.op_type in _COPIES and node.input[0] in same:
            same.add(node.output[0])
            return (node.output[0],)
        if node.op_type in _COMPARISONS:
            found.extend(known[each] for each in node.input if each in known)
        return ()

    readers.follow(name, visit)
    return tuple(dict.fromkeys(found))[:_MOST]


def _sizes(readers: _Readers, name: str, weights: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return sizes of the weights that an input meets first, nearest first."""
    distance = {name: 0}
    met: list[tuple[int, int]] = []

    def visit(node: NodeProto) -> Iterable[str]:
        near = min((distance[each] for each in node.input if each in distance), default=_NEAR)
        if near >= _NEAR:
            return ()
        for output in node.output:
            distance.setdefault(output, near + 1)
        for each in node.input:
            met.extend((near, size) for size in weights.get(each, ()) if 1 < size <= _LARGEST)
        return tuple(node.output)

    readers.follow(name, visit)
    return tuple(dict.fromkeys(size for _, size in sorted(met, key=lambda one: one[0])))[:_MOST]
