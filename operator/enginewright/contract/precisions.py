"""Which backend runs which precision, on which GPUs: known before anything is made.

Sources: NVIDIA TensorRT support matrix, "Layers and precision by hardware" (FP16 from compute
capability 7.0, BF16 from 8.0, FP8 from 8.9), seen to hold for TensorRT-RTX 1.7.1, which builds for
each; ONNX Runtime's operator kernels (docs/OperatorKernels.md: the CPU provider has none for half
precision, the CUDA provider none for quantised convolutions); OpenVINO, "Precision control" of the
CPU plugin.

Not here is what depends on the model: TensorRT-RTX 1.7.1 has no FP32 product of matrices for 7.5, so
models that have one, INT8 ones too, are refused by its builder there, while convolutions are built.
"""

from typing import Final

from enginewright.contract.task import Precision

LEAST: Final[dict[Precision, tuple[int, int]]] = {
    "FP16": (7, 0),
    "INT8": (7, 0),
    "BF16": (8, 0),
    "FP8": (8, 9),
}
_TENSORRT: Final[frozenset[Precision]] = frozenset({"FP32", "FP16", "BF16", "FP8", "INT8"})
RUNS: Final[dict[str, frozenset[Precision]]] = {
    "tensorrt": _TENSORRT,
    "tensorrt-rtx": _TENSORRT,
    "cuda": frozenset({"FP32", "FP16", "BF16"}),
    "openvino": frozenset({"FP32", "FP16", "INT8"}),
    "cpu": frozenset({"FP32", "INT8"}),
}


def supported(precision: Precision, compute_capability: str | None, backend: str) -> str | None:
    """Return why a precision cannot serve, as text; None when it can.

    Args:
        precision: what is asked for.
        compute_capability: of the class, such as "8.9"; None: unknown, or a CPU.
        backend: a name of `spec.backends`.
    """
    if precision not in RUNS[backend]:
        able = ", ".join(sorted(RUNS[backend]))
        return f"backend {backend} runs {able}"
    least = LEAST.get(precision)
    if compute_capability is None or least is None:
        return None
    if version(compute_capability) < least:
        return f"it needs compute capability {least[0]}.{least[1]}, and the class has {compute_capability}"
    return None


def version(capability: str) -> tuple[int, int]:
    """Return a compute capability as a version, which is ordered: (8, 9) of "8.9"."""
    major, _, minor = capability.partition(".")
    return int(major), int(minor or 0)
