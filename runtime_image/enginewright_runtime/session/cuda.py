"""ONNX Runtime's CUDA provider, which runs prepared models on NVIDIA's GPUs.

The wheel contains the provider without the libraries that it needs, which users add to their own image
(docs/serving.md). Without them ONNX Runtime falls back to the CPU and only logs it.
"""

from pathlib import Path
from typing import ClassVar, Final

import onnxruntime as ort
from enginewright.contract.images import PROVIDERS
from typing_extensions import override

from enginewright_runtime.session import driver, libraries
from enginewright_runtime.session.base import SessionBackend

CAPI: Final = Path(ort.__file__).parent / "capi"


def cuda_major() -> str | None:
    """Return the major version of CUDA that ONNX Runtime's wheel was built for."""
    from onnxruntime.capi import build_and_package_info  # noqa: PLC0415 - the wheel of the gpu variant has the figure

    version = getattr(build_and_package_info, "cuda_version", "")
    return str(version).partition(".")[0] or None


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
    def version(self) -> str:
        """Return the major version of CUDA, which the driver must support."""
        return cuda_major() or "unknown"
