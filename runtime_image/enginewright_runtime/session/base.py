"""The base of backends: the provider that a backend promises, and what that provider needs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import onnxruntime as ort
from enginewright_contract.images import PROVIDERS
from enginewright_contract.reasons import Reason
from typing_extensions import override

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session.extensions.libraries import NO_LIBRARIES, Libraries
from enginewright_runtime.session.libraries import owners
from enginewright_runtime.session.optimization import HIGHEST

CPU_PROVIDER: Final = PROVIDERS["cpu"]
# entries of a session's configuration
RECORD_ASSIGNMENT: Final = "session.record_ep_graph_assignment_info"
FATAL_ONLY: Final = 4  # severity of logging
SPINNING: Final = "session.intra_op.allow_spinning"  # uses up the CPU quota of other threads


@dataclass(frozen=True)
class SessionRequest:
    """What a session is created from."""

    model_path: Path
    threads: int
    extensions: Libraries = NO_LIBRARIES  # checked
    level: str = HIGHEST  # a key of `LEVELS`
    device_memory: int | None = None  # bytes that the device has, if known
    runtime_cache: Path | None = None  # the folder for compiled kernels


class ProviderError(Exception):
    """The provider could not be created, with the library's message; the model is not the cause."""


class SessionBackend(ABC):
    """One way to run a model."""

    name: ClassVar[str]
    provider: ClassVar[str]
    needs_driver: ClassVar[bool] = False  # NVIDIA's
    compiled: ClassVar[bool] = False  # runs engines, which no other provider can run
    caches_kernels: ClassVar[bool] = False  # compiles kernels as it runs, and keeps them
    optimized: ClassVar[bool] = False  # runs the graph as ONNX Runtime optimizes it

    def is_offered(self) -> bool:
        """Return whether this image is built for the backend."""
        return self.provider in ort.get_available_providers()

    def complete(self) -> bool:
        """Return whether the image contains the backend's library, so that its version is known."""
        return True

    def conflict(self) -> str | None:
        """Return which components of the image are incompatible, if any."""
        return None

    def unusable(self) -> str | None:
        """Return why the backend's library in this image cannot be used, if there is one that cannot."""
        return None

    def origin(self) -> str | None:
        """Return the package URL of the backend's library, if it is no Python package and says where it is from."""
        return None

    def missing_libraries(self) -> tuple[str, ...]:
        """Return the missing libraries that the provider needs, except the driver's."""
        return ()

    def cuda_major(self) -> str | None:
        """Return the major version of CUDA that the provider was built for, if it uses CUDA."""
        return None

    def provider_options(self, request: SessionRequest) -> dict[str, str]:
        """Return the execution provider's options."""
        del request
        return {}

    def providers(self, options: ort.SessionOptions, request: SessionRequest) -> list[Any] | None:
        """Return the providers for `InferenceSession`, or None after adding them to `options`.

        Raises ProviderError, or StageFailure where the provider is not the cause.
        """
        del options
        providers = [(self.provider, self.provider_options(request))]
        return providers if self.provider == CPU_PROVIDER else [*providers, CPU_PROVIDER]

    def host_memory(self) -> Callable[[Sequence[int], Any], ort.OrtValue] | None:
        """Return what allocates tensors in host memory that the device reads directly, if anything does."""
        for ep_device in ort.get_ep_devices():
            if (
                ep_device.ep_name == self.provider
                and ep_device.device.type != ort.OrtHardwareDeviceType.CPU
            ):
                memory = ep_device.memory_info(ort.OrtDeviceMemoryType.HOST_ACCESSIBLE)
                allocate = ort.OrtValue.ortvalue_from_shape_and_type
                return partial(allocate, memory_info=memory) if memory is not None else None
        return None

    @abstractmethod
    def version(self) -> str:
        """Return the version of the backend's library."""


def load_small(model: bytes) -> ort.InferenceSession:
    """Load a serialized model on the CPU; raises ONNX Runtime's exceptions and logs nothing."""
    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    return ort.InferenceSession(model, options, providers=[CPU_PROVIDER])


def distribution() -> str:
    """Return the one distribution that owns the folder `onnxruntime`; raises StageFailure: ProviderMissing.

    Of two wheels, the last one installed overwrites the other, whose providers are missing; `pip check` is silent.
    """
    owning = distributions()
    if len(owning) != 1:
        raise StageFailure(
            Reason.PROVIDER_MISSING,
            f"{len(owning)} distributions own the folder onnxruntime ({', '.join(owning) or 'none'}),"
            " so the available providers are undefined",
            remedy="build the image with exactly one of them",
        )
    return owning[0]


def distributions() -> tuple[str, ...]:
    """Return all distributions that own the folder `onnxruntime`."""
    return tuple(owner.name for owner in owners("onnxruntime"))


class CpuBackend(SessionBackend):
    """Runs all of ONNX Runtime's operators, on the session's threads."""

    name: ClassVar[str] = "cpu"
    provider: ClassVar[str] = CPU_PROVIDER
    optimized: ClassVar[bool] = True

    @override
    def version(self) -> str:
        return str(ort.__version__)
