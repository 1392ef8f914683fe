"""Tensors as bytes, as the binary data extension and gRPC's raw contents have them: row-major, little-endian.

A string is preceded by its length in 4 bytes.
"""

import math
import struct
from typing import Any, Final

import numpy as np
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.datatypes import BOOL
from enginewright_runtime.session.signature import Tensor
from numpy.typing import NDArray

from enginewright_serving.transport.message import JOINED_BYTES

_LENGTH: Final = struct.Struct("<I")


def read_tensor(
    tensor: Tensor, shape: tuple[int, ...], memory: memoryview, at: int, size: int
) -> NDArray[Any]:
    """Return input `tensor`, whose `size` bytes lie in `memory` from `at` on; raise RequestError 400 for invalid ones.

    A view of `memory`, except strings and unaligned tensors. `size` must be that of `shape`, unless the elements
    are strings.
    """
    datatype = tensor.datatype
    if datatype.is_string:
        return _read_strings(tensor, shape, memory[at : at + size])
    array: NDArray[Any] = np.ndarray(shape, datatype.dtype, memory, at)
    if not array.flags.aligned:
        array = array.copy()  # an input that follows one of odd size
    if datatype is BOOL and size and array.view(np.uint8).max() > 1:
        raise RequestError(400, f"input {tensor.name!r}: BOOL elements must be the bytes 0 or 1")
    return array


def _read_strings(tensor: Tensor, shape: tuple[int, ...], view: memoryview) -> NDArray[Any]:
    count = math.prod(shape)
    if len(view) < count * _LENGTH.size:
        raise _count_error(tensor, count)
    array = np.empty(count, object)
    at = 0
    for index in range(count):
        start = at + _LENGTH.size
        if start > len(view):
            raise _count_error(tensor, count)
        at = start + _LENGTH.unpack_from(view, at)[0]
        if at > len(view):
            raise _count_error(tensor, count)
        try:
            array[index] = str(view[start:at], "utf-8")
        except UnicodeDecodeError:
            raise RequestError(
                400, f"input {tensor.name!r}: element {index} is not UTF-8, as ONNX strings are"
            ) from None
    if at != len(view):
        raise _count_error(tensor, count)
    return array.reshape(shape)


def _count_error(tensor: Tensor, count: int) -> RequestError:
    return RequestError(
        400,
        f"input {tensor.name!r}: its bytes are not {count} strings,"
        " each preceded by its length in 4 bytes",
    )


def tensor_bytes(array: NDArray[Any]) -> bytes | memoryview:
    """Return the elements of `array`; large ones without a copy."""
    if array.dtype == object:
        return encode_strings(array)
    if array.nbytes <= JOINED_BYTES:
        return array.tobytes()
    return array.reshape(-1).view("u1").data


def encode_strings(array: NDArray[Any]) -> bytes:
    """Write each string as a 4-byte little-endian length and its UTF-8 bytes."""
    parts: list[bytes] = []
    for text in array.flat:
        encoded = str(text).encode()
        parts.append(_LENGTH.pack(len(encoded)))
        parts.append(encoded)
    return b"".join(parts)
