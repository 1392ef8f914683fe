"""Models built for one step."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET: Final = 17


def save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any]
) -> Path:
    """Write a model; return its path."""
    graph = helper.make_graph(
        nodes,
        path.stem,
        inputs,
        outputs,
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
    onnx.save(model, path)
    return path


def value(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> Any:  # noqa: ANN401 - onnx has no types
    """Return an input or output."""
    return helper.make_tensor_value_info(name, kind, list(shape))


def encoder(
    path: Path, *, without_kernel: bool, layers: int = 6, width: int = 768, length: int = 128
) -> Path:
    """Write a text encoder's blocks, x [batch, length, width] to y, with normalized queries and keys.

    The normalization of queries and keys, as newer language models have it, is exported as
    MeanVarianceNormalization, for which ONNX Runtime's CUDA provider has no kernel, or as LayerNormalization,
    which computes the same.
    """
    random = np.random.default_rng(3)
    heads = width // 64
    weights: dict[str, Any] = {
        "split": np.array([0, 0, heads, 64], np.int64),
        "merge": np.array([0, 0, width], np.int64),
        "scale": np.array(0.125, np.float32),
        "gain": np.ones(width, np.float32),
        "bias": np.zeros(width, np.float32),
        "one": np.ones(64, np.float32),
        "zero": np.zeros(64, np.float32),
    }
    nodes: list[Any] = []

    def add(operator: str, inputs: list[str], output: str, **attributes: Any) -> str:  # noqa: ANN401 - onnx's
        nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def weight(name: str, rows: int, columns: int) -> str:
        array = random.standard_normal((rows, columns)) / np.sqrt(rows)
        weights[name] = array.astype(np.float32)
        return name

    def normalize(tensor: str) -> str:
        if without_kernel:
            return add("MeanVarianceNormalization", [tensor], f"{tensor}/norm", axes=[3])
        return add("LayerNormalization", [tensor, "one", "zero"], f"{tensor}/norm", epsilon=1e-9)

    x = "x"
    for layer in range(layers):
        name = f"layer{layer}"
        parts = {}
        for part in ("query", "key", "value"):
            flat = add("MatMul", [x, weight(f"{name}/{part}/w", width, width)], f"{name}/{part}")
            shaped = add("Reshape", [flat, "split"], f"{name}/{part}/heads")
            parts[part] = add("Transpose", [shaped], f"{name}/{part}/t", perm=[0, 2, 1, 3])
        query, key = normalize(parts["query"]), normalize(parts["key"])
        turned = add("Transpose", [key], f"{name}/key/turned", perm=[0, 1, 3, 2])
        scores = add(
            "Mul", [add("MatMul", [query, turned], f"{name}/scores"), "scale"], f"{name}/scaled"
        )
        shares = add("Softmax", [scores], f"{name}/shares", axis=-1)
        mixed = add("MatMul", [shares, parts["value"]], f"{name}/mixed")
        back = add("Transpose", [mixed], f"{name}/back", perm=[0, 2, 1, 3])
        joined = add("Reshape", [back, "merge"], f"{name}/joined")
        out = add("MatMul", [joined, weight(f"{name}/out/w", width, width)], f"{name}/out")
        x = add(
            "LayerNormalization",
            [add("Add", [x, out], f"{name}/sum1"), "gain", "bias"],
            f"{name}/n1",
        )
        wide = add(
            "Relu",
            [add("MatMul", [x, weight(f"{name}/up/w", width, 4 * width)], f"{name}/up")],
            f"{name}/relu",
        )
        down = add("MatMul", [wide, weight(f"{name}/down/w", 4 * width, width)], f"{name}/down")
        x = add(
            "LayerNormalization",
            [add("Add", [x, down], f"{name}/sum2"), "gain", "bias"],
            f"{name}/n2",
        )
    add("Identity", [x], "y")
    return save(
        path,
        nodes,
        [value("x", "batch", length, width)],
        [value("y", "batch", length, width)],
        weights,
    )


def grows(path: Path) -> Path:
    """Write x [1, 64] and a size to y [rows, 1]: one request may need any amount of memory."""
    nodes = [
        helper.make_node("Expand", ["x", "size"], ["large"], name="expand"),
        helper.make_node("MatMul", ["large", "w"], ["y"], name="product"),
    ]
    inputs = [value("x", 1, 64), value("size", 2, kind=TensorProto.INT64)]
    return save(path, nodes, inputs, [value("y", "rows", 1)], {"w": np.ones((64, 1), np.float32)})
