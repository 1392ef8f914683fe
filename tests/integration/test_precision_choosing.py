"""The automatic choice: the fastest that keeps parity, by more than the noise; and real timing.

What of it starts something: the rest is in tests/unit.
"""

from pathlib import Path

import onnx
from enginewright_runtime.prepare.quantize.existing import existing
from onnx import TensorProto, helper

from tests.support.converting import real
from tests.support.quantizing import dense


def test_a_quantised_model_names_its_nodes(models: Path) -> None:
    model = dense(1)
    model.graph.node.append(
        helper.make_node("DequantizeLinear", ["q", "s"], ["dq"], name="dequantize")
    )
    model.graph.initializer.append(
        helper.make_tensor("q", TensorProto.FLOAT8E4M3FN, [2], [1.0, 2.0])
    )
    wording = existing(model).refuses("FP16")
    assert wording == "the model is already FP8, by 1 node: dequantize (DequantizeLinear)"
    assert existing(onnx.load(real(models, "standard_v3_3/model.onnx"))).precision == "FP32"
