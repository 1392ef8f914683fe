"""Runs onnx.checker on a model. Native code: to be called in a child process."""

from pathlib import Path

import onnx

from enginewright_runtime.core.ort_messages import plain


def checker_error(path: Path, *, full: bool = False) -> str | None:
    """Return the checker's error, with `full` also that of shape inference, or None if the model passes."""
    try:
        onnx.checker.check_model(path, full_check=full)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        ValueError,
        RuntimeError,
    ) as error:
        return plain(str(error))
    return None
