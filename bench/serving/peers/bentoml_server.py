"""A peer: a BentoML service, `bentoml serve bentoml_server:Onnx`."""

import os

import bentoml
import numpy as np
from session import load


@bentoml.service(workers=1, logging={"access": {"enabled": False}}, metrics={"enabled": False})
class Onnx:
    """One session."""

    def __init__(self) -> None:
        self.session = load(os.environ["BENCH_MODEL"])
        self.input = self.session.get_inputs()[0]
        self.type = np.int32 if self.input.type == "tensor(int32)" else np.float32

    @bentoml.api
    def infer(self, x: np.ndarray) -> np.ndarray:
        """Answer one request."""
        (result,) = self.session.run(None, {self.input.name: x.astype(self.type, copy=False)})
        return result
