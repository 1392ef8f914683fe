"""Every precision that `quantize` writes, built by the real TensorRT-RTX for three generations."""

from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.precisions import why_unsupported
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Precision
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.engine import builder
from onnx import ModelProto, TensorProto, helper

from tests.support.broken_models import initializer, parse_text
from tests.support.engines import build_request, recipe

FLOATS = {
    "FP32": TensorProto.FLOAT,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
}
QUANTizED = {"INT8": TensorProto.INT8, "FP8": TensorProto.FLOAT8E4M3FN}
FP16 = "; set spec.precision to FP16, or choose an accelerator class of compute capability 8.0 or"
EIGHT = (
    "set spec.precision to FP16 or INT8, or choose an accelerator class of compute capability 8.9"
)


def model(precision: str) -> ModelProto:
    """Return x to y through Conv and MatMul, computed in a precision as `quantize` writes it."""
    random = np.random.default_rng(0)
    kernel = (random.standard_normal((8, 8, 3, 3)) * 0.1).astype(np.float32)
    matrix = (random.standard_normal((8, 8)) * 0.1).astype(np.float32)
    if precision in FLOATS:
        kind = FLOATS[precision]
        given = [
            helper.make_tensor(name, kind, array.shape, array.reshape(-1))
            for name, array in (("kernel", kernel), ("matrix", matrix))
        ]
        nodes = f"""[to] x_d = Cast <to = {kind}> (x)
            [conv] c = Conv <pads = [1, 1, 1, 1]> (x_d, kernel) [multiply] m = MatMul(c, matrix)"""
    else:
        given = [
            *(initializer("kernel", kernel), initializer("matrix", matrix)),
            initializer("scale", 0.05),
            helper.make_tensor("zero", QUANTizED[precision], (), [0]),
        ]
        nodes = f"""{quantize("x")} {quantize("kernel")} {quantize("matrix")}
            [conv] c = Conv <pads = [1, 1, 1, 1]> (x_d, kernel_d) {quantize("c")}
            [multiply] m = MatMul(c_d, matrix_d)"""
    shape = 'float["n", 8, 8, 8]'
    text = f"({shape} x) => ({shape} y) {{ {nodes} [from] y = Cast <to = 1> (m) }}"
    return parse_text(text, *given, opset=21, ir_version=10)


def quantize(name: str) -> str:
    return f"""[{name}_quantize] {name}_q = QuantizeLinear({name}, scale, zero)
        [{name}_dequantize] {name}_d = DequantizeLinear({name}_q, scale, zero)"""


@pytest.mark.parametrize(
    ("precision", "capability", "reported"),
    [
        ("FP32", "7.5", "at multiply (MatMul): Cannot compile operation 'multiply' for Turing" + "|" + FP16),
        ("FP32", "8.6", ""),
        ("FP32", "8.9", ""),
        ("FP16", "7.5", ""),
        ("FP16", "8.6", ""),
        ("FP16", "8.9", ""),
        ("BF16", "7.5", "HW-specific datatypes: b16" + FP16),
        ("BF16", "8.0", ""),
        ("BF16", "8.6", ""),
        ("BF16", "8.9", ""),
        ("FP8", "7.5", "HW-specific datatypes: fp8_e4m3|" + EIGHT),
        ("FP8", "8.6", "HW-specific datatypes: fp8_e4m3|" + EIGHT),
        ("FP8", "8.9", ""),
        # what stays of a product between dequantized tensors is FP32 on Turing
        ("INT8", "7.5", "at multiply (MatMul): Cannot compile operation" + "|" + FP16),
        ("INT8", "8.6", ""),
        ("INT8", "8.9", ""),
    ],
)  # fmt: skip
def test_precisions(precision: Precision, capability: str, reported: str, tmp_path: Path) -> None:
    # what the table allows may still fail: FP32 and INT8 on Turing, but not the other way round
    allowed = why_unsupported(precision, capability, "tensorrt-rtx") is None
    assert allowed is (not reported or precision in {"FP32", "INT8"})
    asked = build_request(tmp_path, model(precision), (), recipe(capability))
    if not reported:
        engine = builder.build(asked).engine
        assert engine.nodes_accelerated == engine.nodes_total
        assert engine.compute_capabilities == (capability,)
        return
    with pytest.raises(StageFailure) as caught:
        builder.build(asked)
    assert caught.value.reason is Reason.PRECISION_UNSUPPORTED
    for part in reported.split("|"):
        assert part in caught.value.message
