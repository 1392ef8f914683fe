"""The benchmark's models, each with one request."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from tests.support.questions import MOST_LENGTH, triple
from tests.support.serving import model, real_model, tensor

_Model = tuple[str, ModelProto | Path, NDArray[Any]]


def _dense(name: str, *sizes: int) -> tuple[ModelProto, NDArray[np.float32]]:
    """Return matrix products with a Relu between them, and a request of one row."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], {}, "x"
    for layer, (rows, columns) in enumerate(pairwise(sizes)):
        last = layer == len(sizes) - 2
        weights[f"w{layer}"] = (rng.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)
        product = "y" if last else f"h{layer}"
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [product]))
        if not last:
            value = f"r{layer}"
            nodes.append(helper.make_node("Relu", [product], [value]))
    dense = model(
        nodes,
        [tensor("x", TensorProto.FLOAT, "n", sizes[0])],
        [tensor("y", TensorProto.FLOAT, "n", sizes[-1])],
        weights,
    )
    dense.graph.name = name
    return dense, rng.standard_normal((1, sizes[0])).astype(np.float32)


def _tiny() -> _Model:
    return "16 floats, two layers", *_dense("tiny", 16, 16, 4)


def _image() -> _Model:
    pool = model(
        [helper.make_node("GlobalAveragePool", ["x"], ["y"])],
        [tensor("x", TensorProto.FLOAT, "n", 3, 224, 224)],
        [tensor("y", TensorProto.FLOAT, "n", 3, 1, 1)],
    )
    values = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    return "600 kB image, one pooling layer", pool, values


def _real() -> _Model:
    values = np.random.default_rng(0).integers(0, 256, (1, 2048), np.int32)
    return "magika, 3 MB", real_model("standard_v3_3/model.onnx"), values


def _batching() -> _Model:
    return "256-1024-1024-256, gains from batching", *_dense("batching", 256, 1024, 1024, 256)


def _recognition() -> _Model:
    values = np.random.default_rng(0).random((1, 3, 48, 320), np.float32)
    return "PP-OCRv4 rec, 48 by 320", real_model("ch_PP-OCRv4_rec_infer.onnx"), values


def _lengths() -> _Model:
    numbers = np.arange(1, MOST_LENGTH + 1, dtype=np.int32).reshape(1, -1)
    return f"up to {MOST_LENGTH} numbers, one multiplication", triple(), numbers


MODELS: Final[dict[str, Callable[[], _Model]]] = {
    "tiny": _tiny,
    "image": _image,
    "real": _real,
    "batching": _batching,
    "recognition": _recognition,
    "lengths": _lengths,
}
OPTIONS: Final[dict[str, dict[str, Any]]] = {  # of our server, by model
    "lengths": {"batch_padding": {"x": 0}},
}
