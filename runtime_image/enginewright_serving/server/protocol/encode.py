"""Encodes tensors into response bodies; large ones are written to the socket without a copy."""

from collections.abc import Iterable
from typing import Any, Final

import orjson
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import Signature
from numpy.typing import NDArray

from enginewright_serving.binary_tensors import tensor_bytes
from enginewright_serving.server.protocol.inference_request import InferenceRequest
from enginewright_serving.transport.message import BINARY_TYPE, JSON_TYPE, HttpResponse

_CACHED_HEADERS: Final = 16  # of responses to requests with the same JSON, by output shapes
JSON_ELEMENTS: Final = 4_000_000  # of one output
_PIECE: Final = 16 * 1024  # elements that are encoded with the GIL held, in about a millisecond
_STRING_ELEMENTS: Final = 4  # that take as long as a string, or as many of its characters
_PLACE: Final = b"\0"  # of an output that is encoded in pieces; JSON has no such byte


class Encoder:
    """Encodes the responses of one model."""

    def __init__(self, model: str, version: str, signature: Signature) -> None:
        self._start: dict[str, Any] = {"model_name": model, "model_version": version}
        self._datatypes = {name: tensor.datatype for name, tensor in signature.outputs.items()}
        self._strings = {name for name, kind in self._datatypes.items() if kind.is_string}

    def encode(self, plan: InferenceRequest, arrays: list[NDArray[Any]]) -> HttpResponse:
        """Return the response with `arrays`, in the order of `plan.outputs`; in JSON, NaN and infinities become null."""
        if False in plan.binary:
            return self._encode_json(plan, arrays)
        tensors = [tensor_bytes(array) for array in arrays]
        header = self._binary_header(plan, arrays, tensors)
        return _binary_response(header, tensors)

    def check(self, plan: InferenceRequest, arrays: list[NDArray[Any]]) -> None:
        """Refuse to encode outputs that are too large for JSON: RequestError 400."""
        for name, as_bytes, array in zip(plan.outputs, plan.binary, arrays, strict=True):
            if array.size > JSON_ELEMENTS and not as_bytes:
                raise RequestError(
                    400,
                    f"output {name!r} has {array.size} elements, too many for JSON;"
                    " set its parameter 'binary_data' to true",
                )

    def is_slow(self, plan: InferenceRequest, arrays: list[NDArray[Any]]) -> bool:
        """Return whether encoding may take more than a millisecond."""
        return encodes_slowly(arrays, plan.binary)

    def _binary_header(
        self, plan: InferenceRequest, arrays: list[NDArray[Any]], tensors: list[bytes | memoryview]
    ) -> bytes:
        """Return the JSON of a binary response, cached unless it contains sizes of strings."""
        shapes = tuple([array.shape for array in arrays])
        header = plan.answers.get(shapes)
        if header is None:
            header = self._dump(
                plan,
                [
                    self._describe(name, array) | {"parameters": {"binary_data_size": len(tensor)}}
                    for name, array, tensor in zip(plan.outputs, arrays, tensors, strict=True)
                ],
            )
            if len(plan.answers) < _CACHED_HEADERS and self._strings.isdisjoint(plan.outputs):
                plan.answers[shapes] = header
        return header

    def _encode_json(self, plan: InferenceRequest, arrays: list[NDArray[Any]]) -> HttpResponse:
        tensors: list[bytes | memoryview] = []
        outputs: list[dict[str, Any]] = []
        large: list[NDArray[Any]] = []
        for name, as_bytes, array in zip(plan.outputs, plan.binary, arrays, strict=True):
            output = self._describe(name, array)
            if as_bytes:
                tensor = tensor_bytes(array)
                output["parameters"] = {"binary_data_size": len(tensor)}
                tensors.append(tensor)
            elif array.size > _PIECE:
                output["data"] = orjson.Fragment(_PLACE)
                large.append(array.reshape(-1))
            else:
                output["data"] = _plain(array.reshape(-1))
            outputs.append(output)
        parts = _fill(self._dump(plan, outputs), large)
        if True in plan.binary:
            return _binary_response(b"".join(parts), tensors)
        return HttpResponse(200, JSON_TYPE, parts, sum(map(len, parts)))

    def _describe(self, name: str, array: NDArray[Any]) -> dict[str, Any]:
        return {"name": name, "datatype": self._datatypes[name].name, "shape": array.shape}

    def _dump(self, plan: InferenceRequest, outputs: list[dict[str, Any]]) -> bytes:
        document = dict(self._start)
        if plan.identifier is not None:
            document["id"] = plan.identifier
        document["outputs"] = outputs
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _binary_response(header: bytes, tensors: list[bytes | memoryview]) -> HttpResponse:
    headers = b"%bInference-Header-Content-Length: %d\r\n" % (BINARY_TYPE, len(header))
    length = len(header) + sum(map(len, tensors))
    return HttpResponse(200, headers, [header, *tensors], length)


def _fill(header: bytes, arrays: list[NDArray[Any]]) -> list[bytes | memoryview]:
    start, *rest = header.split(_PLACE)
    parts: list[bytes | memoryview] = [start]
    for array, following in zip(arrays, rest, strict=True):
        for at in range(0, array.size, _PIECE):
            piece = _plain(array[at : at + _PIECE])
            text = orjson.dumps(piece, option=orjson.OPT_SERIALIZE_NUMPY)
            parts += [b"," if at else b"[", memoryview(text)[1:-1]]
        parts += [b"]", following]
    return parts


def _plain(flat: NDArray[Any]) -> NDArray[Any] | list[Any]:
    """Return what orjson encodes: it takes no arrays of strings."""
    return flat.tolist() if flat.dtype == object else flat


def encodes_slowly(arrays: Iterable[NDArray[Any]], binary: Iterable[bool]) -> bool:
    """Return whether encoding outputs, each as bytes or not, may take more than a millisecond."""
    elements = 0
    for array, as_bytes in zip(arrays, binary, strict=True):
        if array.dtype == object:
            elements += _STRING_ELEMENTS * array.size
            if elements <= _PIECE:
                elements += sum(map(len, array.flat)) // _STRING_ELEMENTS
        elif not as_bytes:
            elements += array.size
    return elements > _PIECE
