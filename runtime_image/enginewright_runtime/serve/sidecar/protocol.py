"""The client's side of the Open Inference Protocol v2: encodes requests, decodes responses.

Tensors are binary (binary tensor data extension) if the server announces it, otherwise JSON, since
the sidecar also runs with other servers.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from enginewright_runtime.serve.server.encode import encode_strings
from enginewright_runtime.serve.sidecar.client import ServerResponse
from enginewright_runtime.serve.sidecar.samples import Types
from enginewright_runtime.session.datatypes import BF16, Datatype
from enginewright_runtime.session.samples import GoldenSample

BINARY_EXTENSION: Final = "binary_tensor_data"
_LARGEST_RANK: Final = 32
_DURATION: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")


class ResponseError(ValueError):
    """The server returned 200 with a response that does not match the request."""


class UnencodableError(ValueError):
    """The protocol cannot carry this sample to this server."""


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """The body of a request, in parts, so that large tensors are sent without a copy."""

    parts: tuple[bytes | memoryview, ...]
    json_length: int | None  # None: the complete body is JSON


def encode(sample: GoldenSample, types: Types, *, binary: bool) -> EncodedRequest:
    """Return the request for the outputs that `sample` has.

    Raises:
        UnencodableError: JSON cannot represent one of the inputs.
    """
    inputs: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    for name, array in sample.feeds.items():
        datatype = types.inputs[name]
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": datatype.name,
            "shape": list(array.shape),
        }
        if binary:
            part = encode_strings(array) if datatype.is_string else _bytes(array)
            tensor["parameters"] = {"binary_data_size": len(part)}
            parts.append(part)
        else:
            tensor["data"] = _json(name, array, datatype)
        inputs.append(tensor)
    outputs = [
        {"name": name, "parameters": {"binary_data": True}} if binary else {"name": name}
        for name in sample.expected
    ]
    header = orjson.dumps({"inputs": inputs, "outputs": outputs})
    return EncodedRequest((header, *parts), len(header) if binary else None)


def decode(
    body: bytes | bytearray | memoryview,
    json_length: int | None,
    wanted: Mapping[str, Any] | None,
    types: Types,
) -> dict[str, NDArray[Any]]:
    """Return the outputs `wanted` of a response, each in its declared shape; None: all of `types`.

    Raises:
        ResponseError: it does not match the request.
    """
    if json_length is not None and not 0 < json_length <= len(body):
        raise ResponseError(f"declares {json_length} of its {len(body)} bytes as JSON")
    try:
        document = orjson.loads(body if json_length is None else memoryview(body)[:json_length])
        tensors = {tensor["name"]: tensor for tensor in document["outputs"]}
    except (ValueError, KeyError, TypeError):
        raise ResponseError("is not a JSON object with outputs") from None
    places = _places(tensors, json_length or len(body))
    arrays = {}
    for name in types.outputs.keys() & tensors.keys() if wanted is None else wanted:
        if name not in tensors:
            raise ResponseError(f"has no output {name!r}")
        arrays[name] = _read(name, tensors[name], types.outputs[name], body, places.get(name))
    return arrays


def timing(response: ServerResponse) -> tuple[float, float | None]:
    """Return the seconds that a request waited and was in the model, as its response reports.

    Read from `Server-Timing` (W3C; milliseconds); (0, None) where a server sends none.
    """
    seconds: dict[str, float] = {}
    for entry in response.headers.get(b"server-timing", b"").decode(errors="replace").split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, text = parameter.partition("=")
            if key == "dur" and _DURATION.fullmatch(text):
                seconds[name] = float(text) / 1000
    return seconds.get("queue", 0.0), seconds.get("compute")


def _places(tensors: Mapping[str, Any], at: int) -> dict[str, tuple[int, int]]:
    """Return start and end of the binary outputs, which are in the order of the response."""
    found = {}
    for name, tensor in tensors.items():
        parameters = tensor.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if isinstance(size, int):
            found[name] = (at, at + size)
            at += size
    return found


def _read(
    name: str,
    tensor: dict[str, Any],
    datatype: Datatype,
    body: bytes | bytearray | memoryview,
    place: tuple[int, int] | None,
) -> NDArray[Any]:
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
        if place is None:
            array = _from_json(tensor["data"], datatype)
        elif datatype.is_string:
            array = _from_strings(bytes(body[place[0] : place[1]]))
        else:
            array = np.frombuffer(memoryview(body)[place[0] : place[1]], datatype.dtype)
        return array.reshape(shape)
    except (ValueError, TypeError, KeyError, OverflowError):
        raise ResponseError(
            f"gives output {name!r} other data than {math.prod(shape)} elements {datatype.name}"
        ) from None


def _from_json(data: object, datatype: Datatype) -> NDArray[Any]:
    if datatype is BF16:
        raise ValueError
    return np.asarray(data, datatype.dtype).ravel()  # null becomes NaN


def _json(name: str, array: NDArray[Any], datatype: Datatype) -> list[Any]:
    if datatype is BF16:
        raise UnencodableError(f"input {name!r} is BF16, which JSON cannot represent")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UnencodableError(f"input {name!r} has NaN or infinity, which JSON cannot represent")
    data: list[Any] = array.ravel().tolist()
    return data


def _bytes(array: NDArray[Any]) -> memoryview:
    """Return the elements' bytes, without a copy where the array is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _from_strings(data: bytes) -> NDArray[Any]:
    found: list[str] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if end > len(data):
            raise ValueError
        found.append(data[at + 4 : end].decode())
        at = end
    array = np.empty(len(found), object)
    array[:] = found
    return array
