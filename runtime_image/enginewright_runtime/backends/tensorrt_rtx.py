"""NVIDIA's TensorRT-RTX as a plug-in of ONNX Runtime: runs engines built with or without a device.

Its wheel loads the libraries that it carries by path, but for CUDA's runtime, which it forgets
(version 0.5.0): without that the plug-in cannot be loaded anywhere. So that is done here.
"""

import ctypes
import functools
import importlib.util
import re
from pathlib import Path
from typing import Any, ClassVar, Final

import onnxruntime as ort
from typing_extensions import override

from enginewright_runtime import driver
from enginewright_runtime.backends import libraries
from enginewright_runtime.backends.base import Backend, ProviderError, Request
from enginewright_runtime.extensions.libraries import load_plugins

_PLUGIN: Final = "onnxruntime_ep_nv_tensorrt_rtx"
_LIBRARY: Final = "libonnxruntime_providers_nv_tensorrt_rtx.so"
_BUILDER: Final = "tensorrt_rtx_bindings"
_RUNTIME: Final = re.compile(r"libcudart\.so\.(?P<major>\d+)(\.\d+)*")


class TensorRtRtxBackend(Backend):
    """Runs EPContext models."""

    name: ClassVar[str] = "tensorrt-rtx"
    provider: ClassVar[str] = "NvTensorRTRTXExecutionProvider"
    needs_driver: ClassVar[bool] = True
    compiled: ClassVar[bool] = True

    @override
    def offered(self) -> bool:
        return _folder() is not None

    @override
    def missing_libraries(self) -> tuple[str, ...]:
        folder = _folder()
        if folder is None:
            return (_LIBRARY,)
        # what the wheel carries is loaded by path, under names that the loader does not search for
        carried = tuple(path.name for path in folder.glob("lib*.so*"))
        needed = libraries.missing(folder / _LIBRARY, driver.LIBRARIES)
        return tuple(
            name
            for name in needed
            if not any(each == name or each.startswith(f"{name}.") for each in carried)
        )

    @override
    def cuda_major(self) -> str | None:
        runtime = _cuda_runtime()
        found = _RUNTIME.fullmatch(runtime.name) if runtime else None
        return found["major"] if found else None

    @override
    def providers(self, options: ort.SessionOptions, request: Request) -> list[Any] | None:
        load_plugins(request.extensions)  # the provider has no option for them (version 0.5.0)
        try:
            _register(self.provider)
            devices = [each for each in ort.get_ep_devices() if each.ep_name == self.provider][:1]
            if devices:
                options.add_provider_for_devices(devices, self.provider_options(request))
        except Exception as error:
            # pybind11 exceptions of ONNX Runtime share no base class but Exception
            raise ProviderError(str(error)) from error
        if not devices:
            raise ProviderError(f"{self.provider} finds no device that it runs on")
        return None

    @override
    def version(self) -> str:
        """Return the version of the wheel that builds engines, which is that of the engines."""
        return libraries.wheel_version(_BUILDER) or "unknown"


def _folder() -> Path | None:
    """Return the folder of the plug-in's wheel, without importing it: that loads 240 MB."""
    spec = importlib.util.find_spec(_PLUGIN)
    return Path(spec.origin).parent if spec and spec.origin else None


def _cuda_runtime() -> Path | None:
    folder = _folder()
    found = folder.glob("libcudart.so.*") if folder else iter(())
    return next((path for path in found if _RUNTIME.fullmatch(path.name)), None)


@functools.cache
def _register(provider: str) -> None:
    """Load the plug-in into ONNX Runtime, which takes it once a process; a failure may be retried."""
    plugin = importlib.import_module(_PLUGIN)
    if runtime := _cuda_runtime():
        ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)
    ort.register_execution_provider_library(provider, plugin.get_library_path())
