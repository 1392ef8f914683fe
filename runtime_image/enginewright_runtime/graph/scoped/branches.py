"""Puts the branch that is always taken in the place of an If, and removes what is then unused.

Exporters leave an If where the framework asked for a size: the rank of a tensor, whether a
dimension is 1. Given the sizes that are served the answer is known, while OpenVINO and TensorRT have
to make something of both branches, whose outputs differ in rank. Native code: for child processes.
"""

from collections.abc import Mapping
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, helper

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.graphs import bodies
from enginewright_runtime.graph.raw.schemas import attribute
from enginewright_runtime.graph.scoped.inference import Sizes
from enginewright_runtime.graph.scoped.order import sort, uses
from enginewright_runtime.graph.scoped.propagation import Array, infer_fully, known_values
from enginewright_runtime.graph.scoped.scopes import Names, apart, rename

_ROUNDS: Final = 50  # each finds what the one before made known


def take_constant_branches(model: ModelProto, sizes: Sizes) -> list[str]:
    """Replace, in place, every If whose condition is the same for all requests.

    Args:
        model: whose graph is sorted on the way.
        sizes: dimensions of the inputs that are the same for all requests; None: others.

    Returns:
        The labels of the Ifs.
    """
    opset = graphs.default_opset(model) or 1
    sort(model.graph)
    changed = apart(model)
    names = Names(changed)
    taken: list[str] = []
    for _ in range(_ROUNDS):
        found = _take(changed.graph, changed, opset, names, sizes)
        if not found:
            break
        taken += found
        remove_unused(changed.graph)
    if taken and changed is not model:
        model.CopyFrom(changed)
    return taken


def _take(
    graph: GraphProto, model: ModelProto, opset: int, names: Names, sizes: Sizes
) -> list[str]:
    """Take the constant branches that show now.

    Bodies are judged without the sizes: the branch that is never taken with these sizes may make no
    sense with them, and a model in which it is worked out does not load.
    """
    types = infer_fully(model, sizes)
    always = infer_fully(model, {})
    taken: list[str] = []

    def walk(graph: GraphProto, known: Mapping[str, Array], around: Mapping[str, Array]) -> None:
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.op_type == "If" and node.input[0] in known:
                value = bool(known[node.input[0]].reshape(-1)[0])
                branch = attribute(node, "then_branch" if value else "else_branch")
                if branch is not None:
                    nodes += _inlined(graph, node, branch.g, names)
                    taken.append(graphs.label(node))
                    continue
            for body in bodies(node):
                within = known_values(body, always, opset, around)
                walk(body, within, within)
            nodes.append(node)
        graphs.replace_nodes(graph, nodes)

    walk(graph, known_values(graph, types, opset), known_values(graph, always, opset))
    return taken


def _inlined(
    graph: GraphProto, node: NodeProto, branch: GraphProto, names: Names
) -> list[NodeProto]:
    """Return the nodes of a branch, which then make the outputs of the If; weights move to `graph`."""
    made = {name for each in branch.node for name in each.output if name}
    made |= {tensor.name for tensor in branch.initializer}
    renamed: dict[str, str] = {}
    copies: list[NodeProto] = []
    for output, value in zip(node.output, branch.output, strict=True):
        if not output:
            continue
        if value.name in made and value.name not in renamed:
            renamed[value.name] = output
        else:  # a value from outside, or one that is two outputs
            source = renamed.get(value.name, value.name)
            identity = helper.make_node("Identity", [source], [output])
            identity.name = names.fresh(f"{node.name or output}/Identity")
            copies.append(identity)
    for name in sorted(made - renamed.keys()):
        renamed[name] = names.fresh(f"{node.name or node.output[0]}/{name}")
    for tensor in branch.initializer:
        tensor.name = renamed[tensor.name]
        graph.initializer.append(tensor)
    rename(branch.node, renamed)
    return [*branch.node, *copies]


def remove_unused(graph: GraphProto) -> None:
    """Remove nodes and weights that no output needs, in place; the graph's inputs stay."""
    needed = {value.name for value in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if needed & {name for name in node.output if name}:
            needed |= uses(node)
            kept.append(node)
    graphs.replace_nodes(graph, reversed(kept))
    needed |= {value.name for value in graph.input}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in needed:
            del graph.initializer[index]
    made = {name for node in graph.node for name in node.output}
    copies = [graphs.copy_of(each) for each in graph.value_info if each.name in made]
    del graph.value_info[:]
    graph.value_info.extend(copies)
