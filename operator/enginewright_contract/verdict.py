"""What a sidecar has found about its pod: `GET /verdict`, port 8081. Live measurements are metrics instead."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from enginewright_contract.base import Message
from enginewright_contract.execution import Baseline, StartTimes
from enginewright_contract.reasons import Reason, reason_named
from enginewright_contract.report import Finding
from enginewright_contract.task import Policy

# Allows a pod to become unready because of a broken promise, until a time in seconds since 1970. The
# operator sets it on one pod of a model at a time, and only while another one is ready and keeps its
# promise. Without it, an admitted pod becomes unready only if its answers are wrong. It expires, so
# that no pod stays unready after the operator has ended.
RELEASE_ANNOTATION: Final = "enginewright.dev/release-until"
RELEASE_SECONDS: Final = 600  # from now when written; a pod ignores a later time
# What pods of the same revision and class measured at their start. The operator sets it on pods that have not started, from
# what the sidecars of admitted pods report.
TIMES_ANNOTATION: Final = "enginewright.dev/start-times"


class Check(StrEnum):
    """What is checked; docs/sidecar.md shows the docstrings: when it is ok, else the reason."""

    SERVER = "server"
    """Live and ready; unknown until it has been ready once; else `ServerDown`, or the reason that it
    reports: `DeviceLost`, `RunsFail`."""
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
    INT8 products agree with the processor that the model was verified on; else `VersionMismatch`,
    `ProcessorMismatch`, `EngineCorrupt`, `EngineVersionMismatch`."""
    GOLDEN = "golden"
    """Every golden sample was sent, and the last answer to each is right, alone and in a batch; else
    `ParityFailed`, or `DeviceLost`, `RunsFail` after two consecutive responses of 500 or 400. Unknown with
    `NothingCompared` if no output had an element to compare; ok with `ParityUnknown` if the samples do not judge
    parts of outputs that `spec.parity.outputs` does not accept, or show nothing of one that it accepts."""
    PROBE_LATENCY = "probe-latency"
    """Golden inferences take at most 2.2 times the pod's baseline, in model time; else
    `SlowerThanBaseline`."""
    LIVE_LATENCY = "live-latency"
    """Requests take at most 2.2 times the pod's baseline for their size, in model time, and 3 times
    the best time of warm-up; else `SlowerThanBaseline`."""
    CLASS_LATENCY = "class-latency"
    """Runs take at most twice the engine's benchmark on its class; unknown without one; else
    `SlowerThanBenchmark`."""
    ERRORS = "errors"
    """At most 5% of the responses of the last minute, if there are 20 or more, are 5xx; 503 and 504, which
    are load, do not count. The message reports more than 5% of these, and when more than half are 4xx; else
    `TooManyErrors`."""


CheckState = Literal["ok", "failed", "unknown"]


def _read_reason(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return the reason, or None if this version does not know it, as a later sidecar may send new ones."""
    return reason_named(value) if isinstance(value, str) else value


def _of_known_checks(value: Any) -> Any:  # noqa: ANN401 - likewise
    """Drop checks that this version does not know: else the entire verdict would be invalid."""
    if not isinstance(value, list):
        return value
    supported = [
        item
        for item in value
        if not (isinstance(item, dict) and isinstance(item.get("check"), str))
        or item["check"] in set(Check)
    ]
    return supported or value  # without any known check the verdict stays invalid


_AnyReason = Annotated[Reason | None, BeforeValidator(_read_reason)]


def runs_as_allowed(policy: Policy, placement: CheckState, provider: Reason | None) -> bool:
    """Return whether a pod is admitted on another provider than its backend's, which the policy allows.

    With `SESSION_REPLACED` the pod was admitted on its provider and lost it under requests: no fallback
    from the start.
    """
    return policy != "Forbid" and placement == "ok" and provider is not Reason.SESSION_REPLACED


class CheckVerdict(Message):
    """Result of one check; unknown until it has run, never ok by default."""

    check: Check
    state: CheckState = "unknown"
    reason: _AnyReason = None  # if failed, or if it cannot be determined
    message: str = ""  # without the remedy

    @property
    def finding(self) -> Finding | None:
        """Return what is wrong; None if nothing is, or the reason is not known."""
        return None if self.reason is None else Finding(reason=self.reason, cause=self.message)


FALLBACK_KINDS: Final = ("NodeFallback", "BackendFallback")  # as metrics name them


class FallbackVerdict(Message):
    """The nodes that do not run on the promised provider."""

    active: bool
    """Whether nodes run elsewhere, beyond the budget."""
    kind: Literal["NodeFallback", "BackendFallback"] | None = None
    """NodeFallback or BackendFallback; absent for requests that pods of earlier releases run on the CPU."""
    reason: _AnyReason = None
    """The cause where one is known, such as DriverMissing."""
    message: str = ""
    """The cause as text."""
    broken: bool = False
    """Whether the promise is broken."""
    policy: Policy = "Forbid"
    """That of `spec.fallback`; only under Forbid does a broken promise make the pod unready."""
    nodes_total: int = 0
    """Compute nodes of the model, shape arithmetic excluded."""
    nodes_elsewhere: int = 0
    """How many of them run elsewhere."""
    compute_share: float | None = None
    """Their share of the profiled compute time, 0 to 1; absent: not profiled."""

    @property
    def active_kind(self) -> str | None:
        """Return the kind of the active fallback, one of `FALLBACK_KINDS`, if there is one."""
        return self.kind if self.active else None


class Verdict(Message):
    """Body of the response."""

    model: str
    """Name of the InferenceModel."""
    revision: str
    """Revision that the pod serves."""
    backend: str
    """Backend chosen for it."""
    provider: str | None = None
    """Execution provider that the server reports; absent: not reported yet."""
    ready: bool
    """Whether `/readyz` answers 200."""
    admitted: bool
    """Whether this server process has been ready."""
    checks: Annotated[tuple[CheckVerdict, ...], BeforeValidator(_of_known_checks)]
    """State, reason and message of every check."""
    fallback: FallbackVerdict | None = None
    """Nodes that run elsewhere, see below; absent: unknown."""
    baseline: Baseline | None = None
    """p50, p90 and p99 of the usual shapes, in model time, with shapes and runs; absent: not measured."""
    times: StartTimes | None = None
    """What the server measured at its start, for pods of the same revision; absent until the pod is admitted."""
    parity_max_abs_error: float | None = None
    """Largest absolute error in the last responses to the golden samples."""
    accepted: str = ""
    """Parts of outputs that the golden samples do not judge and `spec.parity.outputs` accepts, as text; empty: none."""
