"""Replaces one node of a model by the nodes of a small model.

ONNX's inliner and version converter process complete models with weights, through a C++ graph that
drops functions and sparse weights (onnx 1.23) and leaves new nodes unnamed. So each node that must
change passes through them in a model of its own, and the rest stays identical byte by byte.
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

# the location and text of a failed assertion in onnx's C++ code
_NATIVE_PREFIX: Final = re.compile(r"^/\S+:\d+: \w+: Assertion `.*?` failed: ")
_IR_VERSION: Final = 10  # of the small models, which are temporary


class ReplacementError(ValueError):
    """The tool returned no replacement for the node; the message is for users."""


def alone(
    node: NodeProto,
    imports: Mapping[str, int],
    types: Mapping[str, TypeProto],
    constants: Mapping[str, TensorProto],
) -> ModelProto:
    """Return a model of only this node; its inputs are model inputs, or initializers if constant."""
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
    """Return the nodes by which `change` replaces a node that is `alone` in `model`; raises ReplacementError."""
    try:
        changed = change(model).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError) as error:
        message = _NATIVE_PREFIX.sub("", " ".join(str(error).split()))
        raise ReplacementError(message) from error
    produced = {name for item in changed.node for name in item.output}
    if missing := [name for name in node.output if name and name not in produced]:
        raise ReplacementError(f"nothing then produces its output {missing[0]!r} then")
    given = {tensor.name for tensor in model.graph.initializer}
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in changed.initializer
        if tensor.name not in given
    ]
    graphs.replace_nodes(changed, [*constants, *changed.node])
    prefix = node.name or next(name for name in node.output if name)
    scope = Scope(changed)
    inside: list[Value] = []
    for item in scope.nodes:
        inside += [
            value for value in item.produces() if value.name not in {*node.input, *node.output}
        ]
        inside += [value for body in item.all_bodies() for value in body.own()]
    rename({value: names.fresh(f"{prefix}/{value.name}") for value in inside})
    main = next((item for item in changed.node if item.name == node.name and node.name), None)
    inner = [item for body in scope.bodies() for item in body.graph.node]
    for item in (*inner, *changed.node):
        if item is not main:
            item.name = names.fresh(f"{prefix}/{item.op_type}")
    return [*changed.node]
