"""What a backend is: a promise about which provider runs the nodes, and what that provider needs."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import onnxruntime as ort
from enginewright.contract.images import PROVIDERS
from enginewright.contract.reasons import Reason
from typing_extensions import override

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session.extensions.libraries import NO_LIBRARIES, Libraries
from enginewright_runtime.session.libraries import owners
from enginewright_runtime.session.optimization import HIGHEST

CPU_PROVIDER: Final = PROVIDERS["cpu"]
# entries of a session's configuration
RECORD_ASSIGNMENT: Final = "session.record_ep_graph_assignment_info"
SPINNING: Final = "session.intra_op.allow_spinning"  # burns the quota that other threads need


@dataclass(frozen=True)
class SessionRequest:
    """What a session is to be made of."""

    model_path: Path
    threads: int
    extensions: Libraries = NO_LIBRARIES  # checked
    level: str = HIGHEST  # a key of `LEVELS`


class ProviderError(Exception):
    """The provider could not be made, and this says why in the library's own text; not the model's fault."""


class SessionBackend(ABC):
    """One way to run a model."""

    name: ClassVar[str]
    provider: ClassVar[str]
    needs_driver: ClassVar[bool] = False  # NVIDIA's
    compiled: ClassVar[bool] = False  # runs engines, which no other provider can run
    optimized: ClassVar[bool] = (
        False  # runs what ONNX Runtime's own optimisations make of the graph
    )

    def offered(self) -> bool:
        """Tell whether this image is meant for the backend."""
        return self.provider in ort.get_available_providers()

    def complete(self) -> bool:
        """Tell whether the image holds the backend's library, whose version can then be asked for."""
        return True

    def conflict(self) -> str | None:
        """Return what does not fit together of what the image holds; None: all of it does."""
        return None

    def missing_libraries(self) -> tuple[str, ...]:
        """Return the libraries that the provider needs and that are not here, the driver's apart."""
        return ()

    def cuda_major(self) -> str | None:
        """Return the major version of CUDA that the provider was built for; None: for none."""
        return None

    def provider_options(self, request: SessionRequest) -> dict[str, str]:
        """Return the execution provider's options."""
        del request
        return {}

    def providers(self, options: ort.SessionOptions, request: SessionRequest) -> list[Any] | None:
        """Return what `InferenceSession` takes as providers; None: `options` has them now.

        Raises:
            ProviderError: the provider cannot be made.
        """
        del options
        wanted = [(self.provider, self.provider_options(request))]
        return wanted if self.provider == CPU_PROVIDER else [*wanted, CPU_PROVIDER]

    @abstractmethod
    def version(self) -> str:
        """Return the version of the backend's library."""


def distribution() -> str:
    """Return the one distribution that owns the folder `onnxruntime`.

    Every ONNX Runtime wheel owns that folder; with two installed the last one wins, its provider
    goes and `pip check` says nothing.

    Raises:
        StageFailure: ProviderMissing, naming the distributions.
    """
    found = distributions()
    if len(found) != 1:
        raise StageFailure(
            Reason.PROVIDER_MISSING,
            f"{len(found)} distributions own the folder onnxruntime ({', '.join(found) or 'none'}),"
            " so which providers exist is chance",
            remedy="build the image with exactly one of them",
        )
    return found[0]


def distributions() -> tuple[str, ...]:
    """Return all distributions that own the folder `onnxruntime`."""
    return tuple(each.name for each in owners("onnxruntime"))


class CpuBackend(SessionBackend):
    """Runs every operator that ONNX Runtime knows; threads are the session's."""

    name: ClassVar[str] = "cpu"
    provider: ClassVar[str] = CPU_PROVIDER
    optimized: ClassVar[bool] = True

    @override
    def version(self) -> str:
        """Return ONNX Runtime's version."""
        return str(ort.__version__)
