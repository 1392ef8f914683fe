"""The sidecar's metrics. Unknown values are omitted, since zero would be a false value.

The names are a public interface for alerts and dashboards (docs/reference/metrics.md lists them). What changes with
the state, such as a reason, is a label only of series that exist as long as that state does: otherwise its change
would end one series and begin another, and reset every `for` and `changes()`.
"""

from typing import Final, get_args

from enginewright_contract.verdict import FALLBACK_KINDS, Check, CheckState

from enginewright_serving.sidecar.execution_checks import opset_supported
from enginewright_serving.sidecar.exposition import Exposition, Family
from enginewright_serving.sidecar.pod_state import PodState

_PLACEMENT_NODES: Final = Family(
    "enginewright_placement_nodes",
    "Compute nodes of the model by the execution provider that runs them; nodes inside engines are counted.",
    ("provider",),
)
_FALLBACK_NODES: Final = Family(
    "enginewright_fallback_nodes",
    "Compute nodes that run on another execution provider than promised.",
)
_FALLBACK_RATIO: Final = Family(
    "enginewright_fallback_ratio",
    "Share of the profiled compute time that these nodes take, 0 to 1.",
)
_FALLBACK_ACTIVE: Final = Family(
    "enginewright_fallback_active",
    "1 while the model falls back in this way (kind NodeFallback or BackendFallback), else 0.",
    ("kind",),
)
_FALLBACK_REASON: Final = Family(
    "enginewright_fallback_reason",
    "1, with the reason of enginewright_fallback_active, while that is 1; else absent.",
    ("kind", "reason"),
)
_PROVIDER_AVAILABLE: Final = Family(
    "enginewright_provider_available",
    "1 when check provider is ok: the execution provider was created and its driver is present; 0 when it failed.",
    ("provider",),
)
_OPSET_SUPPORTED: Final = Family(
    "enginewright_opset_supported",
    "1 when the serving ONNX Runtime is the one that the model was prepared for and supports the model's opset.",
)
_INFO: Final = Family(
    "enginewright_info",
    "What serves, as the server reports it; always 1.",
    ("model_digest", "engine_key", "opset", "ort_version", "backend_version"),
)
_CHECK: Final = Family(
    "enginewright_check",
    "1 for the state that the check is in, 0 for the other two.",
    ("check", "state"),
)
_RUNS_FAILING: Final = Family(
    "enginewright_runs_failing",
    "1 while the server answers and every run of the model fails, else 0.",
)
_RUNS_FAILING_REASON: Final = Family(
    "enginewright_runs_failing_reason",
    "1, with the reason of enginewright_runs_failing (DeviceLost or RunsFail), while that is 1; else absent.",
    ("reason",),
)
_PROBE_FAILURES: Final = Family(
    "enginewright_probe_failures_total", "Runs of a check that failed.", ("check",), "counter"
)
_PROBE_DURATION: Final = Family(
    "enginewright_probe_duration_seconds",
    "Duration of golden inferences, from the first byte sent to the last one received.",
    kind="histogram",
)
_BASELINE_LATENCY: Final = Family(
    "enginewright_baseline_latency_seconds",
    "Baseline of the verdict: time in the model for the usual shapes right after loading, by percentile (50, 90, 99).",
    ("percentile",),
)
_USUAL_LATENCY: Final = Family(
    "enginewright_usual_latency_seconds",
    "Time in the model for the usual shapes, the lower of startup and now; pods of one class are compared by it.",
    ("shapes",),
)
_LATENCY_RATIO: Final = Family(
    "enginewright_latency_ratio",
    "Current latency over the pod's baseline (probe-latency, live-latency) or over the class's benchmark (class-latency); the worst of what is measured.",
    ("check",),
)
_BASELINE_LOWERED: Final = Family(
    "enginewright_baseline_lowered_total",
    "Times that a baseline proved too high and was measured again.",
    ("check",),
    "counter",
)
_PARITY_MAX_ABS_ERROR: Final = Family(
    "enginewright_parity_max_abs_error",
    "Largest absolute error in the latest answers to the golden samples.",
)

FAMILIES: Final = tuple(item for item in tuple(globals().values()) if isinstance(item, Family))


def expose(pod_state: PodState, server: bytes) -> bytes:
    """Return the sidecar's metrics followed by the server's own exposition."""
    text = Exposition({"model": pod_state.task.model, "revision": pod_state.task.revision})
    _placement(pod_state, text)
    _versions(pod_state, text)
    _checks(pod_state, text)
    _latency(pod_state, text)
    return text.text(server)


def _placement(pod_state: PodState, text: Exposition) -> None:
    placed = pod_state.placed
    if placed is None:
        return
    text.family(
        _PLACEMENT_NODES, [({"provider": name}, count) for name, count in placed.nodes.items()]
    )
    fallback = placed.fallback
    share = fallback.compute_share if fallback.nodes_elsewhere else 0.0
    text.family(_FALLBACK_NODES, [({}, fallback.nodes_elsewhere)])
    text.family(_FALLBACK_RATIO, [] if share is None else [({}, share)])
    active = fallback.active_kind
    text.family(_FALLBACK_ACTIVE, [({"kind": kind}, kind == active) for kind in FALLBACK_KINDS])
    if active is not None:
        text.family(
            _FALLBACK_REASON, [({"kind": active, "reason": str(fallback.reason or active)}, 1)]
        )


def _versions(pod_state: PodState, text: Exposition) -> None:
    reported = pod_state.reported
    if reported is None:
        return
    states = {verdict.check: verdict.state for verdict in pod_state.verdict().checks}
    if states[Check.PROVIDER] != "unknown":
        text.family(
            _PROVIDER_AVAILABLE, [({"provider": reported.provider}, states[Check.PROVIDER] == "ok")]
        )
    text.family(_OPSET_SUPPORTED, [({}, opset_supported(reported, pod_state.manifest))])
    text.family(
        _INFO,
        [
            (
                {
                    "model_digest": reported.model_digest,
                    "engine_key": reported.engine_key or "",
                    "opset": str(reported.opset),
                    "ort_version": reported.ort_version,
                    "backend_version": reported.backend_version,
                },
                1,
            )
        ],
    )


def _checks(pod_state: PodState, text: Exposition) -> None:
    text.family(
        _CHECK,
        [
            ({"check": verdict.check, "state": state}, verdict.state == state)
            for verdict in pod_state.verdict().checks
            for state in get_args(CheckState)
        ],
    )
    fault = pod_state.fault
    text.family(_RUNS_FAILING, [({}, fault is not None)])
    text.family(_RUNS_FAILING_REASON, [] if fault is None else [({"reason": fault}, 1)])
    text.family(
        _PROBE_FAILURES,
        [({"check": check}, count) for check, count in pod_state.board.failures.items()],
    )


def _latency(pod_state: PodState, text: Exposition) -> None:
    latency = pod_state.latency
    text.histogram(_PROBE_DURATION, latency.durations.buckets(), latency.durations.total)
    baseline = latency.baseline
    percentiles = (
        (("50", baseline.p50), ("90", baseline.p90), ("99", baseline.p99)) if baseline else ()
    )
    text.family(
        _BASELINE_LATENCY,
        [({"percentile": name}, value) for name, value in percentiles if value is not None],
    )
    usual = latency.usual
    text.family(_USUAL_LATENCY, [] if usual is None else [({"shapes": usual[0]}, usual[1])])
    text.family(
        _LATENCY_RATIO,
        [({"check": check}, ratio) for check, ratio in latency.ratios().items()],
    )
    text.family(
        _BASELINE_LOWERED,
        [
            ({"check": Check.PROBE_LATENCY}, latency.probes.lowered),
            ({"check": Check.LIVE_LATENCY}, latency.live.lowered),
        ],
    )
    error = pod_state.golden_results.max_abs_error
    text.family(_PARITY_MAX_ABS_ERROR, [] if error is None else [({}, error)])
