"""How a server runs the model, as it reports: `GET /v2/models/<model>/execution`.

Read from the live session at every request, never from the configuration, so that a session that
was replaced while serving is detected. The sidecar compares it with the manifest.
"""

from typing import Final

from pydantic import Field

from enginewright_contract.base import Message
from enginewright_contract.processors import Processor
from enginewright_contract.reasons import Reason


class Driver(Message):
    """The accelerator's driver, as the driver library itself reports it."""

    needed: bool  # by the backend
    present: bool
    version: str | None = None
    reason: Reason | None = None  # DriverMissing, DriverTooOld
    message: str = ""


class PlacementFacts(Message):
    """Which provider runs which node, as ONNX Runtime assigned them; an EPContext node counts as one."""

    nodes: dict[str, int]  # provider -> nodes
    elsewhere: tuple[str, ...] = ()  # all labels "name (OpType)" not on the wanted provider
    context_nodes: tuple[str, ...] = ()  # names of the EPContext nodes on the wanted provider


_SIZES: Final = 8  # size classes for each power of two


def size_class(elements: int) -> int:
    """Return `elements` rounded up to an eighth of the power of two below, to group similar requests."""
    step = max(1, (1 << (elements.bit_length() - 1)) // _SIZES) if elements else 1
    return -(-elements // step) * step


class Baseline(Message):
    """Seconds per run of the model, all runs of one shape; percentiles need enough of them."""

    p50: float
    p90: float | None = None
    p99: float | None = None
    samples: int  # runs
    shapes: str | None = None  # "opt", or the name of a golden sample


class StartTimes(Message):
    """What a server measured of its model when it started, for pods of the same revision that start later.

    A server repeats no measurement that these confirm, so wrong ones cost no more than the repetitions. They prove nothing
    about outputs: of that every server has its own proofs.
    """

    batches: dict[int, dict[int, float]] = Field(default_factory=dict)
    """Seconds of a run by its rows, by elements of a row."""
    gains: dict[int, float] = Field(default_factory=dict)
    """Factor of the rate by number of runs at a time."""
    usual: Baseline | None = None
    """The baseline, in what a pod is given; a report has it beside these."""


class ComputeBucket(Message):
    """Time in the model for requests of one size class."""

    elements: int  # input elements of a request, rounded up by `size_class`
    warmup_seconds: float | None = None  # best run at warm-up
    count: int = 0  # requests since warm-up, except the first of each shape
    seconds: float = 0.0  # sum of their times in the model
    untimed: int = 0  # others since warm-up: the first of each shape, beside another run, failed


class ExecutedStep(Message):
    """A model that runs on the CPU before or after the served one."""

    name: str  # before-0, before-1, after-0
    digest: str  # of its files


class PaddedRequests(Message):
    """How requests of different lengths run together."""

    inputs: dict[str, tuple[int, float]]  # dimension that is padded, and with which value
    outputs: dict[str, tuple[int, ...]]  # dimensions that are as long as the request
    longest: int  # length up to which requests are padded
    needed: tuple[str, ...] = ()  # inputs of which no row may be padding alone


class Execution(Message):
    """Body of the response."""

    model: str
    """Name of the InferenceModel."""
    revision: str
    """Revision that the pod serves."""
    backend: str
    """Backend chosen for it."""
    provider: str
    """Execution provider of the backend."""
    providers: tuple[str, ...]
    """Execution providers that the session has registered."""
    session: int
    """1; increases when ONNX Runtime replaces the session."""
    placement: PlacementFacts
    """Nodes by provider as ONNX Runtime assigned them, labels of all nodes on other providers, names of EPContext nodes."""
    provider_reason: Reason | None = None
    """Why the provider could not be created; absent: it was created."""
    provider_message: str = ""
    """The same as text."""
    driver: Driver
    """Whether the backend needs a driver, its version, and what is wrong with it, at the server's start."""
    model_digest: str
    """Digest of the source model."""
    prepared_key: str
    """Key of the prepared model."""
    engine_key: str | None = None
    """Key of the engine; absent: it needs none."""
    engine_sha256: str | None = None
    """sha256 of the engine file as loaded."""
    opset: int
    """Opset of the prepared model."""
    ort_distributions: tuple[str, ...]
    """Installed packages that own the folder onnxruntime: exactly one in a valid image."""
    ort_version: str
    """Version of ONNX Runtime."""
    backend_version: str
    """Version of the backend's library."""
    runtime_version: str
    """Version of this server."""
    processor: Processor | None = None
    """Processor that the server runs on."""
    buckets: tuple[ComputeBucket, ...] = ()
    """By size of request (input elements, rounded up by at most an eighth): best time at warm-up, then count and total time except the first run of each shape and runs beside others; `untimed` counts those and failed runs."""
    batch_rows: int = 1
    """Rows of the largest batch of requests that run together; 1: each runs alone."""
    padding: PaddedRequests | None = None
    """How requests of different lengths run together: dimension and value by input, dimensions of outputs that are cut, the longest such length, and the inputs of which no row may be padding alone. Absent: they do not."""
    usual: Baseline | None = None
    """p50, p90 and p99 of the usual shapes, measured before the pod was ready."""
    times: StartTimes | None = None
    """What else was measured then, of batches and of several runs at a time."""
    steps: tuple[ExecutedStep, ...] = ()
    """Steps of spec.processing in their order, with the digests of their files."""
