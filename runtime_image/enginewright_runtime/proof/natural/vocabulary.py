"""The sizes of the tables that inputs index: of a vocabulary, for example. Pure."""

from typing import Final

from onnx import ModelProto, NodeProto

from enginewright_runtime.graph.raw.constants import constant_tensor
from enginewright_runtime.graph.raw.schemas import attribute

# what indices and tables pass through on their way
_SAME_VALUES: Final = frozenset({"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten"})
_SAME_ROWS: Final = frozenset({"Cast", "Identity", "DequantizeLinear"})


def find_vocabularies(model: ModelProto) -> dict[str, int]:
    """Return the rows of the smallest table that each input indexes, by input."""
    tables = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    indices = {value.name: value.name for value in model.graph.input if value.name not in tables}
    vocabularies: dict[str, int] = {}
    for node in model.graph.node:
        tensor = constant_tensor(node)
        if tensor is not None and tensor.dims:
            tables[node.output[0]] = tensor.dims[0]
        if not node.input or not node.output:
            continue
        first, out = node.input[0], node.output[0]
        if node.op_type in _SAME_VALUES and first in indices:
            indices[out] = indices[first]
        if node.op_type in _SAME_ROWS and first in tables:
            tables[out] = tables[first]
        if _takes_rows(node) and first in tables and node.input[1] in indices:
            name = indices[node.input[1]]
            vocabularies[name] = min(tables[first], vocabularies.get(name, tables[first]))
    return vocabularies


def _takes_rows(node: NodeProto) -> bool:
    if node.op_type != "Gather":
        return False
    axis = attribute(node, "axis")
    return axis is None or axis.i == 0
