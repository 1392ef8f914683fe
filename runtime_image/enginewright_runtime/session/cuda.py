"""ONNX Runtime's CUDA provider, which runs prepared models on NVIDIA's GPUs.

The wheel lacks the libraries that the provider needs, which users add to their own image
(docs/images.md). Without them ONNX Runtime falls back to the CPU and only logs it.
"""

from pathlib import Path
from typing import ClassVar, Final

import onnxruntime as ort
from enginewright_contract.images import PROVIDERS
from typing_extensions import override

from enginewright_runtime.session import driver, libraries
from enginewright_runtime.session.base import SessionBackend, SessionRequest

CAPI: Final = Path(ort.__file__).parent / "capi"
_RESERVED: Final = 1 << 30  # bytes at least that the arena leaves


def cuda_major() -> str | None:
    """Return the major version of CUDA that ONNX Runtime's wheel was built for."""
    from onnxruntime.capi import build_and_package_info  # noqa: PLC0415 - the wheel of the gpu variant has the figure

    version = getattr(build_and_package_info, "cuda_version", "")
    return str(version).partition(".")[0] or None


def arena_limit(memory: int) -> int:
    """Return the bytes of a device with `memory` that ONNX Runtime's arena may take.

    CUDA, cuBLAS and cuDNN get the rest: a tenth, at least 1 GiB, but of a small MIG slice at most a quarter.
    """
    return memory - min(max(_RESERVED, memory // 10), memory // 4)


class CudaBackend(SessionBackend):
    """Runs the nodes that have a CUDA kernel."""

    library: ClassVar[Path] = CAPI / "libonnxruntime_providers_cuda.so"
    name: ClassVar[str] = "cuda"
    provider: ClassVar[str] = PROVIDERS["cuda"]
    needs_driver: ClassVar[bool] = True
    optimized: ClassVar[bool] = True

    @override
    def missing_libraries(self) -> tuple[str, ...]:
        return libraries.missing(self.library, driver.LIBRARIES)

    @override
    def cuda_major(self) -> str | None:
        return cuda_major()

    @override
    def provider_options(self, request: SessionRequest) -> dict[str, str]:
        """Return options that keep one request from stalling or starving the others.

        ONNX Runtime's defaults suit one process that runs one shape (cuda_execution_provider_info.h):

        - cudnn_conv_algo_search: a Conv replans whenever the sizes of its input change, while the request
          waits. HEURISTIC is cuDNN's fast heuristic (mode A), EXHAUSTIVE its slow one (mode B), DEFAULT the
          fallback (conv.cc of ONNX Runtime 1.31).
        - arena_extend_strategy: kNextPowerOfTwo doubles each extension. The arena returns no memory, which a
          canary or another pod on a time-sliced device then lacks.
        - gpu_mem_limit: without it, an oversized request may leave no memory for cuBLAS and cuDNN, which
          allocate outside of the arena.

        Other defaults stay: copies in the compute stream (data races otherwise), and TF32 for FP32, whose
        effect on the outputs parity proves.
        """
        options = {
            "cudnn_conv_algo_search": "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",
        }
        if request.device_memory:
            options["gpu_mem_limit"] = str(arena_limit(request.device_memory))
        return options

    @override
    def version(self) -> str:
        """Return the major version of CUDA, which the driver must support."""
        return cuda_major() or "unknown"
