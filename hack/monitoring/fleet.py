"""The fleet's dashboard: which models have problems, and whether the operator works."""

from typing import Final

from hack.monitoring.panels import (
    BAD,
    GOOD,
    NEUTRAL,
    SLOW,
    WARNING,
    Look,
    Query,
    Row,
    graph,
    number,
    quantiles,
    rows,
)

_ANY_IS_BAD: Final = ((None, GOOD), (1, BAD))
_ANY_IS_WARNING: Final = ((None, GOOD), (1, WARNING))
_ERRORS: Final = ((None, GOOD), (0.001, WARNING), (0.01, BAD))


def panel_rows() -> tuple[Row, ...]:
    """Return all rows."""
    return _models(), _traffic(), _rollouts(), _engines(), _stores(), _operator()


def _models() -> Row:
    return "Models", [
        number(
            "Ready",
            "Models with the condition Ready=True: they serve as specified.",
            'sum(enginewright_models{condition="Ready", status="True"})',
            Look(span=4, height=4, steps=((None, NEUTRAL),)),
        ),
        number(
            "Not ready",
            "Models with the condition Ready=False: they serve otherwise than specified, or not at all.",
            'sum(enginewright_models{condition="Ready", status="False"})',
            Look(span=4, height=4, steps=_ANY_IS_WARNING),
        ),
        number(
            "Stalled",
            "Models with the condition Stalled=True: they make no progress until something is changed.",
            'sum(enginewright_models{condition="Stalled", status="True"})',
            Look(span=4, height=4, steps=_ANY_IS_BAD),
        ),
        number(
            "With fallback",
            "Models with a pod that runs nodes on another execution provider than promised.",
            "count(count by (namespace, model) (enginewright_fallback_active == 1)) or vector(0)",
            Look(span=4, height=4, steps=_ANY_IS_BAD),
        ),
        number(
            "Worst latency ratio",
            "Inference time divided by the usual one, on the slowest pod; the check fails above 2.2.",
            'max(enginewright_latency_ratio{check!="class-latency"})',
            Look(span=4, height=4, steps=SLOW),
        ),
        number(
            "Failed checks",
            "Failing checks, summed over all pods.",
            'sum(enginewright_check{state="failed"})',
            Look(span=4, height=4, steps=_ANY_IS_BAD),
        ),
        rows(
            "Active fallbacks",
            "Models on another execution provider than promised, the reason, and the number of pods.",
            "count by (namespace, model, revision, kind, reason) (enginewright_fallback_reason == 1)",
            Look(span=12),
            (
                ("namespace", "Namespace"),
                ("model", "Model"),
                ("revision", "Revision"),
                ("kind", "Kind"),
                ("reason", "Reason"),
                ("Value", "Pods"),
            ),
        ),
        rows(
            "Models not ready",
            "Models that are not Ready, and the condition's reason; stalled ones need a change.",
            "max by (model_namespace, model, reason, stalled, serves) (enginewright_model_not_ready)",
            Look(span=12),
            (
                ("model_namespace", "Namespace"),
                ("model", "Model"),
                ("reason", "Reason"),
                ("stalled", "Stalled"),
                ("serves", "Serves"),
            ),
        ),
        graph(
            "Models by condition",
            "Models by condition that is True, those served by an interim until their engines are built, and models"
            " not Ready that the table above omits.",
            Look(span=24),
            Query('sum by (condition) (enginewright_models{status="True"})', "{{condition}}"),
            Query("sum(enginewright_models_interim)", "served by an interim"),
            Query("max(enginewright_model_not_ready_omitted)", "not Ready, omitted above"),
        ),
    ]


def _traffic() -> Row:
    return "Traffic", [
        graph(
            "Requests per second",
            "The ten models with the most answers, rejections included.",
            Look(span=6, unit="reqps"),
            Query(
                "topk(10, sum by (namespace, model)"
                " (rate(enginewright_requests_total[$__rate_interval])))",
                "{{namespace}}/{{model}}",
            ),
        ),
        graph(
            "Share of server errors",
            "Share of the requests that were run, of the ten worst models: 5xx but 503 and 504.",
            Look(span=6, unit="percentunit", steps=_ERRORS),
            Query(
                "topk(10, sum by (namespace, model)"
                ' (rate(enginewright_requests_total{code=~"5..", code!~"503|504"}[$__rate_interval]))'
                " / (sum by (namespace, model)"
                ' (rate(enginewright_requests_total{code!~"503|504"}[$__rate_interval])) > 0))',
                "{{namespace}}/{{model}}",
            ),
        ),
        graph(
            "Share not run, for load",
            "Share of answers with 503 or 504, of the ten worst models.",
            Look(span=6, unit="percentunit", steps=_ERRORS),
            Query(
                "topk(10, sum by (namespace, model)"
                ' (rate(enginewright_requests_total{code=~"503|504"}[$__rate_interval]))'
                " / (sum by (namespace, model)"
                " (rate(enginewright_requests_total[$__rate_interval])) > 0))",
                "{{namespace}}/{{model}}",
            ),
        ),
        graph(
            "Latency ratio",
            "Inference time divided by the usual one, of the ten worst models.",
            Look(span=6, steps=SLOW),
            Query(
                "topk(10, max by (namespace, model)"
                ' (enginewright_latency_ratio{check!="class-latency"}))',
                "{{namespace}}/{{model}}",
            ),
        ),
    ]


def _rollouts() -> Row:
    return "Rollouts", [
        graph(
            "Rollouts",
            "New revisions that are being brought up, by phase.",
            Look(span=8),
            Query("sum by (phase) (enginewright_rollouts)", "{{phase}}"),
            stacked=True,
        ),
        graph(
            "Rollbacks",
            "New revisions that were rejected in the last hour, by reason.",
            Look(span=8),
            Query("sum by (reason) (increase(enginewright_rollbacks_total[1h]))", "{{reason}}"),
        ),
        graph(
            "Runtime images",
            "Models by state of their move to the installation's runtime images.",
            Look(span=8),
            Query("sum by (state) (enginewright_fleet_models)", "{{state}}"),
            stacked=True,
        ),
    ]


def _engines() -> Row:
    return "Engines", [
        graph(
            "Engine builds",
            "Builds that ended in the last hour, by result and reason.",
            Look(span=8),
            Query(
                "sum by (result, reason) (increase(enginewright_engine_builds_total[1h]))",
                "{{result}} {{reason}}",
            ),
        ),
        graph(
            "Build time",
            "Quantiles of the engine builds in the last hour.",
            Look(span=8, unit="s"),
            *quantiles(
                "rate(enginewright_engine_build_duration_seconds_bucket[1h])",
                {"p50": 0.5, "p90": 0.9},
            ),
        ),
        graph(
            "Engine cache",
            "Engines required in the last hour: found in the store, or to be built.",
            Look(span=8),
            Query("sum by (result) (increase(enginewright_engine_cache_total[1h]))", "{{result}}"),
            stacked=True,
        ),
    ]


def _stores() -> Row:
    return "Stores", [
        graph(
            "Fullest stores",
            "Used share of the store's limit or of its volume, of the ten fullest namespaces.",
            Look(span=8, unit="percentunit", steps=((None, GOOD), (0.9, WARNING), (1, BAD))),
            Query(
                "topk(10, max by (model_namespace)"
                " (enginewright_store_bytes / enginewright_store_limit_bytes"
                " or 1 - enginewright_store_free_bytes / enginewright_store_capacity_bytes))",
                "{{model_namespace}}",
            ),
        ),
        graph(
            "Size of stores",
            "Bytes of all artefacts, and of those that are needed, at the end of the last collections.",
            Look(span=8, unit="bytes"),
            Query("sum(enginewright_store_bytes)", "all"),
            Query("sum(enginewright_store_needed_bytes)", "needed"),
        ),
        graph(
            "Artefacts in stores",
            "Prepared models and engines at the end of the last collections.",
            Look(span=8),
            Query("sum(enginewright_store_artifacts)", "artefacts"),
        ),
        graph(
            "Removed from stores",
            "What collections have removed in the last day, by kind.",
            Look(span=6),
            Query("sum by (kind) (increase(enginewright_store_collected_total[1d]))", "{{kind}}"),
        ),
        graph(
            "Bytes removed from stores",
            "Bytes of what collections have removed in the last day.",
            Look(span=6, unit="bytes"),
            Query("sum(increase(enginewright_store_collected_bytes_total[1d]))", "removed"),
        ),
        graph(
            "Collections",
            "Collections of stores that ended in the last day, by result.",
            Look(span=6),
            Query(
                "sum by (result) (increase(enginewright_store_collections_total[1d]))", "{{result}}"
            ),
        ),
        rows(
            "Stores that are not collected",
            "Namespaces from whose store nothing is removed, and the reason.",
            "max by (model_namespace, reason) (enginewright_store_collection_trouble)",
            Look(span=6),
            (("model_namespace", "Namespace"), ("reason", "Reason")),
        ),
    ]


def _operator() -> Row:
    return "Operator", [
        number(
            "Operator",
            "Whether Prometheus can scrape it.",
            'max(up{job="enginewright-operator"})',
            Look(span=4, steps=((None, BAD), (1, GOOD))),
            {0: "down", 1: "up"},
        ),
        graph(
            "Reconciles per second",
            "By controller and result.",
            Look(span=10, unit="ops"),
            Query(
                "sum by (controller, result)"
                " (rate(controller_runtime_reconcile_total[$__rate_interval]))",
                "{{controller}} {{result}}",
            ),
        ),
        graph(
            "Failed reconciles per second",
            "By controller; failed ones are retried with increasing delays.",
            Look(span=10, unit="ops", steps=((None, GOOD), (0.1, WARNING))),
            Query(
                "sum by (controller)"
                " (rate(controller_runtime_reconcile_errors_total[$__rate_interval]))",
                "{{controller}}",
            ),
        ),
        graph(
            "Reconcile time, p99",
            "By controller.",
            Look(span=8, unit="s"),
            Query(
                "histogram_quantile(0.99, sum by (controller, le)"
                " (rate(controller_runtime_reconcile_time_seconds_bucket[$__rate_interval])))",
                "{{controller}}",
            ),
        ),
        graph(
            "Work queue depth",
            "Keys that wait in each work queue.",
            Look(span=8),
            Query("sum by (name) (workqueue_depth)", "{{name}}"),
        ),
        graph(
            "Requests to the API server",
            "Per second, by method and code; without watches.",
            Look(span=8, unit="reqps"),
            Query(
                "sum by (method, code) (rate(rest_client_requests_total[$__rate_interval]))",
                "{{method}} {{code}}",
            ),
        ),
    ]
