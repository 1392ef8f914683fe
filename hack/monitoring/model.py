"""A model's dashboard: where it runs, what the checks say, how fast it answers and what it is."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard

from hack.monitoring.panels import (
    BAD,
    GOOD,
    NEUTRAL,
    WARNING,
    Look,
    Query,
    graph,
    number,
    rows,
    states,
)

_OF: Final = 'namespace="$namespace", model="$model"'
_STATES: Final = {0: "ok", 1: "unknown", 2: "failed"}
_STATE_STEPS: Final = ((None, GOOD), (1, WARNING), (2, BAD))
_SLOW: Final = ((None, GOOD), (2.2, BAD))  # where the sidecar's check fails


def add_panels(board: dashboard.Dashboard) -> None:
    """Add all rows."""
    _now(board)
    _placement(board)
    _traffic(board)
    _latency(board)
    _identity(board)


def _now(board: dashboard.Dashboard) -> None:
    board.with_row(dashboard.Row("Now"))
    board.with_panel(
        number(
            "Fallback",
            "Whether a pod runs nodes on another execution provider than promised.",
            f"max(enginewright_fallback_active{{{_OF}}})",
            Look(span=4, height=4, steps=((None, GOOD), (1, BAD))),
            {0: "none", 1: "active"},
        )
    )
    board.with_panel(
        number(
            "Computing elsewhere",
            "Share of the computing time that belongs to nodes on another provider; worst pod.",
            f"max(enginewright_fallback_ratio{{{_OF}}})",
            Look(span=4, height=4, unit="percentunit", steps=((None, GOOD), (0.0001, BAD))),
            {},
        )
    )
    board.with_panel(
        number(
            "Latency ratio",
            "Time in the model on the slowest pod over its usual one; the check fails at 2.2.",
            f'max(enginewright_latency_ratio{{{_OF}, check!="class-latency"}})',
            Look(span=4, height=4, steps=_SLOW),
            {},
        )
    )
    board.with_panel(
        number(
            "Golden error",
            "Largest absolute error of the golden outputs now; the check `golden` judges it.",
            f"max(enginewright_parity_max_abs_error{{{_OF}}})",
            Look(span=4, height=4, unit="sci"),
            {},
        )
    )
    board.with_panel(
        number(
            "Failed checks",
            "Checks that fail now, added up over the pods.",
            f'sum(enginewright_check{{{_OF}, state="failed"}})',
            Look(span=4, height=4, steps=((None, GOOD), (1, BAD))),
            {},
        )
    )
    board.with_panel(
        number(
            "Pods",
            "Pods whose sidecar is scraped.",
            f"count(enginewright_info{{{_OF}}})",
            Look(span=4, height=4, steps=((None, NEUTRAL),)),
            {},
        )
    )


def _placement(board: dashboard.Dashboard) -> None:
    board.with_row(dashboard.Row("Placement and checks"))
    board.with_panel(
        graph(
            "Nodes by execution provider",
            "Where ONNX Runtime has put the model's nodes, counted in nodes of the original model.",
            [
                Query(
                    f"max by (revision, provider) (enginewright_placement_nodes{{{_OF}}})",
                    "{{revision}} {{provider}}",
                )
            ],
            Look(span=8),
        )
    )
    board.with_panel(
        graph(
            "Fallback ratio",
            "Share of the computing time that belongs to nodes on another provider; worst pod.",
            [Query(f"max by (revision) (enginewright_fallback_ratio{{{_OF}}})", "{{revision}}")],
            Look(span=8, unit="percentunit"),
        )
    )
    board.with_panel(
        graph(
            "Nodes elsewhere",
            "Nodes that are on another execution provider than promised; worst pod.",
            [Query(f"max by (revision) (enginewright_fallback_nodes{{{_OF}}})", "{{revision}}")],
            Look(span=8),
        )
    )
    board.with_panel(
        states(
            "Checks",
            "Worst state of each check over the pods. Unknown is not ok: the check was not possible.",
            [
                Query(
                    "max by (check) ("
                    f'2 * enginewright_check{{{_OF}, state="failed"}}'
                    f' or enginewright_check{{{_OF}, state="unknown"}})',
                    "{{check}}",
                )
            ],
            Look(span=12, height=10, steps=_STATE_STEPS),
            _STATES,
        )
    )
    board.with_panel(
        states(
            "Provider and opset",
            "Whether the execution provider can really be used, and ONNX Runtime knows the opset.",
            [
                Query(
                    f"min by (provider) (enginewright_provider_available{{{_OF}}})", "{{provider}}"
                ),
                Query(f"min(enginewright_opset_supported{{{_OF}}})", "opset"),
            ],
            Look(span=6, height=10, steps=((None, BAD), (1, GOOD))),
            {0: "missing", 1: "available"},
        )
    )
    board.with_panel(
        rows(
            "Fallback: kind and reason",
            "A row a kind of fallback; it has a reason while it lasts.",
            f"max by (revision, kind, reason) (enginewright_fallback_active{{{_OF}}})",
            Look(span=6, height=10),
            (
                ("revision", "Revision"),
                ("kind", "Kind"),
                ("reason", "Reason"),
                ("Value", "Active"),
            ),
        )
    )


def _traffic(board: dashboard.Dashboard) -> None:
    board.with_row(dashboard.Row("Requests"))
    board.with_panel(
        graph(
            "Requests per second",
            "Answers by status code; 499: the client left before its answer.",
            [
                Query(
                    f"sum by (code) (rate(enginewright_requests_total{{{_OF}}}[$__rate_interval]))",
                    "{{code}}",
                )
            ],
            Look(span=12, unit="reqps"),
            stacked=True,
        )
    )
    board.with_panel(
        graph(
            "Waiting requests",
            "Requests in the queue, all pods together.",
            [Query(f"sum(enginewright_queue_depth{{{_OF}}})", "waiting")],
            Look(span=6),
        )
    )
    board.with_panel(
        graph(
            "Refused for their shape",
            "Requests per second outside the model's shape profiles.",
            [
                Query(
                    f"sum(rate(enginewright_out_of_profile_total{{{_OF}}}[$__rate_interval]))",
                    "refused",
                )
            ],
            Look(span=6, unit="reqps"),
        )
    )


def _latency(board: dashboard.Dashboard) -> None:
    board.with_row(dashboard.Row("Latency"))
    for stage, title in (("queue", "Time in the queue"), ("compute", "Time in the model")):
        board.with_panel(
            graph(
                title,
                f"Quantiles of the stage `{stage}` of requests, all pods together.",
                [
                    Query(
                        f"histogram_quantile({quantile}, sum by (le)"
                        f" (rate(enginewright_request_duration_seconds_bucket{{{_OF},"
                        f' stage="{stage}"}}[$__rate_interval])))',
                        name,
                    )
                    for name, quantile in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
                ],
                Look(span=6, unit="s"),
            )
        )
    board.with_panel(
        graph(
            "Golden inferences: baseline and now",
            "Golden inferences now, over the path that requests take, and the time in the model of the usual shapes at the start.",
            [
                Query(
                    "max by (quantile)"
                    f' (enginewright_baseline_latency_seconds{{{_OF}, quantile=~"0.5|0.99"}})',
                    "baseline, quantile {{quantile}}",
                ),
                *(
                    Query(
                        f"histogram_quantile({quantile}, sum by (le)"
                        f" (rate(enginewright_probe_duration_seconds_bucket{{{_OF}}}"
                        "[$__rate_interval])))",
                        f"now, quantile {quantile}",
                    )
                    for quantile in (0.5, 0.99)
                ),
            ],
            Look(span=6, unit="s"),
        )
    )
    board.with_panel(
        graph(
            "Latency ratio by pod",
            "Time in the model over its usual one, which fails at 2.2, and over the class's benchmark, which fails at 2.",
            [
                Query(
                    f"max by (pod, check) (enginewright_latency_ratio{{{_OF}}})",
                    "{{pod}}: {{check}}",
                ),
                Query(
                    f"sum by (pod) (increase(enginewright_baseline_lowered_total{{{_OF}}}[1h]))",
                    "{{pod}}: baseline lowered, times in an hour",
                ),
            ],
            Look(span=6, steps=_SLOW),
        )
    )


def _identity(board: dashboard.Dashboard) -> None:
    board.with_row(dashboard.Row("Revisions"))
    board.with_panel(
        graph(
            "Pods by revision",
            "A rollout is seen here as one curve that gives way to another.",
            [Query(f"count by (revision) (enginewright_info{{{_OF}}})", "{{revision}}")],
            Look(span=8),
            stacked=True,
        )
    )
    board.with_panel(
        graph(
            "Golden error by revision",
            "Largest absolute error of the golden outputs; worst pod of each revision.",
            [
                Query(
                    f"max by (revision) (enginewright_parity_max_abs_error{{{_OF}}})",
                    "{{revision}}",
                )
            ],
            Look(span=8, unit="sci"),
        )
    )
    board.with_panel(
        graph(
            "Failed probes per second",
            "By check.",
            [
                Query(
                    "sum by (check)"
                    f" (rate(enginewright_probe_failures_total{{{_OF}}}[$__rate_interval]))",
                    "{{check}}",
                )
            ],
            Look(span=8, unit="ops"),
        )
    )
    board.with_panel(
        rows(
            "What the pods run",
            "As each pod tells it of itself.",
            f"enginewright_info{{{_OF}}}",
            Look(span=24),
            (
                ("pod", "Pod"),
                ("revision", "Revision"),
                ("backend_version", "Backend version"),
                ("ort_version", "ONNX Runtime"),
                ("opset", "Opset"),
                ("model_digest", "Model digest"),
                ("engine_key", "Engine key"),
            ),
        )
    )
