"""The client's side of the Open Inference Protocol v2: encodes requests, decodes responses.

Tensors are binary (binary tensor data extension) if the server announces it, otherwise JSON, since
the sidecar also runs with other servers.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from enginewright_runtime.session.datatypes import BF16, Datatype
from enginewright_runtime.session.samples import GoldenSample
from numpy.typing import NDArray

from enginewright_serving.binary_tensors import encode_strings
from enginewright_serving.sidecar.client import ServerResponse
from enginewright_serving.sidecar.json_tensors import (
    JSON_BYTES,
    TooLargeError,
    index_of,
    parse,
    read_numbers,
    write_numbers,
)
from enginewright_serving.sidecar.samples import Types

BINARY_EXTENSION: Final = "binary_tensor_data"
_LARGEST_RANK: Final = 32
_STRING_BYTES: Final = 80  # of a string, and of its places in a list and an array, beside its text
_DURATION: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")


class ResponseError(ValueError):
    """The server returned 200 with a response that does not match the request."""


class UnencodableError(ValueError):
    """The protocol cannot carry this sample to this server."""


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """The body of a request, in parts, so that large tensors are sent without a copy."""

    parts: tuple[bytes | memoryview, ...]
    json_length: int | None  # unless the complete body is JSON


def encode(sample: GoldenSample, types: Types, *, binary: bool) -> EncodedRequest:
    """Return the request for the outputs that `sample` has; raise UnencodableError if JSON cannot represent an input."""
    outputs = [
        {"name": name, "parameters": {"binary_data": True}} if binary else {"name": name}
        for name in sample.expected
    ]
    if not binary:
        return EncodedRequest(_json_parts(sample, types, outputs), None)
    inputs: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    for name, array in sample.feeds.items():
        datatype = types.inputs[name]
        part = encode_strings(array) if datatype.is_string else _bytes(array)
        parameters = {"binary_data_size": len(part)}
        inputs.append(_describe(name, array, datatype) | {"parameters": parameters})
        parts.append(part)
    header = orjson.dumps({"inputs": inputs, "outputs": outputs})
    return EncodedRequest((header, *parts), len(header))


def decode(
    body: bytes | bytearray | memoryview,
    json_length: int | None,
    names: Iterable[str] | None,
    types: Types,
    most: int = JSON_BYTES,
) -> dict[str, NDArray[Any]]:
    """Return the outputs `names` of a response, by default all of `types`, each in its declared shape.

    Raises ResponseError, or TooLargeError if the JSON tensors would take more than `most` bytes.
    """
    if json_length is not None and not 0 < json_length <= len(body):
        raise ResponseError(f"declares {json_length} of its {len(body)} bytes as JSON")
    try:
        text = body if json_length is None else memoryview(body)[:json_length]
        document, numbers = parse(text, most)
        tensors = {tensor["name"]: tensor for tensor in document["outputs"]}
    except (ValueError, KeyError, TypeError):
        raise ResponseError("is not a JSON object with outputs") from None
    places = _places(tensors, json_length or len(body))
    limit, arrays = most, {}
    for name in types.outputs.keys() & tensors.keys() if names is None else names:
        if name not in tensors:
            raise ResponseError(f"has no output {name!r}")
        data = _Data(body, places.get(name), numbers, most)
        try:
            arrays[name] = _read(name, tensors[name], types.outputs[name], data)
        except TooLargeError:  # for what the outputs before it leave
            raise TooLargeError(limit) from None
        if name not in places:
            most -= arrays[name].nbytes
    return arrays


def timing(response: ServerResponse) -> tuple[float, float | None]:
    """Return the seconds that a request waited and ran, from `Server-Timing` (W3C; milliseconds), or (0, None)."""
    seconds: dict[str, float] = {}
    for entry in response.headers.get(b"server-timing", b"").decode(errors="replace").split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, text = parameter.partition("=")
            if key == "dur" and _DURATION.fullmatch(text):
                seconds[name] = float(text) / 1000
    return seconds.get("queue", 0.0), seconds.get("compute")


def _places(tensors: Mapping[str, Any], at: int) -> dict[str, tuple[int, int]]:
    places = {}
    for name, tensor in tensors.items():
        parameters = tensor.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if isinstance(size, int):
            places[name] = (at, at + size)
            at += size
    return places


@dataclass(frozen=True, slots=True)
class _Data:
    """Where the elements of one output are."""

    body: bytes | bytearray | memoryview
    place: tuple[int, int] | None  # of the body, unless they are in the JSON
    numbers: list[memoryview]  # arrays of the JSON, to which `data` refers
    most: int  # bytes that they may take


def _read(name: str, tensor: dict[str, Any], datatype: Datatype, data: _Data) -> NDArray[Any]:
    shape = tensor.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > _LARGEST_RANK
        or any(not isinstance(size, int) or size < 0 for size in shape)
    ):
        raise ResponseError(f"gives output {name!r} no shape")
    if tensor.get("datatype") != datatype.name:
        raise ResponseError(
            f"gives output {name!r} as {tensor.get('datatype')}, expected {datatype.name}"
        )
    try:
        if data.place is None:
            array = _from_json(tensor["data"], datatype, data)
        else:
            part = memoryview(data.body)[slice(*data.place)]
            array = (
                _from_strings(part, data.most)
                if datatype.is_string
                else np.frombuffer(part, datatype.dtype)
            )
        return array.reshape(shape)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):
        raise ResponseError(
            f"gives output {name!r} other data than {math.prod(shape)} elements {datatype.name}"
        ) from None


def _from_json(elements: object, datatype: Datatype, data: _Data) -> NDArray[Any]:
    if datatype is BF16:
        raise ValueError
    index = index_of(elements)
    if index is not None:
        return read_numbers(data.numbers[index], datatype.dtype, data.most)
    return np.asarray(elements, datatype.dtype).ravel()


def _json_parts(
    sample: GoldenSample, types: Types, outputs: list[dict[str, Any]]
) -> tuple[bytes, ...]:
    parts: list[bytes] = []
    size = 0
    for name, array in sample.feeds.items():
        datatype = types.inputs[name]
        if datatype is BF16:
            raise UnencodableError(f"input {name!r} is BF16, which JSON cannot represent")
        described = orjson.dumps(_describe(name, array, datatype))[:-1]
        parts += [b"," if parts else b'{"inputs":[', described, b',"data":[']
        for part in _numbers(name, array):
            parts.append(part)
            size += len(part)
            if size > JSON_BYTES:
                why = f"the inputs take more than {JSON_BYTES >> 20} MiB as JSON"
                raise UnencodableError(why)
        parts.append(b"]}")
    return (*parts, b'],"outputs":', orjson.dumps(outputs), b"}")


def _numbers(name: str, array: NDArray[Any]) -> Iterator[bytes]:
    try:
        yield from write_numbers(array)
    except ValueError:
        why = f"input {name!r} has NaN or infinity, which JSON cannot represent"
        raise UnencodableError(why) from None


def _describe(name: str, array: NDArray[Any], datatype: Datatype) -> dict[str, Any]:
    return {"name": name, "datatype": datatype.name, "shape": list(array.shape)}


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _from_strings(data: memoryview, most: int) -> NDArray[Any]:
    texts: list[str] = []
    limit, at = most, 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if end > len(data):
            raise ValueError
        texts.append(str(data[at + 4 : end], "utf-8"))
        most -= _STRING_BYTES + 4 * (end - at - 4)
        if most < 0:
            raise TooLargeError(limit)
        at = end
    array = np.empty(len(texts), object)
    array[:] = texts
    return array
