"""Models that ONNX Runtime's own quantizer has written, for TensorRT: their biases dequantized."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from enginewright_contract.manifest import MODEL_NAME
from enginewright_runtime.prepare.convert.biases import fold_biases
from onnx import ModelProto, TensorProto
from onnxruntime import quantization

from tests.support.broken_models import initializer, parse_text
from tests.support.converting import convert_here, feeds, recipe, run, same, weight

TENSORRT = recipe(backend="tensorrt-rtx")


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Gives what the quantizer learns ranges from."""

    def __init__(self, model: ModelProto) -> None:
        self._left = [feeds(model, 2, -1.0) for _ in range(4)]

    def get_next(self) -> dict[str, Any] | None:
        return self._left.pop() if self._left else None


def quantize(folder: Path, *, symmetric: bool) -> Path:
    """Return two convolutions with biases, quantized statically by onnxruntime.quantization."""
    model = parse_text(
        """(float["n", 3, 8, 8] x) => (float["n", 4, 8, 8] y) {
        [one] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1) [relu] r1 = Relu(c1)
        [two] y = Conv <pads = [1, 1, 1, 1]> (r1, w2, b2) }""",
        *(weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 4, 8, 3, 3), weight("b2", 4)),
    )
    source, target = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(model, source)
    quantization.quantize_static(
        source,
        target,
        Reader(model),
        per_channel=True,
        activation_type=quantization.QuantType.QInt8
        if symmetric
        else quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        extra_options={"ActivationSymmetric": symmetric, "WeightSymmetric": True},
    )
    return target


def test_they_are_the_numbers_that_the_node_gives(tmp_path: Path) -> None:
    model = onnx.load(quantize(tmp_path, symmetric=True))
    folded = onnx.load(tmp_path / "int8.onnx")
    assert len(fold_biases(folded, tmp_path)) == 2
    kinds = [tensor.data_type for tensor in folded.graph.initializer]
    assert TensorProto.INT32 not in kinds
    inputs = feeds(model, 2, -1.0)
    same(run(model, inputs), run(folded, inputs), share=0)
    assert fold_biases(folded, tmp_path) == []


def test_tensorrt_then_takes_the_whole_model(tmp_path: Path) -> None:
    outcome = convert_here(tmp_path / "work", quantize(tmp_path, symmetric=True), TENSORRT)
    (change,) = outcome.report.facts["changes"]
    assert change["message"].startswith("dequantised 2 bias nodes in 32-bit integers")
    assert len(change["nodes"]) == 2
    assert outcome.report.findings == ()


def test_supported_biases_stay(tmp_path: Path) -> None:
    outcome = convert_here(tmp_path / "work", quantize(tmp_path, symmetric=True), recipe())
    assert outcome.report.facts["changes"] == []


def test_lookalikes_stay(tmp_path: Path) -> None:
    """Data of every request, and tables of 32-bit integers."""
    model = parse_text(
        """(int32[2, 3] x) => (float[2, 3] y) {
        t = DequantizeLinear(table, scale) d = DequantizeLinear(x, scale) y = Add(t, d) }""",
        initializer("table", np.arange(6).reshape(2, 3), np.int32),
        initializer("scale", 0.5),
    )
    assert fold_biases(model, tmp_path) == []


def test_external_data(tmp_path: Path) -> None:
    model = onnx.load(quantize(tmp_path, symmetric=True))
    inputs = feeds(model, 2, -1.0)
    expected = run(model, inputs)
    onnx.save_model(
        model, tmp_path / MODEL_NAME, save_as_external_data=True, location="w", size_threshold=0
    )
    outside = onnx.load(tmp_path / MODEL_NAME, load_external_data=False)
    assert len(fold_biases(outside, tmp_path)) == 2
    (tmp_path / "folded.onnx").write_bytes(outside.SerializeToString())
    same(expected, run(tmp_path / "folded.onnx", inputs), share=0)
