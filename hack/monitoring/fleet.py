"""The fleet's dashboard: which models are in trouble, and whether the operator is at work."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard

from hack.monitoring.panels import BAD, GOOD, NEUTRAL, WARNING, Look, Query, graph, number, rows

_ANY_IS_BAD: Final = ((None, GOOD), (1, BAD))
_ANY_IS_ODD: Final = ((None, GOOD), (1, WARNING))
_SLOW: Final = ((None, GOOD), (2.2, BAD))  # where the sidecar's check fails
_ERRORS: Final = ((None, GOOD), (0.001, WARNING), (0.01, BAD))
_COUNT: Final = Look(span=4, height=4)


def add_panels(board: dashboard.Dashboard) -> None:
    """Add all rows."""
    _models(board)
    _traffic(board)
    _engines(board)
    _operator(board)


def _models(board: dashboard.Dashboard) -> None:
    board.with_row(dashboard.Row("Models"))
    for title, condition, status, steps, meaning in (
        ("Ready", "Ready", "True", ((None, NEUTRAL),), "what the spec asks for is what serves"),
        ("Not ready", "Ready", "False", _ANY_IS_ODD, "something else serves than asked, or nothing"),
        ("Stalled", "Stalled", "True", _ANY_IS_BAD, "nothing happens until somebody changes something"),
    ):  # fmt: skip
        board.with_panel(
            number(
                title,
                f"Models with the condition {condition}={status}: {meaning}.",
                f'sum(enginewright_models{{condition="{condition}", status="{status}"}})',
                Look(span=4, height=4, steps=steps),
                {},
            )
        )
    board.with_panel(
        number(
            "With fallback now",
            "Models of which a pod runs nodes on another execution provider than promised.",
            "count(count by (namespace, model) (enginewright_fallback_active == 1)) or vector(0)",
            Look(span=4, height=4, steps=_ANY_IS_BAD),
            {},
        )
    )
    board.with_panel(
        number(
            "Worst latency ratio",
            "Time in the model on the slowest pod over its usual one; the check fails at 2.2.",
            'max(enginewright_latency_ratio{check!="class-latency"})',
            Look(span=4, height=4, steps=_SLOW),
            {},
        )
    )
    board.with_panel(
        number(
            "Failed checks",
            "Checks that fail now, added up over all pods.",
            'sum(enginewright_check{state="failed"})',
            Look(span=4, height=4, steps=_ANY_IS_BAD),
            {},
        )
    )
    board.with_panel(
        rows(
            "Fallback now",
            "What does not run where it was promised to, and why. Value: pods.",
            "count by (namespace, model, revision, kind, reason) (enginewright_fallback_active == 1)",
            Look(span=12),
            (
                ("namespace", "Namespace"),
                ("model", "Model"),
                ("revision", "Revision"),
                ("kind", "Kind"),
                ("reason", "Reason"),
                ("Value", "Pods"),
            ),
        )
    )
    board.with_panel(
        rows(
            "Not ready now",
            "Models that are not Ready, and the reason of the condition; stalled ones wait for somebody.",
            "max by (model_namespace, model, reason, stalled) (enginewright_model_not_ready)",
            Look(span=12),
            (
                ("model_namespace", "Namespace"),
                ("model", "Model"),
                ("reason", "Reason"),
                ("stalled", "Stalled"),
            ),
        )
    )
    board.with_panel(
        graph(
            "Models by condition",
            "Models whose condition is True, and those not Ready beyond the ones that are named above.",
            [
                Query('sum by (condition) (enginewright_models{status="True"})', "{{condition}}"),
                Query("max(enginewright_model_not_ready_omitted)", "not Ready, not named"),
            ],
            Look(span=24),
        )
    )


def _traffic(board: dashboard.Dashboard) -> None:
    board.with_row(dashboard.Row("Traffic"))
    board.with_panel(
        graph(
            "Requests per second",
            "The ten busiest models; every answer counts, refusals too.",
            [
                Query(
                    "topk(10, sum by (namespace, model)"
                    " (rate(enginewright_requests_total[$__rate_interval])))",
                    "{{namespace}}/{{model}}",
                )
            ],
            Look(span=8, unit="reqps"),
        )
    )
    board.with_panel(
        graph(
            "Share of server errors",
            "Answers with a 5xx code among all answers, of the ten worst models.",
            [
                Query(
                    "topk(10, sum by (namespace, model)"
                    ' (rate(enginewright_requests_total{code=~"5.."}[$__rate_interval]))'
                    " / (sum by (namespace, model)"
                    " (rate(enginewright_requests_total[$__rate_interval])) > 0))",
                    "{{namespace}}/{{model}}",
                )
            ],
            Look(span=8, unit="percentunit", steps=_ERRORS),
        )
    )
    board.with_panel(
        graph(
            "Latency ratio",
            "Time in the model over its usual one, of the ten worst models.",
            [
                Query(
                    "topk(10, max by (namespace, model)"
                    ' (enginewright_latency_ratio{check!="class-latency"}))',
                    "{{namespace}}/{{model}}",
                )
            ],
            Look(span=8, steps=_SLOW),
        )
    )


def _engines(board: dashboard.Dashboard) -> None:
    board.with_row(dashboard.Row("Engines"))
    board.with_panel(
        graph(
            "Engine builds",
            "Builds that ended in the last hour, by result and reason.",
            [
                Query(
                    "sum by (result, reason) (increase(enginewright_engine_builds_total[1h]))",
                    "{{result}} {{reason}}",
                )
            ],
            Look(span=8),
        )
    )
    board.with_panel(
        graph(
            "Time of a build",
            "Half of the builds of the last hour took no longer than p50, nine of ten than p90.",
            [
                Query(
                    f"histogram_quantile({quantile}, sum by (le)"
                    " (rate(enginewright_engine_build_duration_seconds_bucket[1h])))",
                    name,
                )
                for name, quantile in (("p50", 0.5), ("p90", 0.9))
            ],
            Look(span=8, unit="s"),
        )
    )
    board.with_panel(
        graph(
            "Engine cache",
            "Engines that were wanted in the last hour: found in the store, or to be built.",
            [
                Query(
                    "sum by (result) (increase(enginewright_engine_cache_total[1h]))", "{{result}}"
                )
            ],
            Look(span=8),
            stacked=True,
        )
    )


def _operator(board: dashboard.Dashboard) -> None:
    board.with_row(dashboard.Row("Operator"))
    board.with_panel(
        number(
            "Operator",
            "Whether Prometheus reaches it.",
            'max(up{job="enginewright-operator"})',
            Look(span=4, steps=((None, BAD), (1, GOOD))),
            {0: "down", 1: "up"},
        )
    )
    board.with_panel(
        graph(
            "Reconciles per second",
            "By controller and result.",
            [
                Query(
                    "sum by (controller, result)"
                    " (rate(controller_runtime_reconcile_total[$__rate_interval]))",
                    "{{controller}} {{result}}",
                )
            ],
            Look(span=10, unit="ops"),
        )
    )
    board.with_panel(
        graph(
            "Failed reconciles per second",
            "By controller; a failed one is tried again, later each time.",
            [
                Query(
                    "sum by (controller)"
                    " (rate(controller_runtime_reconcile_errors_total[$__rate_interval]))",
                    "{{controller}}",
                )
            ],
            Look(span=10, unit="ops", steps=((None, GOOD), (0.1, WARNING))),
        )
    )
    board.with_panel(
        graph(
            "Time of a reconcile, p99",
            "By controller.",
            [
                Query(
                    "histogram_quantile(0.99, sum by (controller, le)"
                    " (rate(controller_runtime_reconcile_time_seconds_bucket[$__rate_interval])))",
                    "{{controller}}",
                )
            ],
            Look(span=8, unit="s"),
        )
    )
    board.with_panel(
        graph(
            "Keys waiting",
            "Length of each work queue.",
            [Query("sum by (name) (workqueue_depth)", "{{name}}")],
            Look(span=8),
        )
    )
    board.with_panel(
        graph(
            "Requests to the API server",
            "Per second, by method and code; watches are left out.",
            [
                Query(
                    "sum by (method, code) (rate(rest_client_requests_total[$__rate_interval]))",
                    "{{method}} {{code}}",
                )
            ],
            Look(span=8, unit="reqps"),
        )
    )
