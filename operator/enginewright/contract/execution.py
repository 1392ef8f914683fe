"""What a server says about how it runs the model: `GET /v2/models/<model>/execution`.

Read from the live session at every request, never from what it was asked to be, so that a session
which was replaced while serving is seen. The sidecar compares it with the manifest.
"""

from typing import Final

from enginewright.contract.base import Message
from enginewright.contract.processors import Processor
from enginewright.contract.reasons import Reason


class Driver(Message):
    """The accelerator's driver, as asked of the driver library itself."""

    needed: bool  # by the backend
    present: bool
    version: str | None = None
    reason: Reason | None = None  # DriverMissing, DriverTooOld
    message: str = ""


class PlacementFacts(Message):
    """Which provider runs which node, as ONNX Runtime assigned them (its pull request 26781).

    An EPContext node counts as one here; the manifest's partitions say what is in it.
    """

    nodes: dict[str, int]  # provider -> nodes
    elsewhere: tuple[str, ...] = ()  # all labels "name (OpType)" not on the wanted provider
    context_nodes: tuple[str, ...] = ()  # names of the EPContext nodes on the wanted provider


_SIZES: Final = 8  # for each power of two


def size_class(elements: int) -> int:
    """Return `elements` rounded up to an eighth of the power of two below: requests of about one size."""
    step = max(1, (1 << (elements.bit_length() - 1)) // _SIZES) if elements else 1
    return -(-elements // step) * step


class Baseline(Message):
    """Seconds that a run of the model takes, all of one shape; None: too few runs to tell."""

    p50: float
    p90: float | None = None
    p99: float | None = None
    samples: int  # runs
    shapes: str | None = None  # "opt", or the name of a golden sample; None: not known


class ComputeBucket(Message):
    """Time in the model for requests of about one size."""

    elements: int  # input elements of a request, rounded up by `size_class`
    warmup_seconds: float | None = None  # best run at warm-up; None: not warmed up
    count: int = 0  # requests since, without the first of each shape
    seconds: float = 0.0  # their time in the model, summed
    untimed: int = 0  # further runs for requests since: the first of each shape, and failed ones


class Execution(Message):
    """The answer."""

    model: str
    """Name of the InferenceModel."""
    revision: str
    """That the pod serves."""
    backend: str
    """Chosen for it."""
    provider: str
    """Execution provider that the backend stands for."""
    providers: tuple[str, ...]
    """Those that the session has registered."""
    session: int
    """1; increases when ONNX Runtime replaces the session."""
    placement: PlacementFacts
    """Nodes by provider as ONNX Runtime assigned them, labels of all nodes elsewhere, names of EPContext nodes."""
    provider_reason: Reason | None = None
    """Why the provider could not be created, where it could not."""
    provider_message: str = ""
    """The same for people."""
    driver: Driver
    """Whether the backend needs a driver, its version, and what is wrong with it, as of the start."""
    model_digest: str
    """Digest of the source."""
    prepared_key: str
    """Of the prepared model."""
    engine_key: str | None = None
    """Of the engine; absent: there is none."""
    engine_sha256: str | None = None
    """Of the engine file as loaded."""
    opset: int
    """Of the prepared model."""
    ort_distributions: tuple[str, ...]
    """Installed packages that own the folder onnxruntime: one, if all is well."""
    ort_version: str
    """Version of ONNX Runtime."""
    backend_version: str
    """Version of the backend's library."""
    runtime_version: str
    """Version of this server."""
    processor: Processor | None = None
    """That the server runs on."""
    buckets: tuple[ComputeBucket, ...] = ()
    """By size of request (input elements, rounded up by at most an eighth): best time at warm-up, count and time since, without the first run of each shape; `untimed` counts these and failed runs."""
    usual: Baseline | None = None
    """p50, p90 and p99 of the usual shapes, measured before the pod was ready."""
