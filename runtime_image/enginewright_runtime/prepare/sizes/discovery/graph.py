"""Clues in a graph about its inputs: constants that they are compared with, sizes of weights, values that are sizes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from typing import Final

from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.raw.graphs import elements, graphs_in
from enginewright_runtime.graph.scoped.scopes import Node, Scope, Value
from enginewright_runtime.graph.scoped.value_sizes import SIZES

_COMPARISONS: Final = frozenset({"Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"})
# operators that pass a single number on unchanged
_COPIES: Final = frozenset(
    {"Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Gather"}
)
# operators that pass on some numbers of their first input, or numbers of all
_SELECTING: Final = _COPIES | {"Slice", "Split"}
_COMBINING: Final = frozenset({"Concat", "Where"})
_NUMBERS: Final = frozenset(
    TensorProto.DataType.Value(name)
    for name in (
        *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
        *("FLOAT16", "FLOAT", "DOUBLE"),
    )
)
_MAX_DISTANCE: Final = 12  # nodes between an input and a weight whose sizes may be the input's
_MAX_CLUES: Final = 12  # sizes or constants
_LARGEST: Final = 65536  # as a size


@dataclass(frozen=True)
class Clues:
    """Facts from the graph without a run; the most likely first."""

    compared: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by input
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # likewise
    order: Mapping[str, int] = field(default_factory=dict)  # of nodes, by name
    sizing: frozenset[str] = frozenset()  # inputs whose values are sizes of other tensors


def read(model: ModelProto, inputs: Sequence[str]) -> Clues:
    """Return the clues about `inputs` in the graph of `model`, whose external data is not needed."""
    numbers = dict(_constants(model.graph))
    weights = {name: tuple(tensor.dims) for name, tensor in _tensors(model.graph)}
    main = Scope(model.graph)
    everywhere, outside = _Readers(main.all_nodes()), _Readers(main.nodes)
    # invalid models have unnamed inputs
    values = {name: main.values[name] for name in inputs if name}
    names = enumerate(node.proto.name for node in everywhere.nodes)
    return Clues(
        compared={
            name: constants
            for name, value in values.items()
            if (constants := _find_compared(everywhere, value, numbers))
        },
        sizes={
            name: sizes
            for name, value in values.items()
            if (sizes := _sizes(outside, value, weights))
        },
        order={name: index for index, name in names if name},
        sizing=frozenset(name for name, value in values.items() if _is_size(everywhere, value)),
    )


class _Readers:
    """The nodes that read each value: an input reaches few of thousands of nodes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = list(nodes)
        self._place = {node: index for index, node in enumerate(self.nodes)}

    def follow(self, value: Value, visit: Callable[[Node], Iterable[Value]]) -> None:
        """Visit, in order, the nodes that read a value, or a later one that `visit` returns."""
        waiting = self._places(value)
        last = -1
        while waiting:
            index = heappop(waiting)
            if index == last:
                continue
            last = index
            for item in visit(self.nodes[index]):
                for later in self._places(item):
                    if later > index:
                        heappush(waiting, later)

    def _places(self, value: Value) -> list[int]:
        places = (self._place.get(reader) for reader in value.readers if isinstance(reader, Node))
        return sorted(place for place in places if place is not None)


def _constants(graph: GraphProto) -> Iterator[tuple[str, float]]:
    """Yield single numbers by name, including those in bodies: exporters give them unique names."""
    for name, tensor in chain.from_iterable(map(_tensors, graphs_in(graph))):
        if elements(tensor) == 1 and tensor.data_type in _NUMBERS and not tensor.external_data:
            try:
                array = numpy_helper.to_array(tensor)
            except ValueError:  # invalid: rule tensor-data reports it
                continue
            yield name, float(array.reshape(-1)[0])


def _tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    yield from Constants(graph, replaceable=False).own().items()


def _find_compared(
    readers: _Readers, value: Value, numbers: Mapping[str, float]
) -> tuple[float, ...]:
    same = {value}
    constants: list[float] = []

    def visit(node: Node) -> Iterable[Value]:
        operator, inputs = node.proto.op_type, node.inputs()
        if operator in _COPIES and inputs[0] in same:
            same.add(node.produces()[0])
            return node.produces()[:1]
        if operator in _COMPARISONS:
            constants.extend(numbers[input_.name] for input_ in inputs if input_.name in numbers)
        return ()

    readers.follow(value, visit)
    return tuple(dict.fromkeys(constants))[:_MAX_CLUES]


def _is_size(readers: _Readers, value: Value) -> bool:
    same = {value}
    places: list[int] = []

    def visit(node: Node) -> Iterable[Value]:
        operator, inputs = node.proto.op_type, node.inputs()
        names = [name for at, name in enumerate(node.proto.input) if at in SIZES.get(operator, ())]
        places.extend(at for at, name in enumerate(names) if node.scope.find(name) in same)
        passed = inputs if operator in _COMBINING else inputs[:1]
        if operator in _SELECTING | _COMBINING and not same.isdisjoint(passed):
            same.update(node.produces())
            return node.produces()
        return ()

    readers.follow(value, visit)
    return bool(places)


def _sizes(
    readers: _Readers, value: Value, weights: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    distance = {value: 0}
    met: list[tuple[int, int]] = []

    def visit(node: Node) -> Iterable[Value]:
        inputs = node.inputs()
        near = min(
            (distance[input_] for input_ in inputs if input_ in distance), default=_MAX_DISTANCE
        )
        if near >= _MAX_DISTANCE:
            return ()
        for output in node.produces():
            distance.setdefault(output, near + 1)
        for input_ in inputs:
            met.extend(
                (near, size) for size in weights.get(input_.name, ()) if 1 < size <= _LARGEST
            )
        return node.produces()

    readers.follow(value, visit)
    nearest = sorted(met, key=lambda one: one[0])
    return tuple(dict.fromkeys(size for _, size in nearest))[:_MAX_CLUES]
