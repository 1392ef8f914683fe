"""Models as NVIDIA's ModelOpt exports them, with operators that only TensorRT defines, and what they compute."""

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.support.broken_models import build, initializer, value

Array = NDArray[Any]
FP8: Final = ml_dtypes.float8_e4m3fn
FP4: Final = ml_dtypes.float4_e2m1fn
ROWS, COLUMNS = 64, 32
STEP: Final = np.float32(0.01)  # of the activations
UNIT: Final = np.float32(2**-9)  # of NVFP4's scales
_RANDOM: Final = np.random.default_rng(7)
WEIGHTS: Final = _RANDOM.normal(0, 0.1, (ROWS, COLUMNS)).astype(np.float32)
CODES: Final = _RANDOM.integers(-8, 8, (ROWS, COLUMNS))


def node(
    operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
) -> NodeProto:
    """Return an operator of the domain trt, named like its first output."""
    return helper.make_node(
        operator, inputs, outputs, name=f"make_{outputs[0]}", domain="trt", **attributes
    )


def standard(operator: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs, outputs, name=f"make_{outputs[0]}", **attributes)


def model(nodes: Sequence[NodeProto], *tensors: TensorProto, opset: int = 21) -> ModelProto:
    """Return a model of x [n, 64] to y [n, 32] through these nodes."""
    return build(
        nodes,
        [value("x", "n", ROWS)],
        [value("y", "n", COLUMNS)],
        tensors,
        opset=opset,
        ir_version=10,
        domains=[("trt", 1)],
    )


def fp8(*, opset: int = 21) -> ModelProto:
    """Return activations rounded to FP8, and weights in FP32; the exporter notes UINT8 for FP8."""
    made = model(
        [
            node("TRT_FP8QuantizeLinear", ["x", "step"], ["q"]),
            node("TRT_FP8DequantizeLinear", ["q", "step"], ["d"]),
            standard("MatMul", ["d", "w"], "y"),
        ],
        initializer("step", STEP),
        initializer("w", WEIGHTS),
        opset=opset,
    )
    made.graph.value_info.append(value("q", "n", ROWS, kind=TensorProto.UINT8))
    return made


def fp8_weights() -> ModelProto:
    """Return weights in FP8, and activations in FP32."""
    stored = numpy_helper.from_array((WEIGHTS / STEP).astype(FP8), "w")
    return model(
        [
            node("TRT_FP8DequantizeLinear", ["w", "step"], ["d"]),
            standard("MatMul", ["x", "d"], "y"),
        ],
        stored,
        initializer("step", STEP),
    )


def int4(operator: str = "TRT_INT4DequantizeLinear") -> ModelProto:
    """Return weights in INT4, with a scale for every 16 rows."""
    stored = helper.make_tensor("w", TensorProto.INT4, CODES.shape, CODES.reshape(-1).tolist())
    return model(
        [
            node(operator, ["w", "steps"], ["d"], axis=0, block_size=16),
            standard("MatMul", ["x", "d"], "y"),
        ],
        stored,
        initializer("steps", int4_steps()),
    )


def int4_steps() -> Array:
    return np.linspace(0.01, 0.1, ROWS // 16 * COLUMNS, dtype=np.float32).reshape(-1, COLUMNS)


def nvfp4() -> ModelProto:
    """Return activations in NVFP4, quantized as they come, and weights in NVFP4."""
    return model(
        [
            node(
                "TRT_FP4DynamicQuantize",
                ["x", "unit"],
                ["q", "s"],
                axis=-1,
                block_size=16,
                scale_type=17,
            ),
            standard("DequantizeLinear", ["s", "unit"], "steps"),
            standard("DequantizeLinear", ["q", "steps"], "d", axis=-1, block_size=16),
            standard("DequantizeLinear", ["ws", "unit"], "wsteps"),
            standard("DequantizeLinear", ["w", "wsteps"], "wd", axis=0, block_size=16),
            standard("MatMul", ["d", "wd"], "y"),
        ],
        initializer("unit", UNIT),
        numpy_helper.from_array(_fp4_weights().astype(FP4), "w"),
        numpy_helper.from_array(np.full((ROWS // 16, COLUMNS), 0.5).astype(FP8), "ws"),
        opset=23,
    )


def mxfp8() -> ModelProto:
    """Return activations in MXFP8, quantized as they come, and weights in FP32."""
    return model(
        [
            node(
                "TRT_MXFP8DynamicQuantize",
                ["x"],
                ["q", "s"],
                axis=-1,
                block_size=32,
                output_dtype=17,
            ),
            node(
                "TRT_MXFP8DequantizeLinear",
                ["q", "s"],
                ["d"],
                axis=-1,
                block_size=32,
                output_dtype=1,
            ),
            standard("MatMul", ["d", "w"], "y"),
        ],
        initializer("w", WEIGHTS),
    )


def _fp4_weights() -> Array:
    return np.clip(CODES.astype(np.float32), -6, 6).astype(FP4).astype(np.float32)


def compute_fp8(x: Array) -> Array:
    return _round_to_fp8(x / STEP) * STEP @ WEIGHTS


def compute_fp8_weights(x: Array) -> Array:
    return x @ (_round_to_fp8(WEIGHTS / STEP) * STEP)


def compute_int4(x: Array) -> Array:
    return np.asarray(x @ (CODES * np.repeat(int4_steps(), 16, axis=0)).astype(np.float32))


def compute_nvfp4(x: Array) -> Array:
    """Return the outputs by NVIDIA's definition: a block's scale is FP8 in units of the tensor's."""
    blocks = x.reshape(*x.shape[:-1], -1, 16)
    scales = _round_to_fp8(np.abs(blocks).max(-1, keepdims=True) / (6 * UNIT))
    steps = scales * UNIT
    divisors = np.where(steps == 0, np.float32(1), steps)
    rounded = np.clip(blocks / divisors, -6, 6).astype(FP4).astype(np.float32)
    weights = _fp4_weights() * np.float32(0.5) * UNIT
    return np.asarray((rounded * steps).reshape(x.shape) @ weights)


def compute_mxfp8(x: Array) -> Array:
    """Return the outputs with the smallest scales, powers of two, that saturate no value."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        exponents = np.clip(np.ceil(np.log2(largest / 448)), -127, 127)
    steps = np.exp2(exponents).astype(np.float32)
    rounded = _round_to_fp8(blocks / steps)
    return np.asarray((rounded * steps).reshape(x.shape) @ WEIGHTS)


def _round_to_fp8(numbers: Array) -> Array:
    """Return the nearest values of FP8, at most its largest."""
    return np.asarray(np.clip(numbers, -448, 448).astype(FP8).astype(np.float32))
