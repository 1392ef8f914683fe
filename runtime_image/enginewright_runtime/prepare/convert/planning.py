"""Which version changes a model needs so that a runtime loads it: pure, fast, without weights."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import onnx
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, name_nodes
from enginewright_contract.task import Recipe
from onnx import ModelProto, NodeProto, helper

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.schemas import (
    STANDARD,
    Fit,
    fit,
    is_function,
    schema_of,
)
from enginewright_runtime.graph.raw.small_tensors import needs_inlining
from enginewright_runtime.graph.scoped.element_types import types_of
from enginewright_runtime.graph.scoped.scopes import separate_names
from enginewright_runtime.prepare.convert.ir_versions import newer_than

_MAX_NODES: Final = 100  # kept in a finding
# The oldest opset that a runtime supports. ONNX Runtime: 7 (docs/Versioning.md and
# docs/OperatorKernels.md of onnxruntime). TensorRT's parser: 9 (docs/operators.md of onnx-tensorrt).
_OLDEST: Final[Mapping[str, int]] = {"tensorrt": 9, "tensorrt-rtx": 9}
_OLDEST_OF_ORT: Final = 7


@dataclass(frozen=True)
class ConversionPlan:
    """The versions that change, to which values, or why the model cannot be converted."""

    opset: int | None = None
    ir_version: int | None = None
    refusal: Finding | None = None
    inline: bool = False  # whether small tensors move from external data into the .onnx file

    @property
    def is_needed(self) -> bool:
        """Tell whether the runtime refuses the model's own form."""
        return self.inline or self.opset is not None or self.ir_version is not None


def plan(model: ModelProto, recipe: Recipe) -> ConversionPlan:
    """Return the opset and IR version that the recipe needs, where they differ from the model's.

    The model is parsed without external data. `target_opset` of the recipe, if set, is the opset to
    reach; else versions within the runtime's limits stay. Whether the target opset has the operators of
    function bodies is checked on expansion, so a plan may fail when it is carried out.
    """
    opset = graphs.default_opset(model)
    target = opset
    if opset is not None:
        target = _target(model, opset, recipe)
        refusal = _out_of_range(opset, target, recipe)
        if refusal is None and target < opset:
            refusal = _inexpressible(model, opset, target, recipe)
        if refusal is not None:
            return ConversionPlan(refusal=refusal)
    version, refusal = _ir_version(model, opset, target, recipe)
    if refusal is not None:
        return ConversionPlan(refusal=refusal)
    return ConversionPlan(
        target if target != opset else None,
        version if version != model.ir_version else None,
        inline=needs_inlining(model),
    )


def _target(model: ModelProto, opset: int, recipe: Recipe) -> int:
    if recipe.target_opset is not None:
        return recipe.target_opset
    if opset > recipe.max_opset:
        return recipe.max_opset
    oldest = _OLDEST.get(recipe.backend, _OLDEST_OF_ORT)
    if opset < oldest and find_changed_nodes(model, opset, oldest):
        return oldest
    return opset


def find_changed_nodes(model: ModelProto, opset: int, target: int) -> list[NodeProto]:
    """Return the nodes whose operator has another version in the higher opset `target`."""
    pairs = [
        (node, schema_of(node, opset), schema_of(node, target)) for node in standard_nodes(model)
    ]
    return [
        node
        for node, older, newer in pairs
        if older is None or newer is None or older.since_version != newer.since_version
    ]


def standard_nodes(model: ModelProto) -> list[NodeProto]:
    """Return the nodes of ai.onnx, in subgraphs and functions too, that no local function defines."""
    return _standard(model, graphs.walk_nodes(model))


def _standard(model: ModelProto, nodes: Iterable[NodeProto]) -> list[NodeProto]:
    functions = {(function.domain, function.name) for function in model.functions}
    return [
        node
        for node in nodes
        if node.domain in STANDARD and (node.domain, node.op_type) not in functions
    ]


def _walk_typed(model: ModelProto) -> Iterator[tuple[NodeProto, Mapping[str, str]]]:
    types = types_of(model)
    for node in _standard(model, graphs.nodes_in(model.graph.node)):
        yield node, types
    for function in model.functions:
        for node in _standard(model, graphs.nodes_in(function.node)):
            yield node, {}


def _out_of_range(opset: int, target: int, recipe: Recipe) -> Finding | None:
    newest = onnx.defs.onnx_opset_version()
    if target > recipe.max_opset:
        return Finding(
            reason=Reason.OPSET_UNSUPPORTED,
            cause=f"spec.targetOpset is {target} and ONNX Runtime {recipe.ort_version} loads at most opset"
            f" {recipe.max_opset}",
            remedy=f"set spec.targetOpset to {recipe.max_opset} or less, or omit it",
        )
    if opset > newest and opset != target:
        return Finding(
            reason=Reason.OPSET_UNSUPPORTED,
            cause=f"the model has opset {opset} and ONNX Runtime {recipe.ort_version} loads at most"
            f" {recipe.max_opset}; no released onnx supports opset {opset}, so it cannot be converted",
            remedy=f"export with opset {recipe.max_opset}",
        )
    return None


def operators_with_bodies(model: ModelProto) -> set[str]:
    """Return the operators of the model's nodes that have a function body in ONNX."""
    opset = graphs.default_opset(model) or 1
    return {node.op_type for node in standard_nodes(model) if is_function(node.op_type, "", opset)}


def _inexpressible(model: ModelProto, opset: int, target: int, recipe: Recipe) -> Finding | None:
    nodes = [
        node
        for node, types in _walk_typed(separate_names(model))
        if fit(node, opset, target, types) is Fit.NONE and not is_function(node.op_type, "", opset)
    ]
    if not nodes:
        return None
    labels = [graphs.label(node) for node in nodes]
    if recipe.target_opset is not None:
        limit = f"spec.targetOpset is {target}"
        remedy = "raise spec.targetOpset or omit it"
    else:
        limit = f"ONNX Runtime {recipe.ort_version} loads at most {target}"
        remedy = f"export with opset {target}"
    return Finding(
        reason=Reason.OPSET_UNSUPPORTED,
        cause=f"the model has opset {opset} and {limit}; these nodes have no equivalent in opset {target}:"
        f" {name_nodes(labels)}",
        remedy=remedy,
        nodes=tuple(labels[:_MAX_NODES]),
        node_count=len(nodes),
    )


def _ir_version(
    model: ModelProto, opset: int | None, target: int | None, recipe: Recipe
) -> tuple[int, Finding | None]:
    """Return the target IR version: raised only with the opset, lowered only if it must be."""
    version = int(model.ir_version)
    if target is not None and opset is not None and target > opset:
        needed = helper.find_min_ir_version_for([helper.make_opsetid("", target)])
        version = max(version, min(needed, recipe.max_ir_version))
    if version <= recipe.max_ir_version:
        return version, None
    if used := newer_than(model, recipe.max_ir_version):
        return version, Finding(
            reason=Reason.IR_VERSION_UNSUPPORTED,
            cause=f"the model has IR version {version}, the runtime image loads at most"
            f" {recipe.max_ir_version}, and the model uses newer features: {', '.join(used)}",
            remedy=f"export without them, or use a runtime image that loads IR version {version}",
        )
    return recipe.max_ir_version, None
