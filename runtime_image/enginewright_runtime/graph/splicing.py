"""Puts the nodes of a small model in the place of one node of a large one.

ONNX's inliner and version converter take whole models: weights and all, through a C++ graph that
drops functions and sparse weights (onnx 1.23) and leaves new nodes without names. So each node that has to
change goes through them alone, and everything else stays as it is, byte by byte.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

import onnx
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

from enginewright_runtime.graph.inference import bodies

# where in onnx's C++ sources an assertion failed, and how it reads
_NATIVE_PREFIX: Final = re.compile(r"^/\S+:\d+: \w+: Assertion `.*?` failed: ")
_IR_VERSION: Final = 10  # of the small models, which nobody keeps


class ReplacementError(ValueError):
    """The tool gave nothing that could stand for the node; the text is for people."""


class Names:
    """Names of values and nodes that a model has, and new ones."""

    def __init__(self, model: ModelProto) -> None:
        self._used: set[str] = set()
        _note_graph(model.graph, self._used)
        function: FunctionProto
        for function in model.functions:
            self._used.update(function.input, function.output)
            _note_nodes(function.node, self._used)

    def fresh(self, wanted: str) -> str:
        """Return a name that nothing has yet: the wanted one, or one with a number."""
        name, number = wanted, 1
        while name in self._used:
            number += 1
            name = f"{wanted}_{number}"
        self._used.add(name)
        return name


def _note_graph(graph: GraphProto, used: set[str]) -> None:
    used.update(value.name for value in (*graph.input, *graph.output))
    used.update(tensor.name for tensor in graph.initializer)
    used.update(sparse.values.name for sparse in graph.sparse_initializer)
    _note_nodes(graph.node, used)


def _note_nodes(nodes: object, used: set[str]) -> None:
    node: NodeProto
    for node in nodes:  # type: ignore[attr-defined]  # protobuf's containers share no public base
        used.add(node.name)
        used.update(node.input)
        used.update(node.output)
        for body in bodies(node):
            _note_graph(body, used)


def alone(
    node: NodeProto,
    imports: Mapping[str, int],
    types: Mapping[str, TypeProto],
    constants: Mapping[str, TensorProto],
) -> ModelProto:
    """Return a model of this one node; what it reads are inputs, or initializers where constant."""
    model = ModelProto(ir_version=_IR_VERSION)
    model.opset_import.extend(
        OperatorSetIdProto(domain=domain, version=version) for domain, version in imports.items()
    )
    graph = model.graph
    graph.name = "alone"
    graph.node.append(node)
    for name in dict.fromkeys(name for name in node.input if name):
        if name in constants:
            tensor = TensorProto()
            tensor.CopyFrom(constants[name])
            tensor.name = name
            graph.initializer.append(tensor)
        else:
            graph.input.append(ValueInfoProto(name=name, type=types.get(name)))
    graph.output.extend(
        ValueInfoProto(name=name, type=types.get(name)) for name in node.output if name
    )
    return model


def replacement(
    node: NodeProto, model: ModelProto, change: Callable[[ModelProto], ModelProto], names: Names
) -> list[NodeProto]:
    """Return the nodes that `change` makes of a node that is `alone` in `model`.

    Raises:
        ReplacementError: in the tool's words.
    """
    try:
        changed = change(model).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError) as error:
        words = _NATIVE_PREFIX.sub("", " ".join(str(error).split()))
        raise ReplacementError(words) from error
    made = {name for each in changed.node for name in each.output}
    if missing := [name for name in node.output if name and name not in made]:
        raise ReplacementError(f"nothing gives its output {missing[0]!r} then")
    known = {tensor.name for tensor in model.graph.initializer}
    nodes = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in changed.initializer
        if tensor.name not in known
    ]
    nodes += changed.node
    prefix = node.name or next(name for name in node.output if name)
    kept = {*node.input, *node.output, ""}
    renamed = {name: name for name in kept}
    for each in nodes:
        for name in each.output:
            if name not in renamed:
                renamed[name] = names.fresh(f"{prefix}/{name}")
        _rename(each, renamed, names, prefix)
    main = next((each for each in nodes if each.name == node.name and node.name), None)
    for each in nodes:
        if each is not main:
            each.name = names.fresh(f"{prefix}/{each.op_type}")
    return nodes


def _rename(node: NodeProto, renamed: dict[str, str], names: Names, prefix: str) -> None:
    node.input[:] = [renamed.get(name, name) for name in node.input]
    node.output[:] = [renamed.get(name, name) for name in node.output]
    for body in bodies(node):
        inner = dict(renamed)
        for name in _own(body):
            inner[name] = names.fresh(f"{prefix}/{name}")
        for value in (*body.input, *body.output, *body.value_info):
            value.name = inner.get(value.name, value.name)
        for tensor in (*body.initializer, *(each.values for each in body.sparse_initializer)):
            tensor.name = inner[tensor.name]
        for each in body.node:
            _rename(each, inner, names, prefix)
            each.name = names.fresh(f"{prefix}/{each.op_type}")


def _own(graph: GraphProto) -> list[str]:
    found = [value.name for value in graph.input]
    found += [tensor.name for tensor in graph.initializer]
    found += [sparse.values.name for sparse in graph.sparse_initializer]
    return found + [name for node in graph.node for name in node.output if name]


def rename_all(node: NodeProto, renamed: Mapping[str, str]) -> None:
    """Rename values that a node and its bodies read or make, in place."""
    node.input[:] = [renamed.get(name, name) for name in node.input]
    node.output[:] = [renamed.get(name, name) for name in node.output]
    for body in bodies(node):
        hidden = set(_own(body))
        inner = {name: new for name, new in renamed.items() if name not in hidden}
        for value in body.output:
            value.name = inner.get(value.name, value.name)
        for each in body.node:
            rename_all(each, inner)
