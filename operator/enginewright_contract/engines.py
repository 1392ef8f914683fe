"""Which devices NVIDIA's libraries build engines for, and which ones ONNX Runtime's providers serve.

Two tables, since they differ: an engine that can be built cannot always be served. Operator, Jobs,
server and preflight all use them, so that no engine is built that no provider loads.

Sources:

- TensorRT 10 builds for the installed device. ONNX Runtime 1.31.1 is linked to CUDA 13, whose libraries
  have dropped everything before 7.5 (CUDA 13.0 release notes, "Deprecated or Dropped Features").
- `TensorrtExecutionProvider::GetCapability` of ONNX Runtime 1.31.1 looks for an EPContext node only
  where `graph.NumberOfNodes() == 1` (microsoft/onnxruntime pull 18217; several or mixed: pull 23294,
  closed unmerged). Beside another node an EPContext node gets no kernel.
- TensorRT-RTX: the library's `ComputeCapability` enumerates its targets (1.7.1). The plug-in
  0.5.0 (NVIDIA/TensorRT-RTX-EP-ABI) offers the devices that `IsOrtHardwareDeviceSupported` accepts,
  claims every EPContext node separately, wherever it is, and rejects a model that has an input or
  output of a type that `IsSupportedInputOutputDataType` does not list (both in its
  `GetCapabilityImpl`).
- Optimization levels: `IBuilderConfig.builder_optimization_level` of both libraries accepts 0 to 5, but
  TensorRT-RTX 1.7.1 builds the same bytes at every level, as it selects kernels when an engine is loaded.
- CUDA: the wheel of onnxruntime-gpu 1.31.1 contains cubins and no PTX. A cubin runs on devices of the
  same major and the same or a higher minor version (CUDA C++ Programming Guide, "Binary
  Compatibility").
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from enginewright_contract.manifest import TensorSpec
from enginewright_contract.precisions import version


@dataclass(frozen=True)
class Capabilities:
    """Compute capabilities, each as "8.9"."""

    listed: frozenset[str] = frozenset()
    since: str | None = None  # and from this one on
    binary: bool = False  # cubins for those listed: higher minor versions of the same major too

    def __contains__(self, capability: str) -> bool:
        """Return whether a compute capability is among them."""
        if capability in self.listed:
            return True
        requested = version(capability)
        if self.since is not None and requested >= version(self.since):
            return True
        listed = map(version, self.listed)
        return self.binary and any(pair[0] == requested[0] and pair <= requested for pair in listed)

    @override
    def __str__(self) -> str:
        named = sorted(self.listed, key=version)
        if self.since is not None:
            named.append(f"{self.since} and newer")
        return ", ".join(named)


@dataclass(frozen=True)
class Library:
    """A library that builds engines, and the devices that it builds for."""

    title: str  # in messages
    capabilities: Capabilities
    optimizes: bool  # whether builder_optimization_level, 0 to HIGHEST_OPTIMIZATION, has an effect


@dataclass(frozen=True)
class Provider:
    """The execution provider of a backend, and what it can serve."""

    title: str  # in messages
    capabilities: Capabilities | None = None  # that it supports, if not all
    loads_parts: bool = True  # several engines in one model, and engines beside other nodes
    types: frozenset[str] | None = None  # of inputs and outputs, numpy names, if not all


HIGHEST_OPTIMIZATION: Final = 5  # NVIDIA treats higher levels like this one

LIBRARIES: Final = {
    "tensorrt": Library("TensorRT", Capabilities(since="7.5"), optimizes=True),
    "tensorrt-rtx": Library(
        "TensorRT-RTX",
        Capabilities(frozenset({"7.5", "8.0", "8.6", "8.9", "12.0", "12.1"})),
        optimizes=False,
    ),
}
PROVIDERS: Final = {
    "tensorrt": Provider("ONNX Runtime's TensorRT provider", loads_parts=False),
    "tensorrt-rtx": Provider(
        "ONNX Runtime's TensorRT-RTX provider",
        Capabilities(frozenset({"8.6", "8.9"}), since="12.0"),
        types=frozenset(
            {
                *("float32", "float16", "bfloat16", "float8_e4m3fn", "float4_e2m1fn"),
                *("bool", "int4", "int8", "uint8", "int32", "int64"),
            }
        ),
    ),
    "cuda": Provider(
        "ONNX Runtime's CUDA provider",
        Capabilities(frozenset({"7.5", "8.0", "8.6", "8.9", "9.0", "12.0"}), binary=True),
    ),
}


def builds(backend: str, capability: str) -> bool:
    """Return whether the backend's library, if it has one, builds engines for a compute capability."""
    return backend not in LIBRARIES or capability in LIBRARIES[backend].capabilities


def serves(backend: str, capability: str) -> bool:
    """Return whether the backend's provider supports a compute capability, such as "8.9"."""
    provider = PROVIDERS.get(backend)
    return provider is None or provider.capabilities is None or capability in provider.capabilities


def why_unusable(backend: str, capability: str | None) -> str | None:
    """Return why a backend cannot serve on a compute capability; None if it can, or if only the device decides."""
    if capability is None or backend not in PROVIDERS:
        return None
    built, served = builds(backend, capability), serves(backend, capability)
    library, provider = LIBRARIES.get(backend), PROVIDERS[backend]
    if library is None:
        return (
            None
            if served
            else (
                f"{provider.title} has no code for compute capability {capability}, only for"
                f" {provider.capabilities}"
            )
        )
    if built and served:
        return None
    if built:
        return (
            f"{library.title} builds engines for compute capability {capability}, but they cannot be"
            f" served: {provider.title} supports only {provider.capabilities}"
        )
    only = f"{library.title} does not build for compute capability {capability}, only for {library.capabilities}"
    return only if served else f"{only}, and {provider.title} supports only {provider.capabilities}"


def whole_only(backend: str) -> str | None:
    """Return why a backend cannot serve engines for parts of a model, as text; None when it can."""
    provider = PROVIDERS.get(backend)
    if provider is None or provider.loads_parts:
        return None
    return f"{provider.title} loads an engine only if it contains the whole model"


def why_not_optimized(backend: str) -> str | None:
    """Return why `optimization_level` has no effect on a backend; None when it has one."""
    library = LIBRARIES.get(backend)
    if library is None:
        return f"the backend {backend} builds no engine"
    return None if library.optimizes else f"{library.title} builds the same engine at every level"


def find_unserved_tensors(backend: str, tensors: Iterable[TensorSpec]) -> tuple[str, ...]:
    """Return the tensors whose types the backend's provider does not support, as "name (type)"."""
    provider = PROVIDERS.get(backend)
    if provider is None or provider.types is None:
        return ()
    return tuple(
        f"{tensor.name} ({tensor.dtype})"
        for tensor in tensors
        if tensor.dtype not in provider.types
    )
