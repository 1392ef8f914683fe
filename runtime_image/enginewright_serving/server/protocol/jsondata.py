"""Decodes tensor data in JSON into arrays; nothing is converted silently.

The JSON must match the model's input exactly: no fraction for an integer, no number for a boolean, no value outside
the type's range, no nesting that contradicts the shape. Count, nesting and types are checked on the lists, since
NumPy would give every element the width of the longest string.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.datatypes import BF16, Datatype
from enginewright_runtime.session.signature import Tensor
from numpy.typing import NDArray

_SHOWN_DIMENSIONS: Final = 32
_FEW: Final = 100  # elements whose types are looked at sooner than their values


def read(tensor: Tensor, data: object, shape: tuple[int, ...], count: int) -> NDArray[Any]:
    """Return `data` of input `tensor` as an array of `shape`, which has `count` elements; raise RequestError 400."""
    datatype = tensor.datatype
    if datatype is BF16:
        raise RequestError(400, f"input {tensor.name!r}: BF16 has no JSON form; send it in binary")
    if type(data) is not list:
        raise RequestError(400, f"input {tensor.name!r}: 'data' must be a list")
    elements = _flatten(data, shape, count)
    if elements is None:
        raise RequestError(400, f"input {tensor.name!r}: 'data' {_misfit(data, shape, count)}")
    try:
        return _CONVERTERS[datatype.dtype.kind](datatype, elements).reshape(shape)
    except (TypeError, OverflowError) as error:
        if _types(elements) == {list}:
            cause = _misfit(data, shape, count)
        else:
            out_of_range = isinstance(error, OverflowError)
            cause = f"must hold {_describe_expected(datatype, out_of_range=out_of_range)} for {datatype.name}"
    raise RequestError(400, f"input {tensor.name!r}: 'data' {cause}")


def _flatten(data: list[Any], shape: tuple[int, ...], count: int) -> list[Any] | None:
    if not data or type(data[0]) is not list:
        return data if len(data) == count else None
    level = [data]
    for size in shape:
        if level and (_types(level) != {list} or set(map(len, level)) != {size}):
            return None
        level = list(chain.from_iterable(level))
    return level if shape else None


def _misfit(data: list[Any], shape: tuple[int, ...], count: int) -> str:
    sizes: list[int] = []
    level: list[Any] = [data]
    while (types := _types(level)) == {list}:
        lengths = set(map(len, level))
        if len(lengths) > 1:
            break
        sizes += lengths
        level = list(chain.from_iterable(level))
    if list in types:
        return "holds lists of different lengths"
    if len(level) != count:
        return f"has {len(level)} elements, shape asks for {count}"
    return f"is nested as {_show(sizes)}, but shape is {_show(shape)}"


def _floats(datatype: Datatype, elements: list[Any]) -> NDArray[Any]:
    doubles = np.frombuffer(array("d", elements), np.float64)
    _refuse_booleans(doubles, elements)
    with np.errstate(over="ignore"):
        floats: NDArray[Any] = doubles.astype(datatype.dtype, copy=False)
    if not np.isfinite(floats).all():
        raise OverflowError
    return floats


def _integers(datatype: Datatype, elements: list[Any]) -> NDArray[Any]:
    code = "Q" if datatype.high > np.iinfo(np.int64).max else "q"
    integers: NDArray[Any] = np.frombuffer(array(code, elements), code)
    _refuse_booleans(integers, elements)
    if elements and not datatype.low <= int(integers.min()) <= int(integers.max()) <= datatype.high:
        raise OverflowError
    return integers.astype(datatype.dtype, copy=False)


def _refuse_booleans(numbers: NDArray[Any], elements: list[Any]) -> None:
    """Refuse what `array` takes for 0 and 1."""
    if len(elements) > _FEW and not ((numbers == 0) | (numbers == 1)).any():
        return
    if bool in _types(elements):
        raise TypeError


def _booleans(_: Datatype, elements: list[Any]) -> NDArray[Any]:
    if not _types(elements) <= {bool}:
        raise TypeError
    return np.fromiter(elements, np.bool_, len(elements))


def _strings(_: Datatype, elements: list[Any]) -> NDArray[Any]:
    if not _types(elements) <= {str}:
        raise TypeError
    return np.fromiter(elements, object, len(elements))


# They raise TypeError and OverflowError.
_CONVERTERS: Final[dict[str, Callable[[Datatype, list[Any]], NDArray[Any]]]] = {
    "f": _floats,
    "i": _integers,
    "u": _integers,
    "b": _booleans,
    "O": _strings,
}


def _describe_expected(datatype: Datatype, *, out_of_range: bool) -> str:
    kind = datatype.dtype.kind
    if kind in "iu":
        return f"integers from {datatype.low} to {datatype.high}"
    if kind == "b":
        return "true or false"
    if kind == "O":
        return "strings"
    if out_of_range:
        return f"numbers within {datatype.name}"
    return "numbers (JSON has no NaN or Infinity: send those in binary)"


def _types(elements: list[Any]) -> set[type]:
    return set(map(type, elements))


def _show(sizes: Sequence[int]) -> str:
    return str(list(sizes[:_SHOWN_DIMENSIONS]))
