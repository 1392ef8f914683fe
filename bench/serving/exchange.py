"""The requests of each server: their bytes, and the tensor in the answer.

Bodies are built once and sent unchanged, by the check and by the load generator.
"""

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from bench.serving.cases import Case

MODEL: Final = "m"
GRPC: Final = "gRPC"
BINARY: Final = "HTTP binary"
JSON: Final = "HTTP JSON"
OWN_JSON: Final = "HTTP own JSON"
_SECONDS: Final = 60
_MEGABYTES: Final = 1 << 20
_GRPC_PATH: Final = "/inference.GRPCInferenceService/ModelInfer"
_JSON_TYPE: Final = {"content-type": "application/json"}


class WrongAnswerError(Exception):
    """A server answered with an error, or with other values than `session.run`."""


@dataclass(frozen=True)
class Request:
    """What one transport sends to a model; `body` is without gRPC's frame of five bytes."""

    transport: str
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def payload(self) -> bytes:
        """The bytes after the headers."""
        if self.transport == GRPC:
            return b"\0" + len(self.body).to_bytes(4, "big") + self.body
        return self.body


def request(transport: str, case: Case, path: str = f"/v2/models/{MODEL}/infer") -> Request:
    """Build a request to `path` of an HTTP server, or of gRPC."""
    return _BUILDERS[transport](case, path)


def check(request: Request, case: Case, port: int) -> int:
    """Send a request and compare the values; return the size of the answer's body in bytes.

    Raises:
        WrongAnswerError: The status is not success, or the values differ.
        OSError: There is no connection.
    """
    values, size = _ask_grpc(request, port) if request.transport == GRPC else _ask(request, port)
    expected = case.y.ravel()
    if values.shape != expected.shape or not np.allclose(values, expected, rtol=1e-3, atol=1e-4):
        raise WrongAnswerError(f"{values[:4]} of {values.size} values, not {expected[:4]}")
    return size


def _infer_document(case: Case, **tensor: object) -> dict[str, Any]:
    about = {"name": case.input, "shape": list(case.x.shape), "datatype": case.datatype}
    return {"inputs": [about | tensor]}


def _binary(case: Case, path: str) -> Request:
    document = _infer_document(case, parameters={"binary_data_size": case.x.nbytes})
    document["parameters"] = {"binary_data_output": True}
    header = json.dumps(document).encode()
    headers = {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(header)),
    }
    return Request(BINARY, path, header + case.x.tobytes(), headers)


def _json(case: Case, path: str) -> Request:
    document = _infer_document(case, data=case.x.ravel().tolist())
    return Request(JSON, path, json.dumps(document).encode(), _JSON_TYPE)


def _own_json(case: Case, path: str) -> Request:
    return Request(OWN_JSON, path, json.dumps({"x": case.x.tolist()}).encode(), _JSON_TYPE)


def _grpc(case: Case, _path: str) -> Request:
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    message.inputs.add(name=case.input, datatype=case.datatype, shape=case.x.shape)
    message.raw_input_contents.append(case.x.tobytes())
    headers = {"content-type": "application/grpc", "te": "trailers"}
    return Request(GRPC, _GRPC_PATH, message.SerializeToString(), headers)


_BUILDERS: Final[dict[str, Callable[[Case, str], Request]]] = {
    BINARY: _binary,
    JSON: _json,
    OWN_JSON: _own_json,
    GRPC: _grpc,
}


def _ask(request: Request, port: int) -> tuple[NDArray[np.float32], int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    try:
        connection.request("POST", request.path, request.body, dict(request.headers))
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise WrongAnswerError(f"status {answer.status}: {body[:300]!r}")
        header_length = answer.headers.get("Inference-Header-Content-Length")
    except http.client.HTTPException as error:
        raise WrongAnswerError(f"no HTTP answer: {error!r}") from error
    finally:
        connection.close()
    return read_values(request.transport, header_length, body), len(body)


def read_values(transport: str, header_length: str | None, body: bytes) -> NDArray[np.float32]:
    """Return the values in the body of an answer over HTTP; `header_length` is its Inference-Header-Content-Length."""
    if header_length is not None and int(header_length) < len(body):
        return np.frombuffer(body, np.float32, offset=int(header_length))
    document = json.loads(body)
    if transport in {JSON, BINARY}:
        document = document["outputs"][0]["data"]
    return np.asarray(document, np.float32).ravel()


def _ask_grpc(request: Request, port: int) -> tuple[NDArray[np.float32], int]:
    limits = [("grpc.max_receive_message_length", 64 * _MEGABYTES)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", limits) as channel:
        ask = channel.unary_unary(request.path)
        try:
            raw = ask(request.body, timeout=_SECONDS)
        except grpc.RpcError as error:
            raise WrongAnswerError(f"gRPC status {error.code()}: {error.details()}") from error
    answer = service_pb2.ModelInferResponse.FromString(raw)
    if answer.raw_output_contents:
        return np.frombuffer(answer.raw_output_contents[0], np.float32), len(raw) + 5
    return np.asarray(answer.outputs[0].contents.fp32_contents, np.float32), len(raw) + 5
