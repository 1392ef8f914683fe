"""What an inspection has found, as one frozen value: what `--json` prints and the tables show."""

from typing import Any, Final, Literal

from enginewright.contract.base import Message
from enginewright.contract.manifest import Latency, Partition
from pydantic import Field

Kind = Literal["artifact", "manifest", "engine", "context-model", "resource"]
UNREADABLE: Final = 2  # exit code, also of wrong usage
WILL_NOT_LOAD: Final = 1


class InspectionError(Exception):
    """There is nothing that could be inspected; the message says why and what to do."""


class InspectedFile(Message):
    """One file, and what it says of itself."""

    path: str  # relative to what is inspected
    size_bytes: int | None = None  # None: not there
    sha256: str | None = None  # as listed in the manifest; None: there is none
    state: Literal["whole", "missing", "changed", "cut off", "not compared"]
    version: str | None = None  # of an engine's header: of the builder
    compute_capabilities: tuple[str, ...] = ()  # likewise


class Layers(Message):
    """What one engine is made of."""

    engine: str
    total: int
    types: dict[str, int] = Field(default_factory=dict)  # of those that are listed
    layers: tuple[dict[str, Any], ...] = ()
    kernels: tuple[str, ...] = ()  # (): built without a device


class Inspection(Message):
    """One engine, as far as it is known."""

    source: str
    kind: Kind
    key: str | None = None
    prepared_key: str | None = None
    model_digest: str | None = None
    backend: str | None = None
    backend_version: str | None = None
    ort_version: str | None = None
    cuda_major: str | None = None
    accelerator_class: str | None = None
    compute_capabilities: tuple[str, ...] = ()  # (): not known
    opset: int | None = None
    precision: str | None = None  # None: the source's own, or not known
    nodes_total: int | None = None
    nodes_accelerated: int | None = None
    compute_share_elsewhere: float | None = None
    elsewhere: tuple[str, ...] = ()
    size_bytes: int | None = None
    sha256: str | None = None
    workspace_bytes: int | None = None
    build_seconds: float | None = None
    peak_memory_bytes: int | None = None
    latency: Latency | None = None
    parity_max_abs_error: float | None = None
    state: str = ""  # of a resource, in words
    partitions: tuple[Partition, ...] = ()
    files: tuple[InspectedFile, ...] = ()
    layers: tuple[Layers, ...] = ()
    problems: tuple[str, ...] = ()  # for which it loads nowhere
    notes: tuple[str, ...] = ()  # what could not be looked at


class Fit(Message):
    """Whether an engine will load on a class, and why not."""

    target: str  # "class l4", or "compute capability 8.9"
    loads: bool
    obstacles: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
