"""Revisions of one small model, for demo and tests: right ones, and one that is right but slow."""

from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from hack.samples.load import WIDTH

SLOW = 400  # matrix products: about 2 ms instead of 10 us


def linear(seed: int, *, name: str = "x", work: int = 0) -> ModelProto:
    """Return `name` [n, 16] to y [n, 4], with `work` matrix products whose result is multiplied by 0."""
    random = np.random.default_rng(seed)
    weights: dict[str, np.ndarray[Any, Any]] = {
        "w": random.standard_normal((WIDTH, 4)).astype(np.float32)
    }
    nodes = [helper.make_node("MatMul", [name, "w"], ["plain"], name="plain")]
    last = "plain"
    if work:
        size = 256
        weights["wide"] = random.standard_normal((WIDTH, size)).astype(np.float32) / 16
        weights["square"] = random.standard_normal((size, size)).astype(np.float32) / 16
        weights["back"] = random.standard_normal((size, 4)).astype(np.float32)
        weights["zero"] = np.zeros(1, np.float32)
        nodes.append(helper.make_node("MatMul", [name, "wide"], ["h0"], name="widen"))
        for step in range(work):
            nodes += [
                helper.make_node("MatMul", [f"h{step}", "square"], [f"m{step}"], name=f"m{step}"),
                helper.make_node("Tanh", [f"m{step}"], [f"h{step + 1}"], name=f"t{step}"),
            ]
        nodes += [
            helper.make_node("MatMul", [f"h{work}", "back"], ["narrow"], name="narrow"),
            helper.make_node("Mul", ["narrow", "zero"], ["nothing"], name="nothing"),
            helper.make_node("Add", ["plain", "nothing"], ["sum"], name="sum"),
        ]
        last = "sum"
    nodes.append(helper.make_node("Relu", [last], ["y"], name="relu"))
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(value, key) for key, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model
