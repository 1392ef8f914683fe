"""A peer: a model of Triton's Python backend, which the server loads as `model.py`.

Several requests arrive only with dynamic batching; they run as one batch.
"""

import os
import sys
from typing import Any

sys.path.insert(0, os.environ["BENCH_SITE_PACKAGES"])  # the backend ignores PYTHONPATH
sys.path.insert(0, os.environ["BENCH_PEERS"])

import numpy as np
import triton_python_backend_utils as pb
from session import load


class TritonPythonModel:
    """One session."""

    def initialize(self, _arguments: dict[str, str]) -> None:
        """Load the model."""
        self.session = load(os.environ["BENCH_MODEL"])
        self.input = self.session.get_inputs()[0].name
        self.output = self.session.get_outputs()[0].name

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer requests."""
        inputs = [
            pb.get_input_tensor_by_name(request, self.input).as_numpy() for request in requests
        ]
        together = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        (results,) = self.session.run(None, {self.input: together})
        answers = []
        first = 0
        for input_ in inputs:
            part = results[first : first + len(input_)]
            first += len(input_)
            answers.append(pb.InferenceResponse([pb.Tensor(self.output, part)]))
        return answers
