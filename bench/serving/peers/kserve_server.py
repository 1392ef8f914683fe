"""A peer: KServe's Python server with a custom model, as in KServe's guide."""

import logging
import os
from typing import Any

from kserve import InferOutput, InferResponse, Model, ModelServer
from session import load


class OnnxModel(Model):
    """One session."""

    def __init__(self, path: str) -> None:
        super().__init__("m")
        self.session = load(path)
        self.input = self.session.get_inputs()[0].name
        self.output = self.session.get_outputs()[0].name
        self.ready = True

    def predict(self, payload: Any, *_: Any, **__: Any) -> InferResponse:  # noqa: ANN401 - KServe's
        """Answer one request, in binary."""
        (result,) = self.session.run(None, {self.input: payload.inputs[0].as_numpy()})
        output = InferOutput(self.output, list(result.shape), "FP32")
        output.set_data_from_numpy(result, binary_data=True)
        return InferResponse(payload.id or "none", "m", [output])


if __name__ == "__main__":
    server = ModelServer(
        http_port=int(os.environ["BENCH_HTTP_PORT"]),
        grpc_port=int(os.environ["BENCH_GRPC_PORT"]),
        enable_latency_logging=False,
    )
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)  # as in production
    server.start([OnnxModel(os.environ["BENCH_MODEL"])])
