"""Resolves names to values, with their producers and readers, for everything that changes a model.

The two bodies of an If are separate scopes, which may use one name for values of different types; a
body sees the values of outer scopes. Changes are made in the protobuf itself, so that the rest stays
identical byte by byte.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import cast

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from enginewright_runtime.graph.raw.graphs import (
    bodies,
    copy_of,
    graphs_in,
    has_bodies,
    keep,
    list_defined_names,
    list_given_names,
    outputs_named,
    walk_graphs,
    walk_nodes,
)
from enginewright_runtime.graph.raw.order import order


class Names:
    """The names of values and nodes in a model; creates new ones."""

    def __init__(self, model: ModelProto) -> None:
        self._used = {name for graph in walk_graphs(model) for name in list_defined_names(graph)}
        for graph in walk_graphs(model):
            # value_info may have missing values, whose type a new value of that name would get
            self._used.update(value.name for value in (*graph.output, *graph.value_info))
        for function in model.functions:
            self._used.update(function.input, function.output)
        for node in walk_nodes(model):
            self._used.update((node.name, *node.input, *node.output))

    def fresh(self, preferred: str) -> str:
        """Return an unused name: the preferred one, else with a number appended."""
        name, number = preferred, 1
        while name in self._used:
            number += 1
            name = f"{preferred}_{number}"
        self._used.add(name)
        return name


class Value:
    """The value of a name in a scope."""

    __slots__ = ("name", "producer", "readers", "scope")

    def __init__(self, name: str, scope: "Scope", producer: "Node | None") -> None:
        self.name = name
        self.scope = scope
        self.producer = producer  # inputs and initializers have none
        # including those in bodies; a Scope: the value is an output of that graph
        self.readers: dict[Node | Scope, None] = {}

    def replace_uses(self, other: str, within: "Scope") -> None:
        """Replace this value by another, visible one in all nodes inside a scope."""
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
        self.rank = rank  # sort key of the nodes of a scope
        self.bodies: list[Scope] = []

    @property
    def top(self) -> "Node":
        """Return the main graph's node that contains it; itself if it is in no body."""
        return self.scope.top or self

    def all_bodies(self) -> Iterator["Scope"]:
        """Yield its bodies and those inside them."""
        for body in self.bodies:
            yield body
            yield from body.bodies()

    def inputs(self) -> list[Value]:
        """Return the values of its inputs, without omitted and unknown ones."""
        return [value for name in self.proto.input if (value := self.scope.find(name)) is not None]

    def consumes(self) -> dict[Value, None]:
        """Return the values that it reads, including those that its bodies capture."""
        captured = (value for body in self.bodies for value in body.find_captures())
        return dict.fromkeys((*self.inputs(), *captured))

    def produces(self) -> list[Value]:
        """Return the values of its outputs."""
        return [self.scope.values[name] for name in self.proto.output if name]

    def is_read(self) -> bool:
        """Return whether any of its outputs is read."""
        return any(value.readers for value in self.produces())

    def set_input(self, index: int, name: str) -> None:
        """Set an input to another value, or append one."""
        if index == len(self.proto.input):
            self.proto.input.append("")
        old = self.scope.find(self.proto.input[index])
        self.proto.input[index] = name
        if old is not None and old.name not in self.proto.input:
            old.readers.pop(self, None)
        self.scope.read(name, self)

    def set_output(self, index: int, name: str) -> None:
        """Rename an output to `name`; another node must produce the previous value."""
        self.scope.values[self.proto.output[index]].producer = None
        self.proto.output[index] = name
        self.scope.define(name, self)

    def insert_before(self, *protos: NodeProto) -> None:
        """Insert nodes before it, after those inserted earlier."""
        self._insert(-1, protos)

    def insert_after(self, *protos: NodeProto) -> None:
        """Insert nodes after it and after those inserted earlier."""
        self._insert(1, protos)

    def _insert(self, side: int, protos: Iterable[NodeProto]) -> None:
        for proto in protos:
            self.scope.add(proto, (*self.rank[:-1], side, self.scope.next_rank(), 0))

    def replace(self, protos: Iterable[NodeProto]) -> None:
        """Replace it by these nodes."""
        for body in self.all_bodies():
            body.write()
        copies = [copy_of(proto) for proto in protos]  # the node itself may be among them
        self.remove()
        self.insert_before(*copies)

    def remove(self) -> None:
        """Remove it; its outputs must get another producer or have no readers."""
        self.unlink()
        for value in self.produces():
            value.producer = None
        del self.scope.by_rank[self.rank]

    def unlink(self) -> None:
        """Remove it from the readers of its inputs."""
        for name in self.proto.input:
            if (value := self.scope.find(name)) is not None:
                value.readers.pop(self, None)
        for body in self.bodies:
            for value in [*body.find_captures()]:
                value.readers.pop(body, None)
            for inner in body.nodes:
                inner.unlink()


class Scope:
    """A namespace of values: a graph, a body or, read-only, a function."""

    def __init__(self, graph: GraphProto | FunctionProto, owner: Node | None = None) -> None:
        # a function too: it has nodes, but neither initializers nor types
        self.graph = cast("GraphProto", graph)
        self.owner = owner  # the node whose body it is
        self.values: dict[str, Value] = {}
        self.by_rank: dict[tuple[int, ...], Node] = {}
        self._ranks = len(graph.node)
        for name in list_given_names(graph):
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
        """Return the value that a name refers to here; None if there is none or the name is empty."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None

    def own(self) -> list[Value]:
        """Return the values that it defines."""
        return list(self.values.values())

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
        """Return whether this is the other scope or nested in it."""
        return self is other or (self.outer is not None and self.outer.is_within(other))

    @property
    def outer(self) -> "Scope | None":
        """Return the enclosing scope; None if this is not a body."""
        return self.owner.scope if self.owner is not None else None

    @property
    def top(self) -> Node | None:
        """Return the main graph's node that contains it; None if this is not a body."""
        return self.owner.top if self.owner is not None else None

    def find_captures(self) -> Iterator[Value]:
        """Yield the values of outer scopes that it reads."""
        for name in outputs_named(self.graph):
            value = self.find(name)
            if value is not None and value.scope is not self:
                yield value
        for node in self.nodes:
            yield from (value for value in node.consumes() if value.scope is not self)

    # changes

    def define(self, name: str, producer: Node | None) -> None:
        """Register a value of this scope."""
        if name and name not in self.values:
            self.values[name] = Value(name, self, producer)
        elif name and producer is not None:
            self.values[name].producer = producer

    def read(self, name: str, reader: "Node | Scope") -> None:
        """Register a reader of the value that a name refers to here."""
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
        """Update the graph's list of nodes."""
        place = {id(node.proto): index for index, node in enumerate(self.nodes)}
        if [id(proto) for proto in self.graph.node] != [*place]:
            self.graph.node.sort(key=lambda proto: place.get(id(proto), len(place)))
            del self.graph.node[len(place) :]

    def order(self) -> list[int] | None:
        """Return the nodes' indices in topological order; None if there is a cycle."""
        nodes = self.nodes
        place = {node: index for index, node in enumerate(nodes)}
        needs = [
            [place[value.producer] for value in node.consumes() if value.producer in place]
            for node in nodes
        ]
        ordered = order(needs)
        return ordered if len(ordered) == len(nodes) else None

    def sort(self) -> None:
        """Sort the nodes topologically, in bodies too."""
        for node in self.nodes:
            for body in node.bodies:
                body.sort()
        if (ordered := self.order()) is not None and ordered != sorted(ordered):
            nodes = self.nodes
            self.by_rank = {}
            for place, index in enumerate(ordered):
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
    """Rename values to unused names everywhere, in one traversal of each list of the graphs."""
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
    tensors = (*graph.initializer, *(item.values for item in graph.sparse_initializer))
    for entry in (*graph.input, *graph.output, *graph.value_info, *tensors):
        if entry.name in names:
            entry.name = names[entry.name]


def _annotate(new: Mapping[Value, str]) -> None:
    top = dict.fromkeys(value.scope for value in new)
    for scope in dict.fromkeys(item for one in top for item in (one, *one.bodies())):
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
    """Rename values inside bodies that share a name with one of another scope; return whether any were."""
    names, main = Names(model), Scope(model.graph)
    taken = set(main.values)
    clashing: list[Value] = []
    for body in main.bodies():
        clashing += [value for value in body.own() if value.name in taken]
        taken.update(body.values)
    rename({value: names.fresh(value.name) for value in clashing})
    return bool(clashing)


def separate_names(model: ModelProto) -> ModelProto:
    """Return the model, or a copy in which no two scopes share a name; left unchanged."""
    if not any(map(has_bodies, model.graph.node)) or not _shares(model):
        return model
    copy = copy_of(model)
    rename_apart(copy)
    return copy


def _shares(model: ModelProto) -> bool:
    names = list(chain.from_iterable(map(list_defined_names, graphs_in(model.graph))))
    return len(names) > len(set(names))
