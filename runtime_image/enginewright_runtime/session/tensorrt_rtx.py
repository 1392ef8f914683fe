"""NVIDIA's TensorRT-RTX, a plug-in of ONNX Runtime for engines; its wheel (0.5.0) does not load CUDA's runtime itself."""

import ctypes
import functools
import importlib.util
import re
from pathlib import Path
from typing import Any, ClassVar, Final

import onnxruntime as ort
from enginewright_contract.images import PROVIDERS
from typing_extensions import override

from enginewright_runtime.session import driver, libraries
from enginewright_runtime.session.base import ProviderError, SessionBackend, SessionRequest
from enginewright_runtime.session.device_discovery import find_lack
from enginewright_runtime.session.extensions.libraries import load_plugins

_PLUGIN: Final = "onnxruntime_ep_nv_tensorrt_rtx"
_LIBRARY: Final = "libonnxruntime_providers_nv_tensorrt_rtx.so"
_BUILDER: Final = "tensorrt_rtx_bindings"
_BUILDER_LIBRARIES: Final = "tensorrt_rtx_libs"
_ENGINES: Final = "libtensorrt_rtx.so."  # what builds engines and what runs them, a file in each
_VERSION: Final = re.compile(rb"tensorrt_version_(\d+)_(\d+)_(\d+)_(\d+)\0")  # a symbol of it
_SYMBOLS: Final = 1 << 20  # bytes from the start, which contain the names of symbols
_RUNTIME: Final = re.compile(r"libcudart\.so\.(?P<major>\d+)(\.\d+)*")


class TensorRtRtxBackend(SessionBackend):
    """Runs EPContext models."""

    name: ClassVar[str] = "tensorrt-rtx"
    provider: ClassVar[str] = PROVIDERS["tensorrt-rtx"]
    needs_driver: ClassVar[bool] = True
    compiled: ClassVar[bool] = True
    caches_kernels: ClassVar[bool] = True

    @override
    def is_offered(self) -> bool:
        return _folder() is not None

    @override
    def missing_libraries(self) -> tuple[str, ...]:
        folder = _folder()
        if folder is None:
            return (_LIBRARY,)
        # bundled libraries are loaded by path, under names that the loader does not search
        carried = tuple(path.name for path in folder.glob("lib*.so*"))
        needed = libraries.missing(folder / _LIBRARY, driver.LIBRARIES)
        return tuple(
            name
            for name in needed
            if not any(item == name or item.startswith(f"{name}.") for item in carried)
        )

    @override
    def cuda_major(self) -> str | None:
        runtime = _cuda_runtime()
        match = _RUNTIME.fullmatch(runtime.name) if runtime else None
        return match["major"] if match else None

    @override
    def providers(self, options: ort.SessionOptions, request: SessionRequest) -> list[Any] | None:
        load_plugins(request.extensions)  # the provider has no option for them (version 0.5.0)
        try:
            _register(self.provider)
            devices = [
                ep_device
                for ep_device in ort.get_ep_devices()
                if ep_device.ep_name == self.provider
            ][:1]
            if devices:
                options.add_provider_for_devices(devices, self.provider_options(request))
        except Exception as error:
            # ONNX Runtime's exceptions have no common base class but Exception
            raise ProviderError(str(error)) from error
        if not devices:
            lack = ProviderError(f"{self.provider} found no supported device")
            raise find_lack(self.provider) or lack
        return None

    @override
    def provider_options(self, request: SessionRequest) -> dict[str, str]:
        """Return the folder of the runtime cache (tensorrt_rtx_provider_options.h in the wheel).

        The plug-in reads it with the engine, overwrites one that it rejects, and writes it when the
        session ends (version 0.5.0). `enable_cuda_graph` stays off: it compiles kernels for a size
        before its first run, while the request waits.
        """
        folder = request.runtime_cache
        return {"nv_runtime_cache_path": str(folder)} if folder else {}

    @override
    def complete(self) -> bool:
        return _engine_library(_BUILDER_LIBRARIES) is not None

    @override
    def version(self) -> str:
        """Return the version of the plug-in's bundled library, which runs engines."""
        return library_version(_engine_library(_PLUGIN)) or "unknown"

    @override
    def conflict(self) -> str | None:
        versions = {
            "onnxruntime-ep-nv-tensorrt-rtx-cu13 carries": self.version(),
            "tensorrt-rtx-cu13-libs has": library_version(_engine_library(_BUILDER_LIBRARIES)),
            "tensorrt-rtx-cu13-bindings is": libraries.wheel_version(_BUILDER),
        }
        if len(set(versions.values())) == 1:
            return None
        listed = ", ".join(f"{who} {version or 'unknown'}" for who, version in versions.items())
        return f"engines would be built by one version of TensorRT-RTX and run by another: {listed}"


def library_version(path: Path | None) -> str | None:
    """Return the version that a TensorRT-RTX library contains, "1.7.1.116", without loading it."""
    if path is None:
        return None
    with path.open("rb") as file:
        match = _VERSION.search(file.read(_SYMBOLS))
    return ".".join(number.decode() for number in match.groups()) if match else None


def _engine_library(module: str) -> Path | None:
    folder = _folder(module)
    return next(iter(sorted(folder.glob(f"{_ENGINES}*"))), None) if folder else None


def _folder(module: str = _PLUGIN) -> Path | None:
    """Return the folder of a wheel without importing it, which would load 240 MB."""
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def _cuda_runtime() -> Path | None:
    folder = _folder()
    paths = folder.glob("libcudart.so.*") if folder else ()
    return next((path for path in paths if _RUNTIME.fullmatch(path.name)), None)


@functools.cache
def _register(provider: str) -> None:
    """Register the plug-in in ONNX Runtime, once per process; a failed call can be retried."""
    plugin = importlib.import_module(_PLUGIN)
    if runtime := _cuda_runtime():
        ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)
    ort.register_execution_provider_library(provider, plugin.get_library_path())
