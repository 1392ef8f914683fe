"""Request bodies to tensors: JSON, and the binary tensor data extension without a copy.

In a binary request the body is a JSON header followed by the tensors' bytes, so an input is an
array *over* the body. Nothing is converted silently: what JSON says must be what the model takes.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from enginewright_runtime.server.datatypes import BF16, BOOL
from enginewright_runtime.server.errors import RequestError
from enginewright_runtime.server.message import Body
from enginewright_runtime.server.signature import Signature, Tensor

_REFUSED_PARAMETERS: Final = {
    "shared_memory_region": "shared memory is not supported",
    "classification": "the classification extension is not supported",
}


class Call:
    """One inference: what to feed, what to fetch and how to write it."""

    __slots__ = ("binary", "feeds", "identifier", "outputs", "timeout")

    def __init__(
        self,
        identifier: str | None,
        feeds: dict[str, NDArray[Any]],
        outputs: list[str],
        binary: list[bool],
        timeout: float,
    ) -> None:
        self.identifier = identifier
        self.feeds = feeds
        self.outputs = outputs
        self.binary = binary  # for each output: as bytes after the JSON
        self.timeout = timeout  # seconds; 0: none


def decode(signature: Signature, body: Body, json_length: int | None) -> Call:
    """Return the inference that `body` asks for.

    Args:
        signature: of the model.
        body: of the request; fixed-size inputs in binary form are views of its memory.
        json_length: Inference-Header-Content-Length, None when the whole body is JSON.

    Raises:
        RequestError: 400, with what is wrong, for the client.
    """
    view = body.view()
    document = _parse(view if json_length is None else view[:json_length])
    parameters = _parameters(document, "the request")
    reader = _BinaryReader(body, body.length if json_length is None else json_length)
    feeds = _read_inputs(signature, document.get("inputs"), reader)
    reader.finish()
    outputs, binary = _read_outputs(signature, document, parameters)
    identifier = document.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise RequestError(400, "'id' must be a string")
    timeout = parameters.get("timeout", 0)
    if type(timeout) is not int or timeout < 0:
        raise RequestError(400, "parameter 'timeout' must be a number of microseconds")
    return Call(identifier, feeds, outputs, binary, timeout / 1e6)


def _parse(header: memoryview) -> dict[str, Any]:
    try:
        document = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the request is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise RequestError(400, "the request must be a JSON object with 'inputs'")
    return document


def _parameters(item: dict[str, Any], where: str) -> dict[str, Any]:
    parameters = item.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(400, f"'parameters' of {where} must be an object")
    for name, why in _REFUSED_PARAMETERS.items():
        if name in parameters:
            raise RequestError(400, f"parameter {name!r} of {where}: {why}")
    return parameters


def _read_inputs(
    signature: Signature, items: object, reader: "_BinaryReader"
) -> dict[str, NDArray[Any]]:
    if not isinstance(items, list):
        raise RequestError(400, "'inputs' must be a list of tensors")
    feeds: dict[str, NDArray[Any]] = {}
    for item in items:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            raise RequestError(400, "every input must be an object with a 'name'")
        tensor = signature.inputs.get(name)
        if tensor is None:
            raise RequestError(
                400, f"input {_short(name)} is unknown; the model takes {_names(signature.inputs)}"
            )
        if name in feeds:
            raise RequestError(400, f"input {name!r} is given twice")
        feeds[name] = _read_tensor(tensor, item, reader)
    if len(feeds) != len(signature.inputs):
        missing = [name for name in signature.inputs if name not in feeds]
        raise RequestError(400, f"missing input: {_names(missing)}")
    return feeds


def _read_tensor(tensor: Tensor, item: dict[str, Any], reader: "_BinaryReader") -> NDArray[Any]:
    datatype = tensor.datatype
    if item.get("datatype") != datatype.name:
        raise RequestError(
            400,
            f"input {tensor.name!r}: datatype {_short(item.get('datatype'))},"
            f" expected {datatype.name!r}",
        )
    shape = item.get("shape")
    count = tensor.count(shape)
    assert isinstance(shape, list)  # noqa: S101 - for mypy: count() has refused everything else
    parameters = _parameters(item, f"input {tensor.name!r}")
    size = parameters.get("binary_data_size")
    data = item.get("data")
    if (size is None) == (data is None):
        raise RequestError(
            400,
            f"input {tensor.name!r}: give either 'data' or the parameter 'binary_data_size'"
            " with the bytes after the JSON",
        )
    if size is not None:
        return reader.take(tensor, shape, count, size)
    return _CONVERTERS[datatype.dtype.kind](tensor, data, shape, count)


class _BinaryReader:
    """The bytes after the JSON, handed out in the order of the inputs."""

    __slots__ = ("_at", "_body", "_end")

    def __init__(self, body: Body, json_length: int) -> None:
        self._body = body
        self._at = body.start + json_length
        self._end = body.start + body.length

    def take(self, tensor: Tensor, shape: list[int], count: int, size: object) -> NDArray[Any]:
        """Return the next `size` bytes as an array of `shape`."""
        datatype = tensor.datatype
        if type(size) is not int or size < 0:
            raise RequestError(400, f"input {tensor.name!r}: 'binary_data_size' must be a number")
        if not datatype.is_string and size != count * datatype.dtype.itemsize:
            raise RequestError(
                400,
                f"input {tensor.name!r}: binary_data_size is {size}, but {count} elements of"
                f" {datatype.name} have {count * datatype.dtype.itemsize} bytes",
            )
        at = self._at
        if size > self._end - at:
            raise RequestError(
                400,
                f"input {tensor.name!r}: the body has {self._end - at} bytes of tensor data left,"
                f" binary_data_size is {size}; is Inference-Header-Content-Length right?",
            )
        self._at = at + size
        if datatype.is_string:
            return _read_strings(
                tensor, memoryview(self._body.memory.data)[at : at + size], count
            ).reshape(shape)
        array: NDArray[Any] = np.ndarray(shape, datatype.dtype, self._body.memory, at)
        if not array.flags.aligned:
            array = array.copy()  # a second input after one of odd size
        if datatype is BOOL and size and array.view(np.uint8).max() > 1:
            raise RequestError(
                400, f"input {tensor.name!r}: BOOL elements must be the bytes 0 or 1"
            )
        return array

    def finish(self) -> None:
        """Raise RequestError if bytes are left over."""
        if self._at != self._end:
            raise RequestError(
                400, f"{self._end - self._at} bytes of tensor data belong to no input"
            )


def _read_strings(tensor: Tensor, view: memoryview, count: int) -> NDArray[Any]:
    """Read `count` strings, each a 4-byte little-endian length and UTF-8 bytes."""
    array = np.empty(min(count, len(view) // 4), object)
    at = 0
    for index in range(len(array)):
        start = at + 4
        at = start + int.from_bytes(view[at:start], "little")
        if start > len(view) or at > len(view):
            break
        try:
            array[index] = str(view[start:at], "utf-8")
        except UnicodeDecodeError:
            raise RequestError(
                400, f"input {tensor.name!r}: element {index} is not UTF-8, which ONNX strings are"
            ) from None
    if len(array) != count or at != len(view):
        raise RequestError(
            400,
            f"input {tensor.name!r}: its bytes are not {count} strings,"
            " each after its length in 4 bytes",
        )
    return array


def _from_json(tensor: Tensor, data: object, shape: list[int], count: int) -> NDArray[Any]:
    """Return JSON numbers as NumPy understands them, in the shape asked for."""
    if not isinstance(data, list):
        raise RequestError(400, f"input {tensor.name!r}: 'data' must be a list")
    try:
        array = np.asarray(data)
    except ValueError:
        raise RequestError(
            400, f"input {tensor.name!r}: 'data' holds lists of different lengths"
        ) from None
    return _shaped(tensor, array, shape, count)


def _shaped(tensor: Tensor, array: NDArray[Any], shape: list[int], count: int) -> NDArray[Any]:
    if array.size != count:
        raise RequestError(
            400, f"input {tensor.name!r}: 'data' has {array.size} elements, shape asks for {count}"
        )
    if count and array.ndim > 1 and list(array.shape) != shape:
        raise RequestError(
            400,
            f"input {tensor.name!r}: 'data' is nested as {list(array.shape)}, but shape is {shape}",
        )
    return array.reshape(shape)


def _floats(tensor: Tensor, data: object, shape: list[int], count: int) -> NDArray[Any]:
    array = _from_json(tensor, data, shape, count)
    if count and array.dtype.kind not in "iuf":
        raise _unfit(tensor, "numbers (JSON has no NaN or Infinity: send those in binary)")
    with np.errstate(over="ignore"):
        floats: NDArray[Any] = array.astype(tensor.datatype.dtype)
    if not np.isfinite(floats).all():
        raise _unfit(tensor, f"numbers within {tensor.datatype.name}")
    return floats


def _integers(tensor: Tensor, data: object, shape: list[int], count: int) -> NDArray[Any]:
    datatype = tensor.datatype
    if datatype is BF16:
        raise RequestError(400, f"input {tensor.name!r}: BF16 has no JSON form; send it in binary")
    array = _from_json(tensor, data, shape, count)
    if count and (
        array.dtype.kind not in "iu"
        or int(array.min()) < datatype.low
        or int(array.max()) > datatype.high
    ):
        raise _unfit(tensor, f"integers from {datatype.low} to {datatype.high}")
    integers: NDArray[Any] = array.astype(datatype.dtype)
    return integers


def _booleans(tensor: Tensor, data: object, shape: list[int], count: int) -> NDArray[Any]:
    array = _from_json(tensor, data, shape, count)
    if count and array.dtype.kind != "b":
        raise _unfit(tensor, "true or false")
    return array.astype(np.bool_)


def _strings(tensor: Tensor, data: object, shape: list[int], count: int) -> NDArray[Any]:
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


_CONVERTERS: Final[dict[str, Callable[[Tensor, object, list[int], int], NDArray[Any]]]] = {
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


def _read_outputs(
    signature: Signature, document: dict[str, Any], parameters: dict[str, Any]
) -> tuple[list[str], list[bool]]:
    """Return the names of the outputs to fetch and whether each is to be sent as bytes."""
    default = _flag(parameters, "binary_data_output", "the request", absent=False)
    items = document.get("outputs") or [{"name": name} for name in signature.outputs]
    if not isinstance(items, list):
        raise RequestError(400, "'outputs' must be a list of tensors")
    names: list[str] = []
    binary: list[bool] = []
    for item in items:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            raise RequestError(400, "every output must be an object with a 'name'")
        if name not in signature.outputs:
            raise RequestError(
                400,
                f"output {_short(name)} is unknown; the model gives {_names(signature.outputs)}",
            )
        if name in names:
            raise RequestError(400, f"output {name!r} is asked for twice")
        where = f"output {name!r}"
        as_bytes = _flag(_parameters(item, where), "binary_data", where, absent=default)
        if signature.outputs[name].datatype is BF16 and not as_bytes:
            raise RequestError(
                400, f"{where}: BF16 has no JSON form; set the parameter 'binary_data' to true"
            )
        names.append(name)
        binary.append(as_bytes)
    return names, binary


def _flag(parameters: dict[str, Any], name: str, where: str, *, absent: bool) -> bool:
    value = parameters.get(name, absent)
    if not isinstance(value, bool):
        raise RequestError(400, f"parameter {name!r} of {where} must be true or false")
    return value


def _names(names: Any) -> str:  # noqa: ANN401 - any iterable of names
    return ", ".join(repr(name) for name in names)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "…"
