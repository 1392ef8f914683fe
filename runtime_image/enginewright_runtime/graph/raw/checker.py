"""Runs onnx.checker on a model. Native code: to be called in a child process."""

from pathlib import Path

import onnx
from onnx import ModelProto

from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.graph.raw import graphs


def checker_error(path: Path, *, full: bool = False) -> str | None:
    """Return the checker's error, with `full` also that of shape inference, or None if the model passes.

    An output need not declare a shape (docs/IR.md of onnx), which the checker demands: it gets one here.
    """
    try:
        model = graphs.parse(path)
        if not _rank_outputs(model):
            onnx.checker.check_model(path, full_check=full)
            return None
        ranked = path.with_name(f".ranked-{path.name}")  # beside the external data
        ranked.write_bytes(model.SerializeToString())
        try:
            onnx.checker.check_model(ranked)
        finally:
            ranked.unlink()
        if full:
            unranked = graphs.parse(path)
            onnx.shape_inference.infer_shapes(unranked, check_type=True, strict_mode=True)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        ValueError,
        RuntimeError,
    ) as error:
        return plain(str(error))
    return None


def _rank_outputs(model: ModelProto) -> bool:
    """Give the tensors among the outputs that declare no shape that of a scalar; return whether there are any."""
    unranked = [
        value
        for value in model.graph.output
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")
    ]
    for value in unranked:
        value.type.tensor_type.shape.SetInParent()
    return bool(unranked)
