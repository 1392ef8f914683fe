"""The differences between NVIDIA's two libraries, in one table. Nothing else names their modules.

TensorRT's libraries are found as its Python package does, or in the folder of `FOLDER_VARIABLE`, with the package's
bindings unless they are installed.
"""

import ctypes
import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright_contract.images import PROVIDERS
from enginewright_contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session import driver, libraries

FOLDER_VARIABLE: Final = "ENGINEWRIGHT_TENSORRT"
# Lets TensorRT parse without a driver. Undocumented: 10.15 and 11.2 have it, and `native.open_builder` tells of others
_PARSE_ALONE: Final = ("TRT_INTERNAL_OPTIONS", "--cpu_only=1")


@dataclass(frozen=True)
class Flavor:
    """The properties of one library that the builder depends on."""

    backend: str
    title: str  # in messages
    modules: tuple[str, ...]  # the first installed one is used
    provider: str  # of ONNX Runtime: what runs the engine, and the EPContext nodes' `source`
    typed_by_flag: bool  # networks are strongly typed only with a flag
    targets: bool  # builds for named compute capabilities, without a device
    timing_cache: bool  # builds reuse timings; TensorRT-RTX's cache has no effect
    files: tuple[str, ...] = ()  # of the library, in the order in which they are opened


FLAVORS: Final = {
    flavor.backend: flavor
    for flavor in (
        Flavor(
            backend="tensorrt",
            title="TensorRT",
            modules=("tensorrt", "tensorrt_bindings"),
            provider=PROVIDERS["tensorrt"],
            typed_by_flag=True,
            targets=False,
            timing_cache=True,
            files=("libnvinfer", "libnvinfer_plugin", "libnvonnxparser"),
        ),
        Flavor(
            backend="tensorrt-rtx",
            title="TensorRT-RTX",
            modules=("tensorrt_rtx", "tensorrt_rtx_bindings"),
            provider=PROVIDERS["tensorrt-rtx"],
            typed_by_flag=False,
            targets=True,
            timing_cache=False,
        ),
    )
}


def find(backend: str) -> Flavor:
    """Return the flavor that builds for `backend`."""
    if backend not in FLAVORS:
        raise StageFailure(
            Reason.INTERNAL_ERROR,
            f"no engines are built for backend {backend!r}, only for {', '.join(FLAVORS)}",
        )
    return FLAVORS[backend]


def load(flavor: Flavor, version: str) -> Any:  # noqa: ANN401 - NVIDIA's module, without types
    """Import the library, which must be of `version`, in a child process: it keeps its first logger."""
    if (folder := _folder(flavor)) is not None:
        _open(folder, flavor, version)
    errors = []
    for name in flavor.modules:
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError) as error:
            errors.append(str(error))
            continue
        if module.__version__ != version:
            raise StageFailure(
                Reason.ENGINE_VERSION_MISMATCH,
                f"the engine requires {flavor.title} {version}, but this image has"
                f" {module.__version__}",
                remedy="no action needed: the image is probed again",
            )
        return module
    raise StageFailure(
        Reason.PROVIDER_MISSING, f"this image has no {flavor.title}: {'; '.join(errors)}"
    )


def find_version(flavor: Flavor) -> str | None:
    """Return the version of the library's bindings here, without importing them; None if there are none."""
    _folder(flavor)
    return libraries.wheel_version(*flavor.modules)


def parse_without_device(flavor: Flavor) -> None:
    """Let the library parse in this process, a child, if there is no driver; before it is loaded."""
    if not flavor.targets and driver.release() is None:
        name, value = _PARSE_ALONE
        os.environ.setdefault(name, value)


def _folder(flavor: Flavor) -> Path | None:
    """Return the folder that the variable names, from which bindings are imported too."""
    named = os.environ.get(FOLDER_VARIABLE) if flavor.files else None
    if not named:
        return None
    if named not in sys.path:
        sys.path.insert(0, named)
    return Path(named)


def _open(folder: Path, flavor: Flavor, version: str) -> None:
    """Open the libraries of a folder for all that is loaded later: the bindings find them by name."""
    major = version.partition(".")[0]
    for name in flavor.files:
        try:
            ctypes.CDLL(str(folder / f"{name}.so.{major}"), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise StageFailure(
                Reason.PROVIDER_MISSING,
                f"{FOLDER_VARIABLE} names {folder}, which has no {flavor.title} {version}: {error}",
                remedy=f"set {FOLDER_VARIABLE} to a folder with {', '.join(flavor.files)} of version {major}",
            ) from error
