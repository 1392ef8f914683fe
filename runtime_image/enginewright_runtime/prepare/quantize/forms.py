"""The form in which each backend expects quantized models: one table, with a source for each entry."""

from dataclasses import dataclass, replace
from typing import Any, Final

import ml_dtypes
import numpy as np
from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.task import Int8Products
from onnx import TensorProto


@dataclass(frozen=True)
class Grid:
    """A type of quantized values."""

    element: int  # of TensorProto
    dtype: Any  # NumPy's
    low: float
    high: float


INT8: Final = Grid(TensorProto.INT8, np.int8, -127.0, 127.0)  # symmetric: without -128
# 7 bits: two products with UINT8 are at most 2 x 255 x 64 = 32,640, which fits 16 bits ("reduce_range")
REDUCED_INT8: Final = Grid(TensorProto.INT8, np.int8, -64.0, 64.0)
UINT8: Final = Grid(TensorProto.UINT8, np.uint8, 0.0, 255.0)
FP8: Final = Grid(TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn, -448.0, 448.0)


@dataclass(frozen=True)
class Form:
    """How nodes are quantized for one backend."""

    precision: str  # INT8 | FP8
    operators: frozenset[str]
    activations: Grid
    weights: Grid
    symmetric: bool  # activations have the zero point 0
    # Results are quantized too, biases are 32-bit integers, and every reader of a value reads its
    # quantized form: ONNX Runtime requires this to run a convolution on integers.
    integers: bool
    opset: int  # the oldest with all its operators and types
    # Of ONNX Runtime's graph optimizations when the form is proven on its CPU provider, a key of
    # `optimization.LEVELS`: ALL if the CPU provider serves it. At lower levels, quantization is
    # simulated in single precision, which equals a device's integer arithmetic except for rounding.
    proof_level: str


# Explicit quantization as NVIDIA recommends it (TensorRT, "Working with Quantized Types", Q/DQ layer
# placement): symmetric, weights per channel, before the inputs of weighted layers, biases unchanged.
# Verified by building with TensorRT-RTX 1.7.1. Results are not quantized there, so that they fuse.
_TENSORRT_INT8: Final = Form(
    precision="INT8",
    operators=frozenset({"Conv", "MatMul", "Gemm"}),
    activations=INT8,
    weights=INT8,
    symmetric=True,
    integers=False,
    opset=13,  # quantization along an axis
    proof_level="BASIC",  # ONNX Runtime 1.31.1 fuses FP8 into integer kernels at ALL, and then fails
)
_TENSORRT_FP8: Final = replace(
    _TENSORRT_INT8,
    precision="FP8",
    activations=FP8,
    weights=FP8,
    opset=19,  # QuantizeLinear of 8-bit floats
)
# ONNX Runtime, "Quantize ONNX Models": U8S8, for which its kernels are optimized. S8S8 takes 4 to 60
# times as long on x86, and U8U8 1.3 to 10 times (measured: docs/measurements.md).
_ONNXRUNTIME_INT8: Final = Form(
    precision="INT8",
    operators=frozenset({"Conv", "MatMul", "Gemm"}),
    activations=UINT8,
    weights=INT8,
    symmetric=False,
    integers=True,
    opset=13,
    proof_level="ALL",
)
# OpenVINO, "Quantized models compute and restrictions": 8-bit activations with zero points, before
# inputs. With quantized results it takes up to twice as long (measured with OpenVINO 2025.4).
_OPENVINO_INT8: Final = replace(_ONNXRUNTIME_INT8, integers=False, proof_level="BASIC")
_DYNAMIC_INT8: Final = replace(
    _ONNXRUNTIME_INT8, operators=frozenset({"MatMul", "Gemm"}), integers=False, opset=11
)


def form_of(precision: str, backend: str, products: Int8Products | None = None) -> Form:
    """Return the form of INT8 or FP8 for a backend, and for INT8 products of the serving CPUs."""
    if precision == "FP8":
        return _TENSORRT_FP8
    if backend in COMPILED_BACKENDS:
        return _TENSORRT_INT8
    return _avoid_saturation(
        _OPENVINO_INT8 if backend == "openvino" else _ONNXRUNTIME_INT8, products
    )


def dynamic_form(products: Int8Products | None = None) -> Form:
    """Return the form of dynamic quantization, which only ONNX Runtime's CPU provider supports."""
    return _avoid_saturation(_DYNAMIC_INT8, products)


def _avoid_saturation(form: Form, products: Int8Products | None) -> Form:
    return form if products == "exact" else replace(form, weights=REDUCED_INT8)
