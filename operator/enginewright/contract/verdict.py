"""What a sidecar has found about its pod: `GET /verdict`, port 8081.

The operator polls it. Nothing in it moves by itself: live figures are metrics.
"""

from enum import StrEnum
from typing import Literal

from enginewright.contract.base import Message
from enginewright.contract.manifest import Latency
from enginewright.contract.reasons import Reason

# GET /verdict?release=1 lets the pod become unready for a broken promise: the operator says so to
# one pod at a time, and only while another one is ready and keeps its promise. Without it only
# wrong answers take readiness away from a pod that was once admitted.
RELEASE_PARAMETER = "release"


class Check(StrEnum):
    """What is checked."""

    SERVER = "server"  # alive and ready
    PROVIDER = "provider"  # the backend's provider was really made, its driver is there
    PLACEMENT = "placement"  # nodes, against the promise
    DISTRIBUTION = "distribution"  # one ONNX Runtime owns its folder
    VERSIONS = "versions"  # ONNX Runtime, opset, backend, engine digest against the manifest
    GOLDEN = "golden"  # a golden inference over the path that requests take
    PROBE_LATENCY = "probe-latency"  # of golden inferences, against the pod's own baseline
    LIVE_LATENCY = "live-latency"  # time in the model, by size, against warm-up
    ERRORS = "errors"  # share of requests that fail


CheckState = Literal["ok", "failed", "unknown"]


class CheckVerdict(Message):
    """One check's outcome; unknown until it ran, never ok by default."""

    check: Check
    state: CheckState = "unknown"
    reason: Reason | None = None  # with failed
    message: str = ""


class FallbackVerdict(Message):
    """What runs elsewhere than it was promised to."""

    active: bool
    kind: Literal["NodeFallback", "BackendFallback"] | None = None
    reason: Reason | None = (
        None  # the cause where one is known: DriverMissing, ProviderMissing, ...
    )
    message: str = ""
    broken: bool = False  # the promise does not allow it
    nodes_total: int = 0  # original nodes, shape arithmetic left out
    nodes_elsewhere: int = 0
    compute_share: float | None = None  # elsewhere, of profiled time; None: not profiled


class Verdict(Message):
    """All that a sidecar says."""

    model: str
    revision: str
    backend: str
    provider: str | None = None  # None: not yet heard of
    ready: bool  # what /readyz answers
    admitted: bool  # whether it was ready once
    checks: tuple[CheckVerdict, ...]
    fallback: FallbackVerdict | None = None  # None: unknown
    baseline: Latency | None = None  # of golden inferences over HTTP; None: not measured yet
    parity_max_abs_error: float | None = None
