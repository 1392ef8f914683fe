"""A model's dashboard: placement, checks, requests, latency and revisions."""

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
    states,
)

_OF: Final = 'namespace="$namespace", model="$model"'
_STATE_STEPS: Final = ((None, GOOD), (1, WARNING), (2, BAD))


def panel_rows() -> tuple[Row, ...]:
    """Return all rows."""
    return _now(), _placement(), _traffic(), _latency(), _device(), _identity()


def _now() -> Row:
    return "Now", [
        number(
            "Fallback",
            "Whether a pod runs nodes on another execution provider than promised.",
            f"max(enginewright_fallback_active{{{_OF}}})",
            Look(span=4, height=4, steps=((None, GOOD), (1, BAD))),
            {0: "none", 1: "active"},
        ),
        number(
            "Compute on fallback",
            "Share of the compute time that belongs to nodes on another provider; worst pod.",
            f"max(enginewright_fallback_ratio{{{_OF}}})",
            Look(span=4, height=4, unit="percentunit", steps=((None, GOOD), (0.0001, BAD))),
        ),
        number(
            "Latency ratio",
            "Inference time divided by the usual one, on the slowest pod; the check fails above 2.2.",
            f'max(enginewright_latency_ratio{{{_OF}, check!="class-latency"}})',
            Look(span=4, height=4, steps=SLOW),
        ),
        number(
            "Golden error",
            "Largest absolute error of the current golden outputs, which the check `golden` evaluates.",
            f"max(enginewright_parity_max_abs_error{{{_OF}}})",
            Look(span=4, height=4, unit="sci"),
        ),
        number(
            "Failed checks",
            "Failing checks, summed over the pods.",
            f'sum(enginewright_check{{{_OF}, state="failed"}})',
            Look(span=4, height=4, steps=((None, GOOD), (1, BAD))),
        ),
        number(
            "Pods",
            "Pods whose sidecar is scraped.",
            f"count(enginewright_info{{{_OF}}})",
            Look(span=4, height=4, steps=((None, NEUTRAL),)),
        ),
    ]


def _placement() -> Row:
    return "Placement and checks", [
        graph(
            "Nodes by execution provider",
            "Execution providers to which ONNX Runtime assigned the nodes of the original model.",
            Look(span=8),
            Query(
                f"max by (revision, provider) (enginewright_placement_nodes{{{_OF}}})",
                "{{revision}} {{provider}}",
            ),
        ),
        graph(
            "Fallback ratio",
            "Share of the compute time that belongs to nodes on another provider; worst pod.",
            Look(span=8, unit="percentunit"),
            Query(f"max by (revision) (enginewright_fallback_ratio{{{_OF}}})", "{{revision}}"),
        ),
        graph(
            "Nodes on fallback",
            "Nodes on another execution provider than promised; worst pod.",
            Look(span=8),
            Query(f"max by (revision) (enginewright_fallback_nodes{{{_OF}}})", "{{revision}}"),
        ),
        states(
            "Checks",
            "Worst state of each check over the pods. Unknown: the check could not be run.",
            Look(span=12, height=10, steps=_STATE_STEPS),
            {0: "ok", 1: "unknown", 2: "failed"},
            Query(
                "max by (check) ("
                f'2 * enginewright_check{{{_OF}, state="failed"}}'
                f' or enginewright_check{{{_OF}, state="unknown"}})',
                "{{check}}",
            ),
        ),
        states(
            "Provider and opset",
            "Whether the execution provider is usable, and ONNX Runtime supports the opset.",
            Look(span=6, height=10, steps=((None, BAD), (1, GOOD))),
            {0: "missing", 1: "available"},
            Query(f"min by (provider) (enginewright_provider_available{{{_OF}}})", "{{provider}}"),
            Query(f"min(enginewright_opset_supported{{{_OF}}})", "opset"),
        ),
        rows(
            "Fallback: kind and reason",
            "One row per kind of fallback that is active, with its reason.",
            f"max by (revision, kind, reason) (enginewright_fallback_reason{{{_OF}}})",
            Look(span=6, height=10),
            (
                ("revision", "Revision"),
                ("kind", "Kind"),
                ("reason", "Reason"),
                ("Value", "Active"),
            ),
        ),
    ]


def _traffic() -> Row:
    return "Requests", [
        graph(
            "Requests per second",
            "Answers by status code; 499 where the client disconnected before its answer.",
            Look(span=6, unit="reqps"),
            Query(
                f"sum by (code) (rate(enginewright_requests_total{{{_OF}}}[$__rate_interval]))",
                "{{code}}",
            ),
            stacked=True,
        ),
        graph(
            "Requests per run",
            "Requests that the model ran at once: mean, and 90th percentile; and how many pods run short requests in"
            " their event loop.",
            Look(span=3),
            Query(
                f"sum(rate(enginewright_batch_size_sum{{{_OF}}}[$__rate_interval]))"
                f" / sum(rate(enginewright_batch_size_count{{{_OF}}}[$__rate_interval]))",
                "mean",
            ),
            Query(
                "histogram_quantile(0.9, sum by (le)"
                f" (rate(enginewright_batch_size_bucket{{{_OF}}}[$__rate_interval])))",
                "90%",
            ),
            Query(
                f"sum(enginewright_event_loop_runs{{{_OF}}})", "pods with runs in the event loop"
            ),
        ),
        graph(
            "Requests in flight",
            "Requests that arrive, wait, run or are answered, and those in the queue; summed over all pods.",
            Look(span=3),
            Query(f"sum(enginewright_requests_in_flight{{{_OF}}})", "in flight"),
            Query(f"sum(enginewright_queue_depth{{{_OF}}})", "in the queue"),
        ),
        graph(
            "Size",
            "Bodies of requests and responses: mean, and 99th percentile.",
            Look(span=3, unit="bytes"),
            *(
                query
                for name in ("request", "response")
                for query in (
                    Query(
                        f"sum(rate(enginewright_{name}_bytes_sum{{{_OF}}}[$__rate_interval]))"
                        f" / sum(rate(enginewright_{name}_bytes_count{{{_OF}}}[$__rate_interval]))",
                        f"{name}, mean",
                    ),
                    *quantiles(
                        f"rate(enginewright_{name}_bytes_bucket{{{_OF}}}[$__rate_interval])",
                        {f"{name}, 99%": 0.99},
                    ),
                )
            ),
        ),
        graph(
            "Copies for a canary",
            "Copies of requests per second that pods of a new revision answered, by status code.",
            Look(span=3, unit="reqps"),
            Query(
                f"sum by (code) (rate(enginewright_shadow_requests_total{{{_OF}}}[$__rate_interval]))",
                "{{code}}",
            ),
        ),
        graph(
            "Outside the shape profiles",
            "Requests per second that are refused for sizes outside the model's shape profiles.",
            Look(span=3, unit="reqps"),
            Query(
                f"sum(rate(enginewright_out_of_profile_total{{{_OF}}}[$__rate_interval]))",
                "refused",
            ),
        ),
        graph(
            "Records dropped",
            "Lines of the access log and traces per second that were lost because stdout or the collector was too slow.",
            Look(span=3, unit="ops"),
            Query(
                "sum by (kind)"
                f" (rate(enginewright_request_records_dropped_total{{{_OF}}}[$__rate_interval]))",
                "{{kind}}",
            ),
        ),
    ]


def _latency() -> Row:
    return "Latency", [
        *(
            graph(
                title,
                f"Quantiles {of_what}, over all pods.",
                Look(span=8, unit="s"),
                *quantiles(
                    f"rate(enginewright_request_{metric}[$__rate_interval])",
                    {"p50": 0.5, "p90": 0.9, "p99": 0.99},
                ),
            )
            for title, of_what, metric in (
                (
                    "From request to response",
                    "from the head to the last byte of the response of requests that succeeded",
                    f'duration_seconds_bucket{{{_OF}, code="2xx"}}',
                ),
                (
                    "Time in the queue",
                    "of the time that requests wait for the model",
                    f"queue_seconds_bucket{{{_OF}}}",
                ),
                (
                    "Inference time",
                    "of the time of requests in the model",
                    f"compute_seconds_bucket{{{_OF}}}",
                ),
            )
        ),
        graph(
            "Golden inferences: baseline and now",
            "Current golden inferences, through the server like requests, and inference time of the usual shapes at the pod's start.",
            Look(span=12, unit="s"),
            Query(
                "max by (percentile)"
                f' (enginewright_baseline_latency_seconds{{{_OF}, percentile=~"50|99"}})',
                "baseline, p{{percentile}}",
            ),
            *quantiles(
                f"rate(enginewright_probe_duration_seconds_bucket{{{_OF}}}[$__rate_interval])",
                {"now, p50": 0.5, "now, p99": 0.99},
            ),
        ),
        graph(
            "Latency ratio by pod",
            "Inference time divided by the usual one, which fails above 2.2, and by the class's benchmark, which fails above 2.",
            Look(span=12, steps=SLOW),
            Query(
                f"max by (pod, check) (enginewright_latency_ratio{{{_OF}}})",
                "{{pod}}: {{check}}",
            ),
            Query(
                f"sum by (pod) (increase(enginewright_baseline_lowered_total{{{_OF}}}[1h]))",
                "{{pod}}: baseline lowered, times in an hour",
            ),
        ),
    ]


def _device() -> Row:
    return "GPU", [
        graph(
            "GPU memory in use",
            "Share of the memory of each pod's GPU or MIG slice that all processes on it use.",
            Look(span=12, unit="percentunit"),
            Query(
                f"max by (pod) (enginewright_gpu_memory_bytes{{{_OF}}}"
                f" / enginewright_gpu_memory_size_bytes{{{_OF}}})",
                "{{pod}}",
            ),
        ),
        graph(
            "GPU utilization",
            "Share of time in which a kernel ran on each pod's GPU, of any process; none for MIG slices.",
            Look(span=12, unit="percentunit"),
            Query(f"max by (pod) (enginewright_gpu_utilization_ratio{{{_OF}}})", "{{pod}}"),
        ),
    ]


def _identity() -> Row:
    return "Revisions", [
        graph(
            "Pods by revision",
            "During a rollout, one curve replaces another.",
            Look(span=8),
            Query(f"count by (revision) (enginewright_info{{{_OF}}})", "{{revision}}"),
            stacked=True,
        ),
        graph(
            "Golden error by revision",
            "Largest absolute error of the golden outputs; worst pod of each revision.",
            Look(span=8, unit="sci"),
            Query(
                f"max by (revision) (enginewright_parity_max_abs_error{{{_OF}}})",
                "{{revision}}",
            ),
        ),
        graph(
            "Failed probes per second",
            "By check.",
            Look(span=8, unit="ops"),
            Query(
                "sum by (check)"
                f" (rate(enginewright_probe_failures_total{{{_OF}}}[$__rate_interval]))",
                "{{check}}",
            ),
        ),
        rows(
            "What the pods run",
            "As reported by each pod.",
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
        ),
    ]
