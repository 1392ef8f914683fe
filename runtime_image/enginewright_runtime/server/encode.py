"""Tensors to response bodies; large ones are handed to the socket as they lie in memory."""

import struct
from typing import Any, Final

import orjson
from numpy.typing import NDArray

from enginewright_runtime.server.decode import Call
from enginewright_runtime.server.message import BINARY_TYPE, JOINED_BYTES, JSON_TYPE, Response
from enginewright_runtime.server.signature import Signature

_LENGTH: Final = struct.Struct("<I")


def encode(
    model: str, version: str, signature: Signature, call: Call, arrays: list[NDArray[Any]]
) -> Response:
    """Return the answer to `call` with `arrays`, which are in the order of `call.outputs`.

    In JSON, NaN and infinities become null, for JSON has none of them; binary data keeps them.
    """
    document: dict[str, Any] = {"model_name": model, "model_version": version}
    if call.identifier is not None:
        document["id"] = call.identifier
    outputs: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = [b""]
    length = 0
    for name, as_bytes, array in zip(call.outputs, call.binary, arrays, strict=True):
        datatype = signature.outputs[name].datatype
        output: dict[str, Any] = {
            "name": name,
            "datatype": datatype.name,
            "shape": array.shape,
        }
        if as_bytes:
            part = _strings(array) if datatype.is_string else _bytes(array)
            size = len(part)
            output["parameters"] = {"binary_data_size": size}
            parts.append(part)
            length += size
        else:
            flat = array.reshape(-1)
            output["data"] = flat.tolist() if datatype.is_string else flat
        outputs.append(output)
    document["outputs"] = outputs
    header = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    parts[0] = header
    length += len(header)
    if any(call.binary):
        headers = b"%bInference-Header-Content-Length: %d\r\n" % (BINARY_TYPE, len(header))
    else:
        headers = JSON_TYPE
    return Response(200, headers, parts, length)


def _bytes(array: NDArray[Any]) -> bytes | memoryview:
    if array.nbytes <= JOINED_BYTES:
        return array.tobytes()
    return array.reshape(-1).view("u1").data


def _strings(array: NDArray[Any]) -> bytes:
    """Write each string as a 4-byte little-endian length and its UTF-8 bytes."""
    parts: list[bytes] = []
    for text in array.flat:
        encoded = str(text).encode()
        parts.append(_LENGTH.pack(len(encoded)))
        parts.append(encoded)
    return b"".join(parts)
