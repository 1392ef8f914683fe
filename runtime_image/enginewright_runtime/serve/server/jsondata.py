"""Decodes tensor data in JSON into arrays; nothing is converted silently.

The JSON must match the model's input exactly: no fraction for an integer, no number for a boolean,
no value outside the type's range, no nesting that contradicts the shape.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.session.datatypes import BF16
from enginewright_runtime.session.request_errors import RequestError
from enginewright_runtime.session.signature import Tensor


def read(tensor: Tensor, data: object, shape: tuple[int, ...], count: int) -> NDArray[Any]:
    """Return `data` of input `tensor` as an array of `shape`, which has `count` elements.

    Raises:
        RequestError: 400, with the cause.
    """
    return _CONVERTERS[tensor.datatype.dtype.kind](tensor, data, shape, count)


def _from_json(tensor: Tensor, data: object, shape: tuple[int, ...], count: int) -> NDArray[Any]:
    """Return JSON values in the type that NumPy infers, in the requested shape."""
    if not isinstance(data, list):
        raise RequestError(400, f"input {tensor.name!r}: 'data' must be a list")
    try:
        array = np.asarray(data)
    except ValueError:
        raise RequestError(
            400, f"input {tensor.name!r}: 'data' holds lists of different lengths"
        ) from None
    return _shaped(tensor, array, shape, count)


def _shaped(
    tensor: Tensor, array: NDArray[Any], shape: tuple[int, ...], count: int
) -> NDArray[Any]:
    if array.size != count:
        raise RequestError(
            400, f"input {tensor.name!r}: 'data' has {array.size} elements, shape asks for {count}"
        )
    if count and array.ndim > 1 and array.shape != shape:
        raise RequestError(
            400,
            f"input {tensor.name!r}: 'data' is nested as {list(array.shape)}, but shape is {list(shape)}",
        )
    return array.reshape(shape)


def _floats(tensor: Tensor, data: object, shape: tuple[int, ...], count: int) -> NDArray[Any]:
    array = _from_json(tensor, data, shape, count)
    if count and array.dtype.kind not in "iuf":
        raise _unfit(tensor, "numbers (JSON has no NaN or Infinity: send those in binary)")
    with np.errstate(over="ignore"):
        floats: NDArray[Any] = array.astype(tensor.datatype.dtype)
    if not np.isfinite(floats).all():
        raise _unfit(tensor, f"numbers within {tensor.datatype.name}")
    return floats


def _integers(tensor: Tensor, data: object, shape: tuple[int, ...], count: int) -> NDArray[Any]:
    datatype = tensor.datatype
    if datatype is BF16:
        raise RequestError(400, f"input {tensor.name!r}: BF16 has no JSON form; send it in binary")
    array = _from_json(tensor, data, shape, count)
    if not count:
        return array.astype(datatype.dtype)
    if array.dtype.kind not in "iu":  # NumPy has no integer type for 0 beside 2**64 - 1
        array = np.asarray(data, object).reshape(shape)
        if any(type(element) is not int for element in array.flat):
            raise _unfit(tensor, _range(tensor))
    if not datatype.low <= int(array.min()) <= int(array.max()) <= datatype.high:
        raise _unfit(tensor, _range(tensor))
    return array.astype(datatype.dtype)


def _range(tensor: Tensor) -> str:
    return f"integers from {tensor.datatype.low} to {tensor.datatype.high}"


def _booleans(tensor: Tensor, data: object, shape: tuple[int, ...], count: int) -> NDArray[Any]:
    array = _from_json(tensor, data, shape, count)
    if count and array.dtype.kind != "b":
        raise _unfit(tensor, "true or false")
    return array.astype(np.bool_)


def _strings(tensor: Tensor, data: object, shape: tuple[int, ...], count: int) -> NDArray[Any]:
    if not isinstance(data, list):
        raise RequestError(400, f"input {tensor.name!r}: 'data' must be a list")
    try:
        array = np.asarray(data, object)
    except ValueError:
        raise RequestError(
            400, f"input {tensor.name!r}: 'data' holds lists of different lengths"
        ) from None
    if not all(isinstance(element, str) for element in array.flat):
        raise _unfit(tensor, "strings")
    return _shaped(tensor, array, shape, count)


_CONVERTERS: Final[dict[str, Callable[[Tensor, object, tuple[int, ...], int], NDArray[Any]]]] = {
    "f": _floats,
    "i": _integers,
    "u": _integers,
    "b": _booleans,
    "O": _strings,
}


def _unfit(tensor: Tensor, expected: str) -> RequestError:
    return RequestError(
        400, f"input {tensor.name!r}: 'data' must hold {expected} for {tensor.datatype.name}"
    )
