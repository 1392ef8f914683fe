"""What an inspection has found, as one frozen value: what `--json` prints and the tables show."""

from typing import Final, Literal

from enginewright.contract.base import Message
from enginewright.contract.layers import EngineLayers
from enginewright.contract.manifest import Latency, Partition
from pydantic import Field

Kind = Literal["artifact", "manifest", "engine", "context-model", "resource"]
UNREADABLE: Final = 2  # exit code, also of wrong usage
WILL_NOT_LOAD: Final = 1


class InspectionError(Exception):
    """There is nothing that could be inspected; the message says why and what to do."""


class InspectedFile(Message):
    """One file, and what it says of itself."""

    path: str
    """Relative to what is inspected."""
    size_bytes: int | None = None
    """Absent: the file is missing."""
    sha256: str | None = None
    """As the manifest lists it; absent: there is none."""
    state: Literal["whole", "missing", "changed", "cut off", "not compared"]
    """whole, missing, changed, cut off, or not compared."""
    version: str | None = None
    """Version of the builder, from the engine's header."""
    compute_capabilities: tuple[str, ...] = ()
    """That it runs on, from the engine's header."""


class InspectedLayers(EngineLayers):
    """What one engine is made of, and how many layers of each type are listed."""

    types: dict[str, int] = Field(default_factory=dict)


class EngineInspection(Message):
    """One engine, as far as it is known."""

    source: str
    """What was inspected."""
    kind: Kind
    """artifact, manifest, engine, context-model or resource."""
    key: str | None = None
    """Of the engine in the store."""
    prepared_key: str | None = None
    """Of the prepared model that it was built from."""
    model_digest: str | None = None
    """Digest of the source."""
    backend: str | None = None
    """That runs it."""
    backend_version: str | None = None
    """Version of the library that built it."""
    ort_version: str | None = None
    """Version of ONNX Runtime that it was built for."""
    cuda_major: str | None = None
    """Major version of CUDA that it was built for."""
    accelerator_class: str | None = None
    """That it was built for."""
    compute_capabilities: tuple[str, ...] = ()
    """That it runs on; empty: not known."""
    opset: int | None = None
    """Of the model."""
    precision: str | None = None
    """That it was given; absent: the source's own, or not known."""
    nodes_total: int | None = None
    """Nodes of the model that compute."""
    nodes_accelerated: int | None = None
    """How many of them are inside the engine."""
    compute_share_elsewhere: float | None = None
    """Share of the profiled compute time outside the engine, 0 to 1."""
    elsewhere: tuple[str, ...] = ()
    """Nodes outside the engine."""
    size_bytes: int | None = None
    """Size of the engine files."""
    sha256: str | None = None
    """Digest of the engine file."""
    workspace_bytes: int | None = None
    """Device memory that the build was allowed for scratch space."""
    build_seconds: float | None = None
    """Time that the builder took."""
    peak_memory_bytes: int | None = None
    """Most memory of the build."""
    latency: Latency | None = None
    """Of the usual shapes on a device of the class; absent: built without one."""
    parity_max_abs_error: float | None = None
    """Largest absolute error of all outputs against the golden ones."""
    state: str = ""
    """Of an InferenceEngine: its condition Ready."""
    partitions: tuple[Partition, ...] = ()
    """Nodes of the model in each engine."""
    files: tuple[InspectedFile, ...] = ()
    """Each file, below."""
    layers: tuple[InspectedLayers, ...] = ()
    """Layers of each engine, with their types, and kernels where it was built on a device."""
    problems: tuple[str, ...] = ()
    """Why it loads nowhere."""
    notes: tuple[str, ...] = ()
    """What could not be examined."""


class EngineFit(Message):
    """Whether an engine will load on a class, and why not."""

    target: str
    """What was asked about: "class l4" or "compute capability 8.9"."""
    loads: bool
    """Whether it loads, as far as was compared."""
    obstacles: tuple[str, ...] = ()
    """Why not."""
    not_compared: tuple[str, ...] = ()
    """What could not be compared, and why."""
