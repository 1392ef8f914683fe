"""NVIDIA's TensorRT inside ONNX Runtime: runs the engines that were built for a class.

Nodes outside the engine run on CUDA if that provider can be created, and still count as elsewhere.

ONNX Runtime's provider is linked to one major version of TensorRT, which must build the engines: ONNX Runtime
1.31.1 to TensorRT 10. TensorRT 11 is refused until a provider is linked to it; the builder's API is the same
in 10.16 and 11.4.
"""

from pathlib import Path
from typing import Any, ClassVar, Final

import onnxruntime as ort
from enginewright_contract.images import PROVIDERS
from typing_extensions import override

from enginewright_runtime.session import libraries
from enginewright_runtime.session.base import CPU_PROVIDER, SessionRequest
from enginewright_runtime.session.cuda import CAPI, CudaBackend
from enginewright_runtime.session.extensions.libraries import load_plugins

_INFER: Final = "libnvinfer.so."
_BUILDERS: Final = ("tensorrt", "tensorrt_bindings")
_BUILDER_LIBRARIES: Final = "tensorrt_libs"


class TensorRtBackend(CudaBackend):
    """Runs EPContext models."""

    name: ClassVar[str] = "tensorrt"
    provider: ClassVar[str] = PROVIDERS["tensorrt"]
    library: ClassVar[Path] = CAPI / "libonnxruntime_providers_tensorrt.so"
    compiled: ClassVar[bool] = True
    optimized: ClassVar[bool] = False

    @override
    def complete(self) -> bool:
        return _infer() is not None and self.unusable() is None

    @override
    def unusable(self) -> str | None:
        needed = next((name for name in _resolve_libraries() if name.startswith(_INFER)), None)
        if needed is None:
            return None
        major = needed.removeprefix(_INFER)
        others = {
            f"{owner.name} {owner.version}"
            for module in (*_BUILDERS, _BUILDER_LIBRARIES)
            for owner in libraries.owners(module)
            if owner.version.partition(".")[0] != major
        }
        if not others:
            return None
        return (
            f"this image has {', '.join(sorted(others))}, but the TensorRT provider of ONNX Runtime"
            f" {ort.__version__} is linked to TensorRT {major} ({needed}) and loads no engine of"
            " another major version"
        )

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

    @override
    def origin(self) -> str | None:
        addresses = (
            address
            for owner in libraries.owners(_BUILDER_LIBRARIES)
            for address in owner.metadata.get_all("Download-URL") or ()
        )
        return next((address for address in addresses if address.startswith("pkg:")), None)


def _infer() -> Path | None:
    return next(
        (path for name, path in _resolve_libraries().items() if name.startswith(_INFER)), None
    )


def _resolve_libraries() -> dict[str, Path | None]:
    return libraries.resolve(TensorRtBackend.library)
