"""Which backend runs which precision, on which GPUs: known before anything is converted or built.

Sources: NVIDIA TensorRT support matrix, "Layers and precision by hardware" (FP16 from compute
capability 7.0, BF16 from 8.0, FP8 from 8.9), also observed with TensorRT-RTX 1.7.1; ONNX Runtime's operator kernels (docs/OperatorKernels.md: the CPU provider has none for half
precision, the CUDA provider none for quantized convolutions); OpenVINO, "Precision control" of the
CPU plugin.

Limits that depend on the model are not included: TensorRT-RTX 1.7.1 has no FP32 matrix product for
7.5, so its builder rejects models with one there, INT8 ones too, but builds convolutions.
"""

from typing import Final

from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.task import Precision, Rest

MIN_CAPABILITY: Final[dict[Precision, tuple[int, int]]] = {
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


def why_unsupported(
    precision: Precision, compute_capability: str | None, backend: str
) -> str | None:
    """Return why a precision cannot be served on a class, as text; None when it can."""
    if precision not in RUNS[backend]:
        return f"backend {backend} supports {', '.join(sorted(RUNS[backend]))}"
    minimum = MIN_CAPABILITY.get(precision)
    if compute_capability is None or minimum is None:
        return None
    if version(compute_capability) < minimum:
        return (
            f"it needs compute capability {minimum[0]}.{minimum[1]} or higher, but the class has"
            f" {compute_capability}"
        )
    return None


def why_no_rest(rest: Rest | None, backend: str) -> str | None:
    """Return why a backend does not run a quantized model whose rest has this precision, as text; None when it does."""
    if rest is None or backend in COMPILED_BACKENDS:
        return None
    return f"backend {backend} runs the rest of a quantized model in FP32 alone"


def version(capability: str) -> tuple[int, int]:
    """Return a compute capability as (major, minor), for comparison: (8, 9) for "8.9"."""
    major, _, minor = capability.partition(".")
    return int(major), int(minor or 0)
