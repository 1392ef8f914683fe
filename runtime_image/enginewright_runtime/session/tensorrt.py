"""NVIDIA's TensorRT inside ONNX Runtime: runs the engines that were built for a class.

Nodes outside the engine run on CUDA if that provider can be created, and still count as elsewhere.
"""

from pathlib import Path
from typing import Any, ClassVar, Final

import onnxruntime as ort
from enginewright.contract.images import PROVIDERS
from typing_extensions import override

from enginewright_runtime.session import libraries
from enginewright_runtime.session.base import CPU_PROVIDER, SessionRequest
from enginewright_runtime.session.cuda import CAPI, CudaBackend
from enginewright_runtime.session.extensions.libraries import load_plugins

_INFER: Final = "libnvinfer.so."
_BUILDERS: Final = ("tensorrt", "tensorrt_bindings")


class TensorRtBackend(CudaBackend):
    """Runs EPContext models."""

    name: ClassVar[str] = "tensorrt"
    provider: ClassVar[str] = PROVIDERS["tensorrt"]
    library: ClassVar[Path] = CAPI / "libonnxruntime_providers_tensorrt.so"
    compiled: ClassVar[bool] = True
    optimized: ClassVar[bool] = False

    @override
    def complete(self) -> bool:
        return _infer() is not None

    @override
    def providers(self, options: ort.SessionOptions, request: SessionRequest) -> list[Any] | None:
        del options
        load_plugins(request.extensions)
        return [
            (self.provider, self.provider_options(request)),
            (CudaBackend.provider, super().provider_options(request)),
            CPU_PROVIDER,
        ]

    @override
    def provider_options(self, request: SessionRequest) -> dict[str, str]:
        paths = [str(path) for path in request.extensions.plugins]
        return {"trt_extra_plugin_lib_paths": ";".join(paths)} if paths else {}

    @override
    def version(self) -> str:
        """Return the version of the wheel that builds engines, otherwise of the library's file."""
        if wheel := libraries.wheel_version(*_BUILDERS):
            return wheel
        path = _infer()
        return path.resolve().name.removeprefix(_INFER) if path else "unknown"


def _infer() -> Path | None:
    """Return the TensorRT library that the provider would load."""
    found = libraries.resolve(TensorRtBackend.library)
    return next((path for name, path in found.items() if name.startswith(_INFER)), None)
