"""Which value a name stands for, what makes it and what reads it: as every change of a model needs it.

The bodies of an If are scopes beside each other, and each may use a name that the other uses for a
value of another type; a body sees the values around it. Changes are made in the protobuf itself, so what
is not changed keeps its bytes.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import cast

from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
)

from enginewright_runtime.graph.raw.graphs import (
    bodies,
    copy_of,
    defined,
    given,
    graphs_in,
    has_bodies,
    keep,
    outputs_named,
    walk_graphs,
    walk_nodes,
)
from enginewright_runtime.graph.raw.order import order


class Names:
    """Names of values and nodes that a model has, and new ones."""

    def __init__(self, model: ModelProto) -> None:
        self._used = {name for graph in walk_graphs(model) for name in defined(graph)}
        for graph in walk_graphs(model):
            # value_info may speak of what is not there: a new value would have the type of that
            self._used.update(value.name for value in (*graph.output, *graph.value_info))
        for function in model.functions:
            self._used.update(function.input, function.output)
        for node in walk_nodes(model):
            self._used.update((node.name, *node.input, *node.output))

    def fresh(self, wanted: str) -> str:
        """Return a name that nothing has yet: the wanted one, or one with a number."""
        name, number = wanted, 1
        while name in self._used:
            number += 1
            name = f"{wanted}_{number}"
        self._used.add(name)
        return name


class Value:
    """What one name stands for in one scope."""

    __slots__ = ("name", "producer", "readers", "scope")

    def __init__(self, name: str, scope: "Scope", producer: "Node | None") -> None:
        self.name = name
        self.scope = scope
        self.producer = producer  # None: it is an input or a weight
        # each once, those in bodies too; a scope: it is an output of that graph
        self.readers: dict[Node | Scope, None] = {}

    def replace_uses(self, other: str, within: "Scope") -> None:
        """Have what reads it inside a body read another value, which that sees."""
        for reader in [*self.readers]:
            if isinstance(reader, Node) and reader.scope.is_within(within):
                for index, name in enumerate(reader.proto.input):
                    if name == self.name:
                        reader.set_input(index, other)


class Node:
    """A node of a scope."""

    __slots__ = ("bodies", "proto", "rank", "scope")

    def __init__(self, proto: NodeProto, scope: "Scope", rank: tuple[int, ...]) -> None:
        self.proto = proto
        self.scope = scope
        self.rank = rank  # nodes of a scope are in the order of these
        self.bodies: list[Scope] = []

    @property
    def top(self) -> "Node":
        """Return the node that it is inside of, or itself where that is no body."""
        return self.scope.top or self

    def all_bodies(self) -> Iterator["Scope"]:
        """Yield its bodies and those inside them."""
        for body in self.bodies:
            yield body
            yield from body.bodies()

    def inputs(self) -> list[Value]:
        """Return the values that are its inputs, without those that are left out or unknown."""
        found = (self.scope.find(name) for name in self.proto.input)
        return [value for value in found if value is not None]

    def consumes(self) -> dict[Value, None]:
        """Return the values that it reads, those that its bodies take from outside too."""
        captured = (value for body in self.bodies for value in body.captured())
        return dict.fromkeys((*self.inputs(), *captured))

    def produces(self) -> list[Value]:
        """Return the values that it makes."""
        return [self.scope.values[name] for name in self.proto.output if name]

    def is_read(self) -> bool:
        """Tell whether anything reads what it makes."""
        return any(value.readers for value in self.produces())

    def set_input(self, index: int, name: str) -> None:
        """Have it read another value, or one more behind the others."""
        if index == len(self.proto.input):
            self.proto.input.append("")
        old = self.scope.find(self.proto.input[index])
        self.proto.input[index] = name
        if old is not None and old.name not in self.proto.input:
            old.readers.pop(self, None)
        self.scope.read(name, self)

    def set_output(self, index: int, name: str) -> None:
        """Have it make a value `name`; what it made before has to be made by another."""
        self.scope.values[self.proto.output[index]].producer = None
        self.proto.output[index] = name
        self.scope.define(name, self)

    def insert_before(self, *protos: NodeProto) -> None:
        """Put nodes in front of it, behind others that were put there."""
        self._insert(-1, protos)

    def insert_after(self, *protos: NodeProto) -> None:
        """Put nodes behind it and behind others that were put there."""
        self._insert(1, protos)

    def _insert(self, side: int, protos: Iterable[NodeProto]) -> None:
        for proto in protos:
            self.scope.add(proto, (*self.rank[:-1], side, self.scope.next_rank(), 0))

    def replace(self, protos: Iterable[NodeProto]) -> None:
        """Put nodes in its place."""
        for body in self.all_bodies():
            body.write()
        copies = [copy_of(proto) for proto in protos]  # it may be among them
        self.remove()
        self.insert_before(*copies)

    def remove(self) -> None:
        """Take it out; what it makes has to be made by another, or be read by none."""
        self.unlink()
        for value in self.produces():
            value.producer = None
        del self.scope.by_rank[self.rank]

    def unlink(self) -> None:
        """Be no reader of anything."""
        for name in self.proto.input:
            if (value := self.scope.find(name)) is not None:
                value.readers.pop(self, None)
        for body in self.bodies:
            for value in [*body.captured()]:
                value.readers.pop(body, None)
            for inner in body.nodes:
                inner.unlink()


class Scope:
    """A graph, a body or, to be read alone, a function: what names live in."""

    def __init__(self, graph: GraphProto | FunctionProto, owner: Node | None = None) -> None:
        # of a function too, which has nodes alike, and neither weights nor types
        self.graph = cast("GraphProto", graph)
        self.owner = owner  # the node whose body it is
        self.values: dict[str, Value] = {}
        self.by_rank: dict[tuple[int, ...], Node] = {}
        self._ranks = len(graph.node)
        for name in given(graph):
            self.define(name, None)
        nodes = [Node(proto, self, (index, 0)) for index, proto in enumerate(graph.node)]
        for node in nodes:
            self._define_outputs(node)
        for node in nodes:
            self._link(node)
        for name in outputs_named(graph):
            self.read(name, self)

    @property
    def nodes(self) -> list[Node]:
        """Return the nodes in their order."""
        return [self.by_rank[rank] for rank in sorted(self.by_rank)]

    def find(self, name: str) -> Value | None:
        """Return what a name stands for here; None for nothing, and for no name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None

    def own(self) -> list[Value]:
        """Return the values that it makes or is given."""
        return [*self.values.values()]

    def bodies(self) -> Iterator["Scope"]:
        """Yield the bodies of its nodes, each before those inside it."""
        for node in self.nodes:
            yield from node.all_bodies()

    def all_nodes(self) -> Iterator[Node]:
        """Yield its nodes, each before those of its bodies."""
        for node in self.nodes:
            yield node
            for body in node.bodies:
                yield from body.all_nodes()

    def is_within(self, other: "Scope") -> bool:
        """Tell whether this is the other scope or one inside it."""
        return self is other or (self.outer is not None and self.outer.is_within(other))

    @property
    def outer(self) -> "Scope | None":
        """Return the scope around it; None for a graph that is no body."""
        return self.owner.scope if self.owner is not None else None

    @property
    def top(self) -> Node | None:
        """Return the node that it is inside of; None for a graph that is no body."""
        return self.owner.top if self.owner is not None else None

    def captured(self) -> Iterator[Value]:
        """Yield the values around it that it reads."""
        for name in outputs_named(self.graph):
            value = self.find(name)
            if value is not None and value.scope is not self:
                yield value
        for node in self.nodes:
            yield from (value for value in node.consumes() if value.scope is not self)

    # changes

    def define(self, name: str, producer: Node | None) -> None:
        """Know a value of the scope's own."""
        if name and name not in self.values:
            self.values[name] = Value(name, self, producer)
        elif name and producer is not None:
            self.values[name].producer = producer

    def read(self, name: str, reader: "Node | Scope") -> None:
        """Know a reader of what a name stands for here."""
        if (value := self.find(name)) is not None:
            value.readers[reader] = None

    def add(self, proto: NodeProto, rank: tuple[int, ...]) -> None:
        """Add a copy of a node at its rank."""
        self.graph.node.append(proto)
        node = Node(self.graph.node[-1], self, rank)
        self._define_outputs(node)
        self._link(node)

    def add_weight(self, tensor: TensorProto) -> None:
        """Add an initializer."""
        self.graph.initializer.append(tensor)
        self.define(tensor.name, None)

    def add_sparse_weight(self, tensor: SparseTensorProto) -> None:
        """Add a sparse initializer, which has the name of its values."""
        self.graph.sparse_initializer.append(tensor)
        self.define(tensor.values.name, None)

    def next_rank(self) -> int:
        """Return a number above all ranks."""
        self._ranks += 1
        return self._ranks

    def _define_outputs(self, node: Node) -> None:
        self.by_rank[node.rank] = node
        for name in node.proto.output:
            self.define(name, node)

    def _link(self, node: Node) -> None:
        for name in node.proto.input:
            self.read(name, node)
        node.bodies = [Scope(body, node) for body in bodies(node.proto)]

    def write(self) -> None:
        """Bring the graph's own list of nodes up to date."""
        place = {id(node.proto): index for index, node in enumerate(self.nodes)}
        if [id(proto) for proto in self.graph.node] != [*place]:
            self.graph.node.sort(key=lambda proto: place.get(id(proto), len(place)))
            del self.graph.node[len(place) :]

    def order(self) -> list[int] | None:
        """Return the nodes' places so that each comes after what it reads; None for a circle."""
        nodes = self.nodes
        place = {node: index for index, node in enumerate(nodes)}
        found = order(
            [
                [place[value.producer] for value in node.consumes() if value.producer in place]
                for node in nodes
            ]
        )
        return found if len(found) == len(nodes) else None

    def sort(self) -> None:
        """Put every node after those that it reads, in bodies too."""
        for node in self.nodes:
            for body in node.bodies:
                body.sort()
        if (found := self.order()) is not None and found != sorted(found):
            nodes = self.nodes
            self.by_rank = {}
            for place, index in enumerate(found):
                nodes[index].rank = (place, 0)
                self.by_rank[place, 0] = nodes[index]
        self.write()

    def remove_unused(self) -> None:
        """Remove nodes and weights that no output needs; the graph's inputs stay."""
        for node in reversed(self.nodes):
            if not node.is_read():
                node.remove()
        self.write()
        graph = self.graph
        needed = {value.name for value in (*graph.input, *graph.output)}
        needed |= {value.name for value in self.own() if value.readers}
        made = {name for node in graph.node for name in node.output}
        keep(graph.initializer, lambda tensor: tensor.name in needed)
        keep(graph.value_info, lambda value: value.name in made)


def rename(new: Mapping[Value, str]) -> None:
    """Give values names that nothing else has, wherever they are made, read or spoken of.

    All at once: graphs list what they say of values, and each list is read once.
    """
    inputs: defaultdict[Node, dict[str, str]] = defaultdict(dict)
    outputs: defaultdict[Node, dict[str, str]] = defaultdict(dict)
    entries: defaultdict[Scope, dict[str, str]] = defaultdict(dict)
    for value, name in new.items():
        entries[value.scope][value.name] = name
        if value.producer is not None:
            outputs[value.producer][value.name] = name
        for reader in value.readers:
            if isinstance(reader, Node):
                inputs[reader][value.name] = name
            else:
                entries[reader][value.name] = name
    _annotate(new)
    for value in new:
        del value.scope.values[value.name]
    for value, name in new.items():
        value.name = name
        value.scope.values[name] = value
    for node, names in inputs.items():
        node.proto.input[:] = [names.get(name, name) for name in node.proto.input]
    for node, names in outputs.items():
        node.proto.output[:] = [names.get(name, name) for name in node.proto.output]
    for scope, names in entries.items():
        _rename_entries(scope.graph, names)


def _rename_entries(graph: GraphProto, names: Mapping[str, str]) -> None:
    tensors = (*graph.initializer, *(each.values for each in graph.sparse_initializer))
    for entry in (*graph.input, *graph.output, *graph.value_info, *tensors):
        if entry.name in names:
            entry.name = names[entry.name]


def _annotate(new: Mapping[Value, str]) -> None:
    """Rename values in what graphs say of quantization, bodies of values around them too."""
    top = dict.fromkeys(value.scope for value in new)
    for scope in dict.fromkeys(each for one in top for each in (one, *one.bodies())):
        for annotation in scope.graph.quantization_annotation:
            if (name := _new_name(scope, annotation.tensor_name, new)) is not None:
                annotation.tensor_name = name
            for entry in annotation.quant_parameter_tensor_names:
                if (name := _new_name(scope, entry.value, new)) is not None:
                    entry.value = name


def _new_name(scope: Scope, name: str, new: Mapping[Value, str]) -> str | None:
    value = scope.find(name)
    return new.get(value) if value is not None else None


def rename_apart(model: ModelProto) -> bool:
    """Rename values inside bodies that share a name with one of another scope, in place.

    The interface, all names of the main graph and those of nodes stay; functions have values of their
    own, which no map holds.

    Returns:
        Whether there were any.
    """
    names, main = Names(model), Scope(model.graph)
    taken = set(main.values)
    clashing: list[Value] = []
    for body in main.bodies():
        clashing += [value for value in body.own() if value.name in taken]
        taken.update(body.values)
    rename({value: names.fresh(value.name) for value in clashing})
    return bool(clashing)


def apart(model: ModelProto) -> ModelProto:
    """Return the model, or a copy in which no two scopes share a name; left unchanged."""
    if not any(map(has_bodies, model.graph.node)) or not _shares(model):
        return model
    copy = copy_of(model)
    rename_apart(copy)
    return copy


def _shares(model: ModelProto) -> bool:
    names = list(chain.from_iterable(map(defined, graphs_in(model.graph))))
    return len(names) > len(set(names))
