"""Replaces Ifs with a constant condition by the taken branch, and removes what is then unused.

Exporters write an If where the framework tests a size, such as a rank or whether a dimension is 1.
With the served sizes its condition is constant, but OpenVINO and TensorRT would compile both
branches, whose outputs differ in rank. Native code: to be called in a child process.
"""

from collections.abc import Mapping
from typing import Final

from onnx import ModelProto, NodeProto, helper

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.schemas import attribute
from enginewright_runtime.graph.scoped.function_bodies import inline_functions_with
from enginewright_runtime.graph.scoped.inference import Sizes
from enginewright_runtime.graph.scoped.propagation import Array, find_constant_values, infer_fully
from enginewright_runtime.graph.scoped.scopes import Names, Node, Scope, rename, separate_names

_ROUNDS: Final = 50  # each may find conditions that the previous one made constant


def take_constant_branches(model: ModelProto, sizes: Sizes) -> list[str]:
    """Replace, in place, every If whose condition is the same for all requests, and sort the graph; return their labels."""
    inline_functions_with(model, {"If"})
    Scope(model.graph).sort()
    changed = separate_names(model)
    names = Names(changed)
    taken: list[str] = []
    for _ in range(_ROUNDS):
        scope = Scope(changed.graph)
        labels = _take(scope, changed, names, sizes)
        if not labels:
            break
        taken += labels
        scope.remove_unused()
    if taken and changed is not model:
        model.CopyFrom(changed)
    return taken


def _take(main: Scope, model: ModelProto, names: Names, sizes: Sizes) -> list[str]:
    """Replace the Ifs with a constant condition; return their labels; bodies are evaluated without the sizes."""
    opset = graphs.default_opset(model) or 1
    types = infer_fully(model, sizes)
    always = infer_fully(model, {})
    taken: list[str] = []

    def walk(scope: Scope, values: Mapping[str, Array], outer: Mapping[str, Array]) -> None:
        for node in scope.nodes:
            condition = values.get(node.proto.input[0]) if node.proto.op_type == "If" else None
            if condition is not None:
                taken.append(graphs.label(node.proto))
                _inline(node, taken=bool(condition.reshape(-1)[0]), names=names)
                continue
            for body in node.bodies:
                within = find_constant_values(body.graph, always, opset, outer)
                walk(body, within, within)
        scope.write()

    walk(
        main,
        find_constant_values(main.graph, types, opset),
        find_constant_values(main.graph, always, opset),
    )
    return taken


def _inline(node: Node, *, taken: bool, names: Names) -> None:
    """Replace an If by a branch's nodes, which then produce its outputs; moves the weights too."""
    entry = attribute(node.proto, "then_branch" if taken else "else_branch")
    branch = next(body for body in node.bodies if entry is not None and body.graph is entry.g)
    outputs: dict[str, str] = {}
    copies: list[NodeProto] = []
    for output, value in zip(node.proto.output, branch.graph.output, strict=True):
        if not output:
            continue
        if value.name in branch.values and value.name not in outputs:
            outputs[value.name] = output
        else:  # a value of an outer scope, or one that is output twice
            source = outputs.get(value.name, value.name)
            identity = helper.make_node("Identity", [source], [output])
            identity.name = names.fresh(f"{node.proto.name or output}/Identity")
            copies.append(identity)
    prefix = node.proto.name or node.proto.output[0]
    values = sorted(branch.own(), key=lambda item: item.name)
    rename(
        {item: outputs.get(item.name) or names.fresh(f"{prefix}/{item.name}") for item in values}
    )
    for tensor in branch.graph.initializer:
        node.scope.add_weight(tensor)
    for sparse in branch.graph.sparse_initializer:
        node.scope.add_sparse_weight(sparse)
    node.replace([*branch.graph.node, *copies])
