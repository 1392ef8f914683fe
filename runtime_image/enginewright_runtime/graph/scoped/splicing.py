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
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.scopes import Names, Scope, Value, rename

# where in onnx's C++ sources an assertion failed, and how it reads
_NATIVE_PREFIX: Final = re.compile(r"^/\S+:\d+: \w+: Assertion `.*?` failed: ")
_IR_VERSION: Final = 10  # of the small models, which nobody keeps


class ReplacementError(ValueError):
    """The tool gave nothing that could stand for the node; the text is for people."""


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
            tensor = graphs.copy_of(constants[name])
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
        ReplacementError: with the tool's message.
    """
    try:
        changed = change(model).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError) as error:
        message = _NATIVE_PREFIX.sub("", " ".join(str(error).split()))
        raise ReplacementError(message) from error
    made = {name for each in changed.node for name in each.output}
    if missing := [name for name in node.output if name and name not in made]:
        raise ReplacementError(f"nothing gives its output {missing[0]!r} then")
    known = {tensor.name for tensor in model.graph.initializer}
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in changed.initializer
        if tensor.name not in known
    ]
    graphs.replace_nodes(changed, [*constants, *changed.node])
    prefix = node.name or next(name for name in node.output if name)
    scope = Scope(changed)
    inside: list[Value] = []
    for each in scope.nodes:
        inside += [
            value for value in each.produces() if value.name not in {*node.input, *node.output}
        ]
        inside += [value for body in each.all_bodies() for value in body.own()]
    rename({value: names.fresh(f"{prefix}/{value.name}") for value in inside})
    main = next((each for each in changed.node if each.name == node.name and node.name), None)
    inner = [each for body in scope.bodies() for each in body.graph.node]
    for each in (*inner, *changed.node):
        if each is not main:
            each.name = names.fresh(f"{prefix}/{each.op_type}")
    return [*changed.node]
