"""What onnx.checker has against a model. Native code: for child processes."""

from pathlib import Path

import onnx

from enginewright_runtime.core.ort_messages import plain


def complaint(path: Path, *, full: bool = False) -> str | None:
    """Return what the checker says against a model, with `full` also shape inference; None: nothing."""
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
