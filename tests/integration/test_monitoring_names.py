"""Names, units and labels of metrics, as promtool wants them, in what each process really exposes."""

from pathlib import Path

import numpy as np
import pytest
from enginewright.node_cache.metrics import CacheMetrics
from enginewright_contract.verdict import Check
from enginewright_serving.server.observe.metrics import Metrics
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.expositions import OperatorPod, ServingPod
from tests.support.monitoring import lint_metrics
from tests.support.serving import Server, json_inputs, linear_model
from tests.support.sidecar import Sidecar, artifact


def test_promtool_accepts_the_metrics_of_a_pod(tmp_path: Path) -> None:
    sample = {"x": np.ones((2, 8), np.float32)}
    task = artifact(tmp_path, linear_model(), [sample])
    with (
        Server(tmp_path, task) as server,
        Sidecar(tmp_path, task, server.port, pace=0.2) as sidecar,
    ):
        assert server.post(json_inputs(**sample)).status == 200
        sidecar.until_state(Check.PROBE_LATENCY, "ok", 90)
        exposed = sidecar.get("/metrics").body.decode()
    assert "enginewright_check{" in exposed, "the sidecar's"
    assert "enginewright_requests_total{" in exposed, "the server's"
    lint_metrics(exposed)


def test_promtool_accepts_the_metrics_of_a_pod_on_a_gpu_that_fails() -> None:
    pod = ServingPod()
    pod.fallen_back = pod.runs_fail = True
    lint_metrics(pod.expose().decode())


def test_promtool_accepts_the_metrics_of_the_operator() -> None:
    lint_metrics(OperatorPod().expose().decode())


def test_promtool_accepts_the_metrics_of_steps_and_of_the_cache_of_a_node() -> None:
    steps, registry = Metrics("m", "r1"), CollectorRegistry()
    steps.has_steps()
    CacheMetrics(registry).show(*(lambda: 0.0,) * 3)
    for text in (steps.expose(), generate_latest(registry)):
        lint_metrics(text.decode())


def test_promtool_refuses_a_name_without_its_unit() -> None:
    wrong = "# HELP request_milliseconds Time.\n# TYPE request_milliseconds gauge\nrequest_milliseconds 1\n"
    with pytest.raises(AssertionError, match="use base unit"):
        lint_metrics(wrong)
