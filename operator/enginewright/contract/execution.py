"""What a server says about how it runs the model: `GET /v2/models/<model>/execution`.

Read from the live session at every request, never from what it was asked to be, so that a session
which was replaced while serving is seen. The sidecar compares it with the manifest.
"""

from enginewright.contract.base import Message
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


class ComputeBucket(Message):
    """Time in the model for requests of about one size."""

    elements: int  # input elements of a request, rounded up to a power of two
    warmup_seconds: float | None = None  # best run at warm-up; None: not warmed up
    count: int = 0  # requests since
    seconds: float = 0.0  # their time in the model, summed


class Execution(Message):
    """The answer."""

    model: str
    revision: str
    backend: str
    provider: str  # that the backend stands for
    providers: tuple[str, ...]  # that the session has registered
    session: int  # rises when ONNX Runtime replaces the session; 1 at first
    placement: PlacementFacts
    provider_reason: Reason | None = None  # why the provider could not be made, where it could not
    provider_message: str = ""
    driver: Driver
    model_digest: str
    prepared_key: str
    engine_key: str | None = None
    engine_sha256: str | None = None  # of the engine file as loaded
    opset: int
    ort_distributions: tuple[str, ...]  # that own the folder onnxruntime: one, if all is well
    ort_version: str
    backend_version: str
    runtime_version: str
    buckets: tuple[ComputeBucket, ...] = ()
