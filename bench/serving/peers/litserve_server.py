"""A peer: LitServe with one worker."""

import os
from typing import Any

import litserve
import numpy as np
from numpy.typing import NDArray
from session import load
from typing_extensions import override


class OnnxApi(litserve.LitAPI):
    """One session."""

    @override
    def setup(self, device: str) -> None:
        self.session = load(os.environ["BENCH_MODEL"])
        self.input = self.session.get_inputs()[0]
        self.type = np.int32 if self.input.type == "tensor(int32)" else np.float32

    @override
    def decode_request(self, request: dict[str, Any]) -> NDArray[Any]:
        return np.asarray(request["x"], self.type)

    @override
    def predict(self, x: NDArray[Any]) -> NDArray[np.float32]:
        (result,) = self.session.run(None, {self.input.name: x})
        return result

    @override
    def encode_response(self, output: NDArray[np.float32]) -> list[Any]:
        return output.tolist()


if __name__ == "__main__":
    server = litserve.LitServer(OnnxApi(), accelerator="cpu", workers_per_device=1, timeout=120)
    server.run(
        host="127.0.0.1",
        port=int(os.environ["BENCH_HTTP_PORT"]),
        generate_client_file=False,
        num_api_servers=1,
        log_level="warning",
    )
