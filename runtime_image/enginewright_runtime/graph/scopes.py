"""Gives every value of a model a name of its own, so that what is known of values can be kept by name.

The bodies of an If are scopes beside each other, and each may use a name that the other uses for a
value of another type. Whatever keeps types, constants or readers of all bodies in one map would take one
value for the other. Where they share no name, such a map is keyed by scope.
"""

from collections.abc import Iterator, Mapping

from onnx import GraphProto, ModelProto

from enginewright_runtime.graph.inference import bodies
from enginewright_runtime.graph.splicing import Names


def rename_apart(model: ModelProto) -> bool:
    """Rename values inside bodies that share a name with one of another scope, in place.

    The interface, all names of the main graph and those of nodes stay; functions have values of their
    own, which no map holds.

    Returns:
        Whether there were any.
    """
    names = Names(model)
    taken = set(_defined(model.graph))
    renamed = [
        _rename(body, {}, taken, names) for node in model.graph.node for body in bodies(node)
    ]
    return any(renamed)


def apart(model: ModelProto) -> ModelProto:
    """Return the model, or a copy in which no two scopes share a name; left unchanged."""
    if not any(True for node in model.graph.node for _ in bodies(node)) or not _shares(model):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    rename_apart(copy)
    return copy


def _shares(model: ModelProto) -> bool:
    seen: set[str] = set()
    for graph in _graphs(model.graph):
        own = set(_defined(graph))
        if own & seen:
            return True
        seen |= own
    return False


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from _graphs(body)


def _defined(graph: GraphProto) -> list[str]:
    """Return the names of the values that a graph itself makes or is given."""
    found = [value.name for value in graph.input]
    found += [tensor.name for tensor in graph.initializer]
    found += [sparse.values.name for sparse in graph.sparse_initializer]
    found += [name for node in graph.node for name in node.output]
    return [name for name in dict.fromkeys(found) if name]


def _rename(graph: GraphProto, outer: Mapping[str, str], taken: set[str], names: Names) -> bool:
    """Rename in a body; `outer`: the new names of values around it that it may read."""
    own = _defined(graph)
    new = {name: other for name, other in outer.items() if name not in own}
    clashing = [name for name in own if name in taken]
    new |= {name: names.fresh(name) for name in clashing}
    taken.update(own)
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = new.get(value.name, value.name)
    for tensor in (*graph.initializer, *(each.values for each in graph.sparse_initializer)):
        tensor.name = new.get(tensor.name, tensor.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = new.get(annotation.tensor_name, annotation.tensor_name)
        for entry in annotation.quant_parameter_tensor_names:
            entry.value = new.get(entry.value, entry.value)
    renamed = bool(clashing)
    for node in graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
        for body in bodies(node):
            renamed |= _rename(body, new, taken, names)
    return renamed
