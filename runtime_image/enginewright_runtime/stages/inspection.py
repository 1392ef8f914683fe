"""What can be said about a model without running anything native: pure checks over its protobuf."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import onnx
from enginewright.contract.reasons import REMEDIES, Reason
from enginewright.contract.report import Finding, name_nodes
from enginewright.contract.task import Recipe
from onnx import ModelProto, NodeProto, TensorProto

from enginewright_runtime import graphs
from enginewright_runtime.logs import counted

_STANDARD: Final = frozenset({"", "ai.onnx"})
_KNOWN_DOMAINS: Final = _STANDARD | {
    "ai.onnx.ml",
    "ai.onnx.preview",
    "ai.onnx.preview.training",
    "ai.onnx.training",
    "com.microsoft",
    "com.microsoft.experimental",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
}
_MOST_NODES: Final = 100  # kept in a finding


def inspect(model: ModelProto, folder: Path, recipe: Recipe) -> list[Finding]:
    """Return everything found wrong, without shapes."""
    return [
        *check_versions(model, recipe),
        # what extensions bring only they can tell: loading the model asks them
        *(check_domains(model) if not recipe.extensions else ()),
        *check_external_data(model, folder),
    ]


def finding(
    reason: Reason,
    message: str,
    nodes: Iterable[NodeProto] = (),
    *,
    severity: str = "error",
    remedy: str | None = None,
) -> Finding:
    """Return a finding that keeps the first nodes and counts all; an error's message ends with a remedy."""
    if severity == "error":
        message = f"{message.rstrip('. ')}; {remedy or REMEDIES[reason]}"
    labels = [graphs.label(node) for node in nodes]
    return Finding(
        severity=severity,
        reason=reason,
        message=message,
        nodes=tuple(labels[:_MOST_NODES]),
        node_count=len(labels),
    )


def check_versions(model: ModelProto, recipe: Recipe) -> list[Finding]:
    """Compare opset and IR version with what the runtime image can load."""
    found = []
    opset = graphs.default_opset(model)
    if opset is not None and opset > recipe.max_opset:
        nodes = [
            node for node in graphs.walk_nodes(model) if _since(node, opset) > recipe.max_opset
        ]
        found.append(_opset_finding(opset, recipe, nodes))
    if model.ir_version > recipe.max_ir_version:
        found.append(
            finding(
                Reason.IR_VERSION_UNSUPPORTED,
                f"the model has IR version {model.ir_version} and the runtime image loads at most"
                f" {recipe.max_ir_version}",
                remedy=f"set model.ir_version = {recipe.max_ir_version} and save it again",
            )
        )
    return found


def _opset_finding(opset: int, recipe: Recipe, nodes: list[NodeProto]) -> Finding:
    limit = recipe.max_opset
    labels = name_nodes([graphs.label(node) for node in nodes])
    if nodes:
        told = f"these nodes need more than opset {limit}: {labels}"
    elif opset > onnx.defs.onnx_opset_version():
        told = f"no released onnx knows opset {opset}"
    else:
        told = f"no node needs more than opset {limit}"
    return finding(
        Reason.OPSET_UNSUPPORTED,
        f"the model has opset {opset} and ONNX Runtime {recipe.ort_version} loads at most {limit};"
        f" {told}",
        nodes,
        remedy=f"export with opset {limit}",
    )


def _since(node: NodeProto, opset: int) -> int:
    """Return the opset that the node's operator came or last changed with; 0 when unknown."""
    if node.domain not in _STANDARD:
        return 0
    try:
        return int(onnx.defs.get_schema(node.op_type, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


def check_domains(model: ModelProto) -> list[Finding]:
    """Find nodes of domains that neither ONNX Runtime nor the model's own functions define."""
    functions = {(function.domain, function.name) for function in model.functions}
    strangers = [
        node
        for node in graphs.walk_nodes(model)
        if node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in functions
    ]
    if not strangers:
        return []
    domains = ", ".join(sorted({node.domain for node in strangers}))
    labels = name_nodes([graphs.label(node) for node in strangers])
    return [
        finding(
            Reason.CUSTOM_DOMAIN_UNSUPPORTED,
            f"operators of domain {domains} are not in the runtime image: {labels}",
            strangers,
        )
    ]


def unknown_operators(model: ModelProto) -> list[NodeProto]:
    """Return nodes whose operator the model's opset does not have."""
    opset = graphs.default_opset(model) or 1
    functions = {(function.domain, function.name) for function in model.functions}
    return [
        node
        for node in graphs.walk_nodes(model)
        if node.domain in _STANDARD
        and (node.domain, node.op_type) not in functions
        and not _has_schema(node, opset)
    ]


def _has_schema(node: NodeProto, opset: int) -> bool:
    try:
        onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    return True


def check_external_data(model: ModelProto, folder: Path) -> list[Finding]:
    """Find tensors whose external data is missing, outside the folder or cut short.

    onnx.checker and onnx.shape_inference pass a truncated file (onnx 1.23), ONNX Runtime does not.
    """
    missing: dict[str, int] = {}
    short: list[str] = []
    for tensor in graphs.walk_tensors(model):
        entries = graphs.external_entries(tensor)
        if entries is None:
            continue
        location = entries.get("location", "")
        path = folder / location
        if not graphs.is_inside(location) or not path.is_file() or path.is_symlink():
            missing[location] = missing.get(location, 0) + 1
            continue
        needed = _end(tensor, entries)
        size = path.stat().st_size
        if needed is None or needed > size:
            short.append(f"{tensor.name} ({location} has {size} bytes of {needed or '?'})")
    found = [
        finding(
            Reason.EXTERNAL_DATA_MISSING,
            f"external data file {location!r}, with {counted(count, 'tensor')}, is not in the model's folder",
        )
        for location, count in missing.items()
    ]
    if short:
        found.append(
            finding(
                Reason.EXTERNAL_DATA_MISSING,
                f"external data is cut short: {name_nodes(short)}",
                remedy="upload the file again, whole",
            )
        )
    return found


def _end(tensor: TensorProto, entries: dict[str, str]) -> int | None:
    """Return how many bytes the file must have for this tensor; None for senseless entries."""
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries["length"]) if "length" in entries else _bytes(tensor)
    except ValueError:
        return None
    return offset + length if offset >= 0 and length >= 0 else None


def _bytes(tensor: TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return count * int(dtype.itemsize)
