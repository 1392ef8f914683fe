"""Sends golden samples to the pod's server, on the path of clients' requests."""

from collections.abc import Mapping
from typing import Any, Final

from enginewright_contract.reasons import Reason
from enginewright_runtime.session.device_errors import find_lost_device
from enginewright_runtime.session.samples import GoldenSample
from numpy.typing import NDArray

from enginewright_serving.sidecar.client import Client, ServerResponse
from enginewright_serving.sidecar.json_tensors import JSON_BYTES
from enginewright_serving.sidecar.protocol import EncodedRequest, decode, encode
from enginewright_serving.sidecar.samples import Types

_LENGTH: Final = b"inference-header-content-length"
_BUSY: Final = frozenset({408, 429, 503, 504})  # backpressure: proves nothing about the outputs
_FAILS: Final = frozenset({400, 500})  # inputs are rejected, or their run fails
_ERROR_BYTES: Final = 64 * 1024  # of an error response that are read


class UnansweredError(Exception):
    """A response that proves nothing about the outputs."""


class FailsError(Exception):
    """The server does not run the sample."""

    def __init__(self, response: ServerResponse) -> None:
        self.body = bytes(response.body[:_ERROR_BYTES])
        cause = find_lost_device(self.body.decode(errors="replace"))
        self.reason = Reason.DEVICE_LOST if cause else Reason.RUNS_FAIL
        detail = f": {cause}" if cause else ""
        super().__init__(f"the server returned {response.status} for a golden sample{detail}")


class Inferences:
    """The sidecar's inferences; the client runs one at a time."""

    def __init__(self, client: Client, model: str, seconds: float, own: str = "") -> None:
        self._client = client
        self._path = f"/v2/models/{model}/infer"
        self._own = own
        self.seconds = seconds
        self.binary = True  # whether the server supports the binary extension

    def encode(self, sample: GoldenSample, types: Types) -> EncodedRequest:
        """Return the request for the outputs that `sample` has; raises UnencodableError."""
        return encode(sample, types, binary=self.binary)

    async def post(self, request: EncodedRequest, defer: float) -> ServerResponse:
        """Return the response with outputs; our server may defer the inference for `defer` seconds.

        Raises UnreachableError without a complete response, UnansweredError if the server was too busy or the status
        is not one of an inference, FailsError if the server rejects the inputs or their run fails.
        """
        headers = self._own
        if defer:
            headers += f"Enginewright-Defer: {defer * 1000:.0f}\r\n"
        if request.json_length is None:
            headers += "Content-Type: application/json\r\n"
        else:
            headers += (
                "Content-Type: application/octet-stream\r\n"
                f"Inference-Header-Content-Length: {request.json_length}\r\n"
            )
        response = await self._client.post(self._path, headers, request.parts, self.seconds + defer)
        if response.status in _BUSY:
            raise UnansweredError(f"the server is too busy for golden samples ({response.status})")
        if response.status in _FAILS:
            raise FailsError(response)
        if response.status != 200:
            raise UnansweredError(f"the server returned {response.status} for a golden sample")
        return response

    @staticmethod
    def read(
        response: ServerResponse, expected: Mapping[str, NDArray[Any]], types: Types
    ) -> dict[str, NDArray[Any]]:
        """Return the `expected` outputs of a response; raise ResponseError, or TooLargeError if its JSON takes too much memory."""
        length = response.headers.get(_LENGTH, b"")
        json_length = int(length) if length.isdigit() else None
        most = max(JSON_BYTES, sum(array.nbytes for array in expected.values()))
        return decode(response.body, json_length, expected, types, most)
