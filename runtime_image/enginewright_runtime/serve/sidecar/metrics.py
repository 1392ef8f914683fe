"""The sidecar's figures. What is not known is left out: a zero would be a claim.

The names are an interface: alerts and dashboards hang on them (docs/sidecar.md lists them).
"""

from collections.abc import Iterator
from typing import get_args

from enginewright.contract.verdict import Check, CheckState, FallbackVerdict

from enginewright_runtime.serve.sidecar.exposition import Exposition, Row
from enginewright_runtime.serve.sidecar.findings import Findings
from enginewright_runtime.serve.sidecar.told import opset_supported

_KINDS = ("NodeFallback", "BackendFallback")


def expose(findings: Findings, server: bytes) -> bytes:
    """Return the sidecar's figures followed by the server's own exposition."""
    text = Exposition({"model": findings.task.model, "revision": findings.task.revision})
    _placement(findings, text)
    _versions(findings, text)
    _checks(findings, text)
    _latency(findings, text)
    return text.text(server)


def _placement(findings: Findings, text: Exposition) -> None:
    placed = findings.placed
    if placed is None:
        return
    text.family(
        "gauge",
        "enginewright_placement_nodes",
        "Compute nodes of the model by the execution provider that runs them.",
        [({"provider": name}, count) for name, count in placed.nodes.items()],
    )
    found = placed.fallback
    share = found.compute_share if found.nodes_elsewhere else 0.0
    text.family(
        "gauge",
        "enginewright_fallback_nodes",
        "Compute nodes that run elsewhere than promised.",
        [({}, found.nodes_elsewhere)],
    )
    text.family(
        "gauge",
        "enginewright_fallback_ratio",
        "Share of the compute time of the nodes that run elsewhere, 0 to 1, as profiled.",
        [] if share is None else [({}, share)],
    )
    text.family(
        "gauge",
        "enginewright_fallback_active",
        "Whether the model falls back, with the reason while it does.",
        _fallback(found),
    )


def _fallback(found: FallbackVerdict) -> Iterator[Row]:
    for kind in _KINDS:
        active = found.active and found.kind == kind
        reason = str(found.reason or kind) if active else ""
        yield {"kind": kind, "reason": reason}, active


def _versions(findings: Findings, text: Exposition) -> None:
    told = findings.told
    if told is None:
        return
    states = {found.check: found.state for found in findings.verdict().checks}
    if states[Check.PROVIDER] != "unknown":
        text.family(
            "gauge",
            "enginewright_provider_available",
            "Whether the backend's execution provider was made and its driver is there.",
            [({"provider": told.provider}, states[Check.PROVIDER] == "ok")],
        )
    text.family(
        "gauge",
        "enginewright_opset_supported",
        "Whether the ONNX Runtime that serves is known to support the model's opset.",
        [({}, opset_supported(told, findings.manifest))],
    )
    text.family(
        "gauge",
        "enginewright_info",
        "What serves, as the server tells it; always 1.",
        [
            (
                {
                    "model_digest": told.model_digest,
                    "engine_key": told.engine_key or "",
                    "opset": str(told.opset),
                    "ort_version": told.ort_version,
                    "backend_version": told.backend_version,
                },
                1,
            )
        ],
    )


def _checks(findings: Findings, text: Exposition) -> None:
    text.family(
        "gauge",
        "enginewright_check",
        "Whether a check is in this state.",
        [
            ({"check": found.check, "state": state}, found.state == state)
            for found in findings.verdict().checks
            for state in get_args(CheckState)
        ],
    )
    text.family(
        "gauge",
        "enginewright_runs_failing",
        "Whether the server is there and no run of the model succeeds, with the reason while it is so.",
        [({"reason": findings.fault or ""}, findings.fault is not None)],
    )
    text.family(
        "counter",
        "enginewright_probe_failures_total",
        "Times that a check was run and failed.",
        [({"check": check}, count) for check, count in findings.board.failures.items()],
    )


def _latency(findings: Findings, text: Exposition) -> None:
    text.histogram(
        "enginewright_probe_duration_seconds",
        "Golden inferences, from the first byte sent to the last one received.",
        findings.probes.buckets(),
        findings.probes.total,
    )
    baseline = findings.baseline
    quantiles = (
        (("0.5", baseline.p50), ("0.9", baseline.p90), ("0.99", baseline.p99)) if baseline else ()
    )
    text.family(
        "gauge",
        "enginewright_baseline_latency_seconds",
        "Time in the model of the usual shapes when it had just been loaded, by quantile.",
        [({"quantile": quantile}, value) for quantile, value in quantiles if value is not None],
    )
    usual = findings.usual_latency
    text.family(
        "gauge",
        "enginewright_usual_latency_seconds",
        "Time in the model of the usual shapes, the lower of at the start and now.",
        [] if usual is None else [({"shapes": usual[0]}, usual[1])],
    )
    text.family(
        "gauge",
        "enginewright_latency_ratio",
        "Time in the model, or until the answer, over what is usual; of what is furthest above it.",
        [({"check": check}, ratio) for check, ratio in findings.latency_ratios().items()],
    )
    text.family(
        "counter",
        "enginewright_baseline_lowered_total",
        "Times that a baseline has proved too high and was taken anew.",
        [
            ({"check": Check.PROBE_LATENCY}, findings.latency.lowered),
            ({"check": Check.LIVE_LATENCY}, findings.live.lowered),
        ],
    )
    error = findings.parity_max_abs_error
    text.family(
        "gauge",
        "enginewright_parity_max_abs_error",
        "Largest absolute error in the last answers to the golden samples.",
        [] if error is None else [({}, error)],
    )
