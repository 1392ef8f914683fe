"""Which value a name stands for: what changes a model works on names that stand for one value each.

The bodies of an If are scopes beside each other, and each may use a name that the other uses for a
value of another type. Whatever keeps types, constants or readers of all bodies in one map would take one
value for the other. Where they share no name, such a map is keyed by scope.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from onnx import GraphProto, ModelProto, NodeProto

from enginewright_runtime.graph.raw.graphs import (
    bodies,
    copy_of,
    defined,
    graphs_in,
    has_bodies,
    walk_graphs,
    walk_nodes,
)

Renaming = Mapping[str, str]  # old names of values to new ones


class Names:
    """Names of values and nodes that a model has, and new ones."""

    def __init__(self, model: ModelProto) -> None:
        self._used = {name for graph in walk_graphs(model) for name in defined(graph)}
        self._used.update(value.name for graph in walk_graphs(model) for value in graph.output)
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


def rename(
    nodes: Iterable[NodeProto],
    new: Renaming,
    inside: Callable[[Sequence[str]], Renaming] = lambda _: {},
) -> None:
    """Rename the values that nodes read and make, in place; their bodies read the renamed ones.

    Args:
        nodes: of one scope.
        new: names of that scope and of those around it.
        inside: new names for what a body makes itself, of which it is given the names; one that it
            leaves out stays, and hides the value outside that has it.
    """
    for node in nodes:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
        for body in bodies(node):
            own = defined(body)
            seen = {name: other for name, other in new.items() if name not in own}
            _rename_graph(body, {**seen, **inside(own)}, inside)


def _rename_graph(
    graph: GraphProto, new: Renaming, inside: Callable[[Sequence[str]], Renaming]
) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = new.get(value.name, value.name)
    for tensor in (*graph.initializer, *(each.values for each in graph.sparse_initializer)):
        tensor.name = new.get(tensor.name, tensor.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = new.get(annotation.tensor_name, annotation.tensor_name)
        for entry in annotation.quant_parameter_tensor_names:
            entry.value = new.get(entry.value, entry.value)
    rename(graph.node, new, inside)


def rename_apart(model: ModelProto) -> bool:
    """Rename values inside bodies that share a name with one of another scope, in place.

    The interface, all names of the main graph and those of nodes stay; functions have values of their
    own, which no map holds.

    Returns:
        Whether there were any.
    """
    names = Names(model)
    taken = set(defined(model.graph))
    renamed = False

    def clashing(own: Sequence[str]) -> Renaming:
        nonlocal renamed
        new = {name: names.fresh(name) for name in own if name in taken}
        taken.update(own)
        renamed = renamed or bool(new)
        return new

    rename(model.graph.node, {}, clashing)
    return renamed


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
