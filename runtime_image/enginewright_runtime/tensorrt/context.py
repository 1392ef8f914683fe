"""Wraps engines as an ONNX model of EPContext nodes, which ONNX Runtime loads without compiling.

The attributes are those that ONNX Runtime's TensorRT and TensorRT-RTX providers read and write
(onnx_ctx_model_helper.cc; schema of the operator: contrib_defs.cc).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx
from enginewright_contract.manifest import MODEL_NAME
from onnx import ModelProto, NodeProto, helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from enginewright_runtime.core.labels import CONTEXT_OP
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import constant_tensor
from enginewright_runtime.graph.raw.storage import LARGEST_INSIDE
from enginewright_runtime.graph.scoped.parts import CONSTANT, TensorType
from enginewright_runtime.graph.scoped.scopes import Node, Scope
from enginewright_runtime.tensorrt.flavor import Flavor

CONTEXT_DOMAIN: Final = "com.microsoft"
WEIGHTS: Final = "weights.bin"  # of the remaining nodes, where they are too large for one protobuf
_CONTEXT_VERSION: Final = 1


@dataclass(frozen=True)
class Context:
    """One engine, and the part of the model that it replaces."""

    name: str  # of its node
    file: str  # beside the model
    nodes: tuple[int, ...]  # indices in the main graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def without_passed(model: ModelProto) -> ModelProto:
    """Return the model, or a copy without the outputs that no node computes: inputs and constants.

    An engine has no name for them, and the model around it has them without an engine.
    """
    passed = _find_passed(model)
    if not passed:
        return model
    copy = graphs.copy_of(model)
    graphs.keep(copy.graph.output, lambda value: value.name not in passed)
    return copy


def _find_passed(model: ModelProto) -> frozenset[str]:
    computed = {
        name for node in model.graph.node if node.op_type != CONSTANT for name in node.output
    }
    return frozenset(value.name for value in model.graph.output) - computed


def whole(model: ModelProto, name: str, file: str) -> Context:
    """Return the context of an engine of the complete model."""
    passed = _find_passed(model)
    return Context(
        name,
        file,
        tuple(range(len(model.graph.node))),
        tuple(spec.name for spec in graphs.inputs_of(model)),
        tuple(value.name for value in model.graph.output if value.name not in passed),
    )


def node(context: Context, flavor: Flavor, version: str, compute_capability: str) -> NodeProto:
    """Return the EPContext node of an engine."""
    return helper.make_node(
        CONTEXT_OP,
        context.inputs,
        context.outputs,
        name=context.name,
        domain=CONTEXT_DOMAIN,
        main_context=1,
        embed_mode=0,  # the engine is a file beside the model
        ep_cache_context=context.file,
        ep_sdk_version=version,
        hardware_architecture=compute_capability.replace(".", ""),
        onnx_model_filename=MODEL_NAME,
        partition_name=context.name,
        source=flavor.provider,
    )


def compose(
    model: ModelProto,
    contexts: Sequence[Context],
    nodes: Sequence[NodeProto],
    types: Mapping[str, TensorType],
) -> ModelProto | None:
    """Return the prepared model with each context's nodes replaced by one of `nodes`, in order.

    `types` are of the contexts' outputs, which ONNX Runtime cannot infer. None if they would form a
    cycle.
    """
    graph = model.graph
    inside = {index for context in contexts for index in context.nodes}
    rest = [
        item
        for index, item in enumerate(graph.node)
        if index not in inside or item.op_type == CONSTANT  # nodes outside may use it too
    ]
    composed = graphs.copy_of(model)
    target = composed.graph
    graphs.replace_nodes(target, [*nodes, *rest])
    scope = Scope(target)
    for item in scope.nodes:
        if item.proto.op_type == CONSTANT and not item.is_read():
            item.remove()
        elif scope in _readers(item) and (tensor := constant_tensor(item.proto)) is not None:
            # TensorRT's provider loads no node beside an engine
            weight = graphs.copy_of(tensor)
            weight.name = item.proto.output[0]
            item.remove()
            scope.add_weight(weight)
    if scope.order() is None:
        return None
    scope.sort()
    produced = {name for item in target.node for name in item.output}
    produced -= {name for context in contexts for name in context.outputs}
    used = {value.name for value in scope.own() if value.readers}
    given = {spec.name for spec in graphs.inputs_of(model)}
    graphs.keep(target.input, lambda value: value.name in given)
    graphs.keep(target.initializer, lambda tensor: tensor.name in used)
    graphs.keep(target.sparse_initializer, lambda sparse: sparse.values.name in used)
    graphs.keep(target.value_info, lambda value: value.name in produced)
    results = {value.name for value in graph.output}
    target.value_info.extend(
        types[name].info(name)
        for context in contexts
        for name in context.outputs
        if name not in results
    )
    if len(target.node) == len(nodes):
        del composed.functions[:]
    if all(entry.domain != CONTEXT_DOMAIN for entry in composed.opset_import):
        composed.opset_import.append(helper.make_opsetid(CONTEXT_DOMAIN, _CONTEXT_VERSION))
    return composed


def _readers(item: Node) -> set[Node | Scope]:
    return {reader for value in item.produces() for reader in value.readers}


def save(model: ModelProto, source: Path, folder: Path) -> list[str]:
    """Write a composed model with its weights from the folder `source`; return the files' names."""
    for tensor in graphs.walk_tensors(model):
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(source))
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    size = sum(len(tensor.raw_data) for tensor in graphs.walk_tensors(model))
    outside = size > LARGEST_INSIDE
    onnx.save_model(model, folder / MODEL_NAME, save_as_external_data=outside, location=WEIGHTS)
    return [MODEL_NAME, WEIGHTS] if outside else [MODEL_NAME]
