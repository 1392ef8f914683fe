"""The one thing that all Python peers have in common: a session with one thread."""

import onnxruntime as ort


def load(model: str) -> ort.InferenceSession:
    """Return a session on the CPU; one thread runs a model."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
