"""A peer for comparison: KServe's Python server with a model in ONNX Runtime."""

import argparse
import logging
from typing import Any

import onnxruntime as ort
from kserve import InferOutput, InferResponse, Model, ModelServer


class OnnxModel(Model):
    """One session, as in KServe's guide for custom models."""

    def __init__(self, path: str) -> None:
        super().__init__("m")
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.ready = True

    def predict(self, payload: Any, *_: Any, **__: Any) -> InferResponse:  # noqa: ANN401 - KServe's
        """Answer one request with one FP32 input, in binary."""
        result = self.session.run(None, {"x": payload.inputs[0].as_numpy()})[0]
        output = InferOutput("y", list(result.shape), "FP32")
        output.set_data_from_numpy(result, binary_data=True)
        return InferResponse(payload.id or "none", "m", [output])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    server = ModelServer(
        http_port=arguments.port,
        enable_grpc=False,
        enable_latency_logging=False,
    )
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)  # as in production
    server.start([OnnxModel(arguments.model)])
