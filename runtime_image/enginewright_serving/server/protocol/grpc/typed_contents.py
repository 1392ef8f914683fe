"""Tensors as repeated numbers (InferTensorContents), for clients that send no raw bytes."""

from typing import Any, Final

import numpy as np
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.datatypes import Datatype
from enginewright_runtime.session.signature import Tensor
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from enginewright_serving.server.protocol.grpc.messages import Contents
from enginewright_serving.server.protocol.json_cost import VALUES

_FIELDS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_WIDE: Final = {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}


def has_form(datatype: Datatype) -> bool:
    """Return whether elements of a type can be sent as typed contents."""
    return datatype.name in _FIELDS


def read(
    tensor: Tensor, serialized: bytes | None, shape: tuple[int, ...], count: int
) -> NDArray[Any]:
    """Return input `tensor` of `shape`, which has `count` elements, from its serialized contents; may raise RequestError."""
    datatype = tensor.datatype
    if datatype.name not in _FIELDS:
        raise RequestError(
            400,
            f"input {tensor.name!r}: {datatype.name} has no typed contents;"
            " send raw_input_contents",
        )
    if count > VALUES:
        raise RequestError(
            413,
            f"input {tensor.name!r}: {count} elements are more than {VALUES:,}, too many for typed"
            " contents; send raw_input_contents",
        )
    contents = Contents()
    try:
        contents.ParseFromString(serialized or b"")
    except DecodeError:
        raise RequestError(400, f"input {tensor.name!r}: 'contents' are not valid") from None
    name = _FIELDS[datatype.name]
    others = [field.name for field, _ in contents.ListFields() if field.name != name]
    if others:
        raise RequestError(
            400, f"input {tensor.name!r}: {datatype.name} has {name}, not {others[0]}"
        )
    values = getattr(contents, name)
    if len(values) != count:
        raise RequestError(
            400,
            f"input {tensor.name!r}: its contents have {len(values)} elements, shape asks for"
            f" {count}",
        )
    if datatype.is_string:
        return _strings(tensor, values).reshape(shape)
    array: NDArray[Any] = np.array(values, _WIDE.get(name, datatype.dtype))
    if array.dtype != datatype.dtype:
        if count and not datatype.low <= int(array.min()) <= int(array.max()) <= datatype.high:
            raise RequestError(
                400,
                f"input {tensor.name!r}: {name} must hold integers from {datatype.low} to"
                f" {datatype.high} for {datatype.name}",
            )
        array = array.astype(datatype.dtype)
    return array.reshape(shape)


def _strings(tensor: Tensor, values: Any) -> NDArray[Any]:  # noqa: ANN401 - of protobuf
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        try:
            array[index] = value.decode()
        except UnicodeDecodeError:
            raise RequestError(
                400, f"input {tensor.name!r}: element {index} is not UTF-8, as ONNX strings are"
            ) from None
    return array


def write(datatype: Datatype, array: NDArray[Any]) -> Any:  # noqa: ANN401 - made at run time
    """Return `array` as typed contents, which must exist for `datatype` (`has_form`)."""
    flat = array.reshape(-1).tolist()
    values = [str(text).encode() for text in flat] if datatype.is_string else flat
    return Contents(**{_FIELDS[datatype.name]: values})
