"""The differences between NVIDIA's two libraries, in one table. Nothing else names their modules."""

import importlib
from dataclasses import dataclass
from typing import Any, Final

from enginewright_contract.images import PROVIDERS
from enginewright_contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure


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
