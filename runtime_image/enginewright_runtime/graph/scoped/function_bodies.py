"""Inlines the functions that a model defines, where a conversion has something to change in one.

Exporters put layers into functions. Inside, no value has a type, and a body serves every call, so
nothing there can be changed as in a graph.
"""

from collections.abc import Collection

from onnx import ModelProto, inliner

from enginewright_runtime.graph.raw import graphs


def inline_functions_with(model: ModelProto, operators: Collection[str]) -> None:
    """Inline all functions of the model, in place, if one of them has a node of these operators."""
    if any(
        node.op_type in operators
        for function in model.functions
        for node in graphs.nodes_in(function.node)
    ):
        inline_functions(model)


def inline_functions(model: ModelProto) -> int:
    """Inline the functions of the model, in place; return how many there were."""
    count = len(model.functions)
    if count:
        model.CopyFrom(inliner.inline_local_functions(model))
    return count - len(model.functions)
