"""Recognizes folders and archives that hold a model in another format than ONNX, by the names in them. Pure."""

from collections.abc import Sequence
from typing import Final

MODEL_SUFFIX: Final = ".onnx"
# ends of names, and what they tell; the first that is there counts
_FORMATS: Final = (
    (".mlmodel", "a Core ML package"),
    ("saved_model.pb", "a TensorFlow SavedModel"),
    (".tflite", "a TensorFlow Lite model"),
    (".engine", "a serialized TensorRT engine"),
    (".plan", "a serialized TensorRT engine"),
    (".safetensors", "weights in safetensors files, without a graph"),
    (".gguf", "a GGUF model"),
    # of torch.save, and of older exports of transformers; a zip of torch.save holds data.pkl
    (".pt", "a PyTorch checkpoint"),
    (".pth", "a PyTorch checkpoint"),
    ("data.pkl", "a PyTorch checkpoint"),
    ("pytorch_model.bin", "a PyTorch checkpoint"),
    (".keras", "a Keras model"),
    (".h5", "a Keras model"),
)


def name_format(paths: Sequence[str]) -> str | None:
    """Return the format of a model in files with these paths, to follow "is"; None if none is recognized."""
    lowered = [path.lower() for path in paths]
    return next(
        (what for end, what in _FORMATS if any(path.endswith(end) for path in lowered)), None
    )
