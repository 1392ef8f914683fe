"""Encodes outputs into ModelInferResponse messages; large ones are written to the socket without a copy."""

from typing import Any, Final

import orjson
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import Signature
from numpy.typing import NDArray

from enginewright_serving.binary_tensors import tensor_bytes
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.protocol.encode import encodes_slowly
from enginewright_serving.server.protocol.grpc import typed_contents
from enginewright_serving.server.protocol.grpc.decode import GrpcPlan, GrpcRequest
from enginewright_serving.server.protocol.grpc.messages import (
    RAW_OUTPUT_CONTENTS,
    RESPONSE_ID,
    InferResponse,
)
from enginewright_serving.server.protocol.grpc.wire import length_delimited
from enginewright_serving.transport.message import Body

_RAW: Final = RAW_OUTPUT_CONTENTS << 3 | 2
_ID: Final = RESPONSE_ID << 3 | 2
_CACHED_HEADS: Final = 16  # of responses to requests that differ in identifier and tensors only
TYPED_ELEMENTS: Final = 1_000_000  # of one output: encoding holds the GIL for up to 100 ms

Parts = list[bytes | memoryview]


class GrpcEncoder:
    """Encodes the responses of one model."""

    def __init__(self, model: str, version: str, signature: Signature) -> None:
        self._model = model
        self._version = version
        self._datatypes = {name: tensor.datatype for name, tensor in signature.outputs.items()}
        self._strings = {name for name, kind in self._datatypes.items() if kind.is_string}

    def check(self, plan: GrpcPlan, arrays: list[NDArray[Any]]) -> None:
        """Refuse to encode outputs that are too large for typed contents: RequestError 400."""
        for name, array in zip(plan.outputs, arrays, strict=True):
            if array.size > TYPED_ELEMENTS and not plan.raw:
                raise RequestError(
                    400,
                    f"output {name!r} has {array.size} elements, too many for typed contents;"
                    " set the parameter 'binary_data_output' to true",
                )

    def is_slow(self, plan: GrpcPlan, arrays: list[NDArray[Any]]) -> bool:
        """Return whether encoding may take more than a millisecond."""
        return encodes_slowly(arrays, [plan.raw] * len(arrays))

    def encode(self, request: GrpcRequest, arrays: list[NDArray[Any]]) -> Parts:
        """Return the serialized response in parts, with `arrays` in the order of the outputs."""
        plan, identifier = request.plan, request.identifier
        start = length_delimited(_ID, len(identifier)) + identifier if identifier else b""
        if not plan.raw:
            return [start + self._encode_typed(plan, arrays)]
        tensors = [tensor_bytes(array) for array in arrays]
        before = self._before(plan, arrays, tensors)
        parts: Parts = [start + before[0]]
        for head, tensor in zip(before[1:], tensors, strict=True):
            parts += [head, tensor]
        return parts

    def _before(
        self, plan: GrpcPlan, arrays: list[NDArray[Any]], tensors: list[bytes | memoryview]
    ) -> tuple[bytes, ...]:
        """Return the description of the outputs, and the bytes before each one's raw contents."""
        shapes = tuple([array.shape for array in arrays])
        before = plan.answers.get(shapes)
        if before is None:
            outputs = [self._describe(*pair) for pair in zip(plan.outputs, arrays, strict=True)]
            sizes = [length_delimited(_RAW, len(tensor)) for tensor in tensors]
            before = (self._dump(outputs), *sizes)
            if len(plan.answers) < _CACHED_HEADS and self._strings.isdisjoint(plan.outputs):
                plan.answers[shapes] = before
        return before

    def _encode_typed(self, plan: GrpcPlan, arrays: list[NDArray[Any]]) -> bytes:
        outputs: list[dict[str, Any]] = []
        for name, array in zip(plan.outputs, arrays, strict=True):
            contents = typed_contents.write(self._datatypes[name], array)
            outputs.append(self._describe(name, array) | {"contents": contents})
        return self._dump(outputs)

    def _describe(self, name: str, array: NDArray[Any]) -> dict[str, Any]:
        return {"name": name, "datatype": self._datatypes[name].name, "shape": array.shape}

    def _dump(self, outputs: list[dict[str, Any]]) -> bytes:
        response = InferResponse(
            model_name=self._model, model_version=self._version, outputs=outputs
        )
        serialized: bytes = response.SerializeToString()
        return serialized


def http_request(plan: GrpcPlan, feeds: Feeds) -> tuple[Body, int]:
    """Return the body of the request in binary, and the bytes of its JSON."""
    tensors = [tensor_bytes(feeds[item.tensor.name]) for item in plan.inputs]
    inputs = [
        {
            "name": item.tensor.name,
            "datatype": item.tensor.datatype.name,
            "shape": item.shape,
            "parameters": {"binary_data_size": len(tensor)},
        }
        for item, tensor in zip(plan.inputs, tensors, strict=True)
    ]
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in plan.outputs]
    header = orjson.dumps({"inputs": inputs, "outputs": outputs})
    body = Body(len(header) + sum(map(len, tensors)), len(header))
    view, at = body.view(), 0
    for part in (header, *tensors):
        view[at : at + len(part)] = part
        at += len(part)
    return body, len(header)
