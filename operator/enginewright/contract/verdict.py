"""What a sidecar has found about its pod: `GET /verdict`, port 8081.

The operator polls it. Nothing in it moves by itself: live figures are metrics.
"""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from enginewright.contract.base import Message
from enginewright.contract.execution import Baseline
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding

# The annotation of a pod that may become unready for a broken promise: until when, in seconds since
# 1970. The operator writes it on one pod of a model at a time, and only while another one is ready and
# keeps its promise. Without it only wrong answers take readiness away from a pod that was admitted.
# It ends by itself, so that an operator that is gone takes no pod away for good.
RELEASE_ANNOTATION: Final = "enginewright.dev/release-until"
RELEASE_SECONDS: Final = 600  # that it is written for; a pod believes no longer one


class Check(StrEnum):
    """What is checked; docs/sidecar.md shows the docstrings: ok when; else the reason."""

    SERVER = "server"
    """Live and ready; unknown until it has been ready once; else `ServerDown`, or what it reports:
    `DeviceLost`, `RunsFail`."""
    PROVIDER = "provider"
    """The backend's execution provider was created and took nodes, and its driver is present; else
    `ProviderMissing`, `ProviderRefused`, `DriverMissing`, `DriverTooOld`, `UnsupportedOperator`,
    `SessionReplaced`."""
    PLACEMENT = "placement"
    """Nodes run where `spec.fallback` promises; else `NodeFallback`, `BackendFallback`,
    `FallbackOverBudget`, or the cause: the provider's reason, `SessionReplaced`."""
    DISTRIBUTION = "distribution"
    """One installed distribution owns ONNX Runtime's folder; else `VersionMismatch`."""
    VERSIONS = "versions"
    """Model, revision, backend, keys, digests, opset and versions are those of task and manifest, and
    INT8 products those of the processor that the model was verified on; else `VersionMismatch`,
    `ProcessorMismatch`, `EngineCorrupt`, `EngineVersionMismatch`."""
    GOLDEN = "golden"
    """Every golden sample was sent, and the last answer to each is right; else `ParityFailed`, or
    `DeviceLost`, `RunsFail` after two answers in a row of 500 or 400."""
    PROBE_LATENCY = "probe-latency"
    """Golden inferences take at most 2.2 times the pod's baseline in the model; else
    `SlowerThanBaseline`."""
    LIVE_LATENCY = "live-latency"
    """Requests take at most 2.2 times the pod's baseline of their size in the model, and 3 times
    warm-up's best; else `SlowerThanBaseline`."""
    CLASS_LATENCY = "class-latency"
    """Runs take at most twice the engine's benchmark on its class; unknown without one; else
    `SlowerThanBenchmark`."""
    ERRORS = "errors"
    """At most 5% of the answers of the last minute, of 20 at least, are 5xx; the message reports when
    more than half are 4xx; else `TooManyErrors`."""


CheckState = Literal["ok", "failed", "unknown"]


def _known(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a reason that this version knows, else None: a later sidecar has more of them."""
    return None if isinstance(value, str) and value not in set(Reason) else value


def _of_known_checks(value: Any) -> Any:  # noqa: ANN401 - likewise
    """Leave out checks that this version does not know: else the whole verdict would be unreadable."""
    if not isinstance(value, list):
        return value
    known = [
        each
        for each in value
        if not (isinstance(each, dict) and isinstance(each.get("check"), str))
        or each["check"] in set(Check)
    ]
    return known or value  # of none that is known it is no verdict


_AnyReason = Annotated[Reason | None, BeforeValidator(_known)]


class CheckVerdict(Message):
    """One check's outcome; unknown until it ran, never ok by default."""

    check: Check
    state: CheckState = "unknown"
    reason: _AnyReason = None  # with failed, and with what stays unknown
    message: str = ""  # without what to do

    @property
    def finding(self) -> Finding | None:
        """Return what is wrong; None where nothing is, or the reason is not known."""
        return None if self.reason is None else Finding(reason=self.reason, cause=self.message)


class FallbackVerdict(Message):
    """What runs elsewhere than it was promised to."""

    active: bool
    """Whether nodes run elsewhere, beyond the budget."""
    kind: Literal["NodeFallback", "BackendFallback"] | None = None
    """NodeFallback or BackendFallback."""
    reason: _AnyReason = None
    """The cause where one is known, such as DriverMissing."""
    message: str = ""
    """For people."""
    broken: bool = False
    """Whether the promise does not allow it."""
    nodes_total: int = 0
    """Compute nodes of the model, shape arithmetic left out."""
    nodes_elsewhere: int = 0
    """How many of them run elsewhere."""
    compute_share: float | None = None
    """Their share of the profiled compute time, 0 to 1; absent: not profiled."""


class Verdict(Message):
    """All that a sidecar says."""

    model: str
    """Name of the InferenceModel."""
    revision: str
    """That the pod serves."""
    backend: str
    """Chosen for it."""
    provider: str | None = None
    """Execution provider that the server reports; absent: not reported yet."""
    ready: bool
    """What `/readyz` answers."""
    admitted: bool
    """Whether this server process has been ready."""
    checks: Annotated[tuple[CheckVerdict, ...], BeforeValidator(_of_known_checks)]
    """State, reason and message of every check."""
    fallback: FallbackVerdict | None = None
    """Nodes that run elsewhere, below; absent: unknown."""
    baseline: Baseline | None = None
    """p50, p90 and p99 of the usual shapes in the model, with shapes and runs; absent: not measured."""
    parity_max_abs_error: float | None = None
    """Largest absolute error in the last answers to the golden samples."""
