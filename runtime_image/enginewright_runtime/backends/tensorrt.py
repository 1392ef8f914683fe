"""NVIDIA's TensorRT inside ONNX Runtime: runs the engines that were built for a class.

Nodes outside the engine run on CUDA where it can be made, and count as elsewhere all the same.
"""

import re
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final

import onnxruntime as ort
from typing_extensions import override

from enginewright_runtime import driver
from enginewright_runtime.backends import libraries
from enginewright_runtime.backends.base import CPU_PROVIDER, Backend, Request
from enginewright_runtime.backends.cuda import CAPI, CudaBackend, cuda_major

_LIBRARY: Final = CAPI / "libonnxruntime_providers_tensorrt.so"
_INFER: Final = "libnvinfer.so."
_WHEELS: Final = ("tensorrt_cu13_libs", "tensorrt_cu12_libs", "tensorrt_libs")


class TensorRtBackend(Backend):
    """Runs EPContext models."""

    name: ClassVar[str] = "tensorrt"
    provider: ClassVar[str] = "TensorrtExecutionProvider"
    needs_driver: ClassVar[bool] = True
    compiled: ClassVar[bool] = True

    @override
    def complete(self) -> bool:
        return _infer() is not None

    @override
    def missing_libraries(self) -> tuple[str, ...]:
        return libraries.missing(_LIBRARY, driver.LIBRARIES)

    @override
    def cuda_major(self) -> str | None:
        return cuda_major()

    @override
    def providers(self, options: ort.SessionOptions, request: Request) -> list[Any] | None:
        del options, request
        return [self.provider, CudaBackend.provider, CPU_PROVIDER]

    @override
    def version(self) -> str:
        """Return TensorRT's version, from the file that the loader finds or the wheel around it."""
        path = _infer()
        if path is None:
            return "unknown"
        if found := re.fullmatch(r"libnvinfer\.so\.(\d+\.\d+\.\d+(?:\.\d+)?)", path.resolve().name):
            return found.group(1)
        for wheel in _WHEELS:
            try:
                return metadata.version(wheel)
            except metadata.PackageNotFoundError:
                continue
        return path.name.removeprefix(_INFER)


def _infer() -> Path | None:
    """Return the TensorRT library that the provider would load."""
    found = libraries.resolve(_LIBRARY)
    return next((path for name, path in found.items() if name.startswith(_INFER)), None)
