"""Describes the source's graph for people: operators, constants and opsets."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enginewright_cli.preflight.result import Graph, OperatorCount, Weight, WeightType

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

_MOST_OPERATORS: Final = 100
_MOST_WEIGHTS: Final = 10
_STANDARD: Final = frozenset({"", "ai.onnx"})
# NumPy stores each of these elements in a byte
_PACKED_BITS: Final = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}


def describe(path: Path) -> Graph | None:
    """Return a description of the model's graph, without its external data, or None if it cannot be parsed."""
    from enginewright_runtime.core.model_files import LARGEST_PROTOBUF  # noqa: PLC0415 - loaded lazily
    from enginewright_runtime.graph.raw import graphs  # noqa: PLC0415 - likewise

    if path.stat().st_size > LARGEST_PROTOBUF:
        return None
    try:
        model = graphs.parse(path)
    except graphs.UnparsableError:
        return None
    nodes = list(graphs.walk_nodes(model))
    weights = list(_weights(model, nodes))
    counts = Counter(map(operator, nodes))
    read = _read_by(nodes, weights)
    return Graph(
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        opsets={
            "" if item.domain in _STANDARD else item.domain: item.version
            for item in model.opset_import
        },
        functions=len(model.functions),
        operator_types=len(counts),
        operators=tuple(
            OperatorCount(operator=name, count=count, weight_bytes=read[name])
            for name, count in counts.most_common(_MOST_OPERATORS)
        ),
        weight_types=_by_type(weights),
        largest_weights=tuple(
            weight.weight
            for weight in sorted(weights, key=lambda constant: -constant.weight.size_bytes)[
                :_MOST_WEIGHTS
            ]
        ),
        external_bytes=sum(weight.weight.size_bytes for weight in weights if weight.is_external),
    )


def operator(node: "NodeProto") -> str:
    """Return the operator's name, with its domain unless that is ai.onnx's."""
    return node.op_type if node.domain in _STANDARD else f"{node.domain}:{node.op_type}"


@dataclass(frozen=True)
class _Constant:
    """A constant tensor, with the name under which nodes read it."""

    weight: Weight
    elements: int
    is_external: bool


def _weights(model: "ModelProto", nodes: Iterable["NodeProto"]) -> Iterator[_Constant]:
    for graph in _graphs(model.graph, nodes):
        for tensor in graph.initializer:
            yield _constant(tensor.name, tensor)
        for sparse in graph.sparse_initializer:
            yield _constant(sparse.values.name, sparse.values)
    for node in nodes:
        if node.op_type != "Constant" or node.domain not in _STANDARD:
            continue
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield _constant(next(iter(node.output), ""), attribute.t)


def _graphs(graph: "GraphProto", nodes: Iterable["NodeProto"]) -> Iterator["GraphProto"]:
    yield graph
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _constant(name: str, tensor: "TensorProto") -> _Constant:
    from onnx import TensorProto  # noqa: PLC0415 - loaded lazily

    elements = math.prod(max(0, size) for size in tensor.dims)
    dtype, bits = _element(tensor.data_type)
    size = (elements * bits + 7) // 8 if bits else sum(map(len, tensor.string_data))
    return _Constant(
        Weight(name=name, dtype=dtype, shape=tuple(tensor.dims), size_bytes=size),
        elements,
        tensor.data_location == TensorProto.EXTERNAL,
    )


def _element(kind: int) -> tuple[str, int]:
    """Return name and bits of an element type; 0 bits: its size is not fixed, or not known."""
    from onnx import TensorProto, helper  # noqa: PLC0415 - loaded lazily

    if kind == TensorProto.STRING:
        return "string", 0
    try:
        dtype = helper.tensor_dtype_to_np_dtype(kind)
    except KeyError:
        return "unknown", 0
    return dtype.name, _PACKED_BITS.get(dtype.name, dtype.itemsize * 8)


def _read_by(nodes: Iterable["NodeProto"], weights: Iterable[_Constant]) -> Counter[str]:
    """Return the bytes of constants by the operator that reads them first."""
    sizes = {weight.weight.name: weight.weight.size_bytes for weight in weights}
    read: Counter[str] = Counter()
    for node in nodes:
        for name in node.input:
            read[operator(node)] += sizes.pop(name, 0)
    return read


def _by_type(weights: Iterable[_Constant]) -> tuple[WeightType, ...]:
    groups: dict[str, list[_Constant]] = defaultdict(list)
    for weight in weights:
        groups[weight.weight.dtype].append(weight)
    types = [
        WeightType(
            dtype=dtype,
            tensors=len(group),
            elements=sum(constant.elements for constant in group),
            size_bytes=sum(constant.weight.size_bytes for constant in group),
        )
        for dtype, group in groups.items()
    ]
    return tuple(sorted(types, key=lambda type_name: -type_name.size_bytes))
