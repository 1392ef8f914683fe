"""The result of an inspection, as one frozen value: printed by `--json` or as tables."""

from typing import Final, Literal

from enginewright_contract.base import Message
from enginewright_contract.layers import EngineLayers
from enginewright_contract.manifest import Latency, Partition
from pydantic import Field

Kind = Literal["artifact", "manifest", "engine", "context-model", "resource"]
WILL_NOT_LOAD: Final = 1


class InspectedFile(Message):
    """One file, and what its header says."""

    path: str
    """Path relative to the inspected file or folder."""
    size_bytes: int | None = None
    """Size; absent: the file is missing."""
    sha256: str | None = None
    """Digest listed in the manifest; absent: there is no manifest."""
    state: Literal["whole", "missing", "changed", "cut off", "not compared"]
    """whole, missing, changed, cut off, or not compared."""
    version: str | None = None
    """Version of the builder, from the engine's header."""
    compute_capabilities: tuple[str, ...] = ()
    """Compute capabilities that it runs on, from the engine's header."""


class InspectedLayers(EngineLayers):
    """Layers and kernels of one engine, and the number of its listed layers by type."""

    types: dict[str, int] = Field(default_factory=dict)


class EngineInspection(Message):
    """What is known of one engine."""

    source: str
    """What was inspected."""
    kind: Kind
    """artifact, manifest, engine, context-model or resource."""
    key: str | None = None
    """Key of the engine in the store."""
    prepared_key: str | None = None
    """Key of the prepared model that it was built from."""
    model_digest: str | None = None
    """Digest of the source model."""
    backend: str | None = None
    """Backend that runs it."""
    backend_version: str | None = None
    """Version of the library that built it."""
    ort_version: str | None = None
    """Version of ONNX Runtime that it was built for."""
    cuda_major: str | None = None
    """Major version of CUDA that it was built for."""
    accelerator_class: str | None = None
    """AcceleratorClass that it was built for."""
    compute_capabilities: tuple[str, ...] = ()
    """Compute capabilities that it runs on; empty: not known."""
    opset: int | None = None
    """Opset of the model."""
    precision: str | None = None
    """Precision that the model was converted to; absent: the source's own, or not known."""
    nodes_total: int | None = None
    """Number of compute nodes of the model."""
    nodes_accelerated: int | None = None
    """Number of them inside the engine."""
    compute_share_elsewhere: float | None = None
    """Share of the profiled compute time outside the engine, 0 to 1."""
    elsewhere: tuple[str, ...] = ()
    """Nodes outside the engine."""
    size_bytes: int | None = None
    """Size of the engine files."""
    sha256: str | None = None
    """Digest of the engine file."""
    workspace_bytes: int | None = None
    """Workspace limit of the build: device memory for scratch space."""
    optimization_level: int | None = None
    """TensorRT's builder_optimization_level, as requested; absent: the builder's default."""
    build_seconds: float | None = None
    """Time that the builder took."""
    peak_memory_bytes: int | None = None
    """Peak host memory of the build."""
    latency: Latency | None = None
    """Latency with the opt shapes on a device of the class; absent: built without a device."""
    parity_max_abs_error: float | None = None
    """Largest absolute error over all outputs, against the golden samples."""
    unjudged: str = ""
    """Parts of outputs that the golden samples do not judge and `spec.parity.outputs` does not accept, as text; empty: none."""
    state: str = ""
    """Condition Ready of an InferenceEngine."""
    partitions: tuple[Partition, ...] = ()
    """Nodes of the model in each partition."""
    files: tuple[InspectedFile, ...] = ()
    """Files, described below."""
    layers: tuple[InspectedLayers, ...] = ()
    """Layers of each engine by type, and kernels where it was built on a device."""
    problems: tuple[str, ...] = ()
    """Why it cannot be loaded anywhere."""
    notes: tuple[str, ...] = ()
    """What could not be examined."""


class EngineFit(Message):
    """Whether an engine will load on a class, and why not."""

    target: str
    """Where it is to be loaded: "class l4" or "compute capability 8.9"."""
    loads: bool
    """Whether it loads, as far as could be compared."""
    obstacles: tuple[str, ...] = ()
    """Why it does not load."""
    not_compared: tuple[str, ...] = ()
    """What could not be compared, and why."""
