"""Rules on constant tensors: that shape, type and data agree."""

import math
from typing import Final

from onnx import TensorProto

from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.rules import contents
from enginewright_runtime.rules.base import Hit, Subject, hit_of
from enginewright_runtime.rules.text import join_quoted, quote
from enginewright_runtime.rules.view import ModelView

_MAX_ELEMENTS: Final = 2**63 - 1
_LARGEST_INPUT: Final = 1 << 40  # bytes
# The field that holds the values of a type if raw_data does not, and its entries per element:
# TensorProto in onnx.proto.
_FIELDS: Final[dict[int, tuple[str, int]]] = {
    TensorProto.FLOAT: ("float_data", 1),
    TensorProto.COMPLEX64: ("float_data", 2),
    TensorProto.DOUBLE: ("double_data", 1),
    TensorProto.COMPLEX128: ("double_data", 2),
    TensorProto.INT64: ("int64_data", 1),
    TensorProto.UINT64: ("uint64_data", 1),
    TensorProto.UINT32: ("uint64_data", 1),
    TensorProto.STRING: ("string_data", 1),
    **dict.fromkeys(
        (
            *(TensorProto.INT32, TensorProto.INT16, TensorProto.INT8),
            *(TensorProto.UINT16, TensorProto.UINT8, TensorProto.BOOL),
            *(TensorProto.FLOAT16, TensorProto.BFLOAT16),
        ),
        ("int32_data", 1),
    ),
}


def impossible_shapes(subject: Subject) -> Hit | None:
    """Find negative and overflowing sizes, and undefined types."""
    types = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
    invalid = []
    for name, tensor in subject.tensors:
        if tensor.data_type not in types:
            invalid.append(f"{name} (type {tensor.data_type})")
        elif any(size < 0 for size in tensor.dims) or graphs.elements(tensor) > _MAX_ELEMENTS:
            invalid.append(f"{name} {list(tensor.dims)[:8]}")
    return hit_of(invalid, "tensors have an invalid shape or type")


def wrong_amount_of_data(subject: Subject) -> Hit | None:
    """Find tensors inside the file with more or less data than their shape needs."""
    unread = _unread(subject.view)
    wrong = []
    for name, tensor in subject.tensors:
        if tensor.name in unread or (amount := _amount(tensor)) is None:
            continue
        have, needed, unit = amount
        if have != needed:
            wrong.append(f"{name} ({have} {unit} of {needed})")
    return hit_of(wrong, "the data of tensors does not match their shape")


def sparse_tensors(subject: Subject) -> Hit | None:
    """Find sparse tensors, where the backend does not support them."""
    if not subject.compiled:
        return None
    names = [sparse.values.name for scope in subject.view.scopes for sparse in scope.sparse]
    names += [
        node.outputs[0]
        for node in subject.view.nodes
        if node.is_standard("Constant") and node.attribute("sparse_value") and node.outputs
    ]
    return hit_of(quote(names), f"backend {subject.recipe.backend} does not support sparse tensors")


def enormous_inputs(subject: Subject) -> Hit | None:
    """Find inputs whose smallest shape no request can carry."""
    types = {spec.name: spec.dtype for spec in subject.inputs}
    for profile in subject.profiles:
        size = math.prod(profile.min) * _item_size(types[profile.input])
        if size > _LARGEST_INPUT:
            return Hit(
                f"input {join_quoted([profile.input])} has {format_bytes(size)} at its smallest shape,"
                f" {list(profile.min)[:8]}"
            )
    return None


def _unread(view: ModelView) -> frozenset[str]:
    """Return the initializers that nothing reads: ONNX Runtime drops them unchecked."""
    read = {name for node in view.nodes for name in node.inputs}
    read.update(name for scope in view.scopes for name in scope.outputs)
    held = {name for scope in view.scopes for name in scope.initializers}
    return frozenset(held - read)


def _amount(tensor: TensorProto) -> tuple[int, int, str] | None:
    count = graphs.elements(tensor)
    if graphs.external_entries(tensor) is not None or tensor.HasField("segment"):
        return None
    if any(size < 0 for size in tensor.dims) or count > _MAX_ELEMENTS:
        return None
    if tensor.HasField("raw_data") and (count or tensor.raw_data):
        size = contents.byte_size(tensor)
        return None if size is None else (len(tensor.raw_data), size, "bytes")
    if tensor.data_type not in _FIELDS:
        return None
    field, entries = _FIELDS[tensor.data_type]
    return len(getattr(tensor, field)), count * entries, "values"


def _item_size(dtype: str) -> int:
    digits = "".join(char for char in dtype if char.isdigit())
    return max(1, int(digits or 8) // 8)
