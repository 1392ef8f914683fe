"""The sidecar's metrics as they are exposed, against the table that promises them."""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from enginewright_contract.verdict import Check
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.serving import Feeds, Server, linear_model
from tests.support.shared import share_server
from tests.support.sidecar import Proxy, Sidecar, artifact, change_manifest

SAMPLES: list[Feeds] = [{"x": np.ones((2, 8), np.float32)}]
DOCS = Path(__file__).resolve().parents[2] / "docs/reference/metrics.md"
# series that exist only while something is wrong
_WHILE_WRONG = {"enginewright_fallback_reason", "enginewright_runs_failing_reason"}


def read_documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Return type and labels by name, from the table of the documentation."""
    table = DOCS.read_text().split("<!-- hack/docs: sidecar-metrics -->")[1].split("<!-- /hack")[0]
    rows = re.findall(r"^\| `(enginewright_\w+)` \| (\w+) \|([^|]*)\|", table, re.MULTILINE)
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def read_exposed(families: Iterable[Metric]) -> dict[str, tuple[str, frozenset[str]]]:
    """Return type and labels by name, as Prometheus' parser finds them."""
    described = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {key for sample in family.samples for key in sample.labels}
        assert {"model", "revision"} <= labels
        described[name] = (family.type, frozenset(labels - {"model", "revision", "le"}))
    return described


server = share_server(linear_model, *SAMPLES)


def test_the_exposition_matches_the_documentation(server: Server) -> None:
    with Sidecar(server.root, server.task, server.port, pace=0.2) as sidecar:
        sidecar.until_state(Check.PROBE_LATENCY, "ok", 90)
        text = sidecar.get("/metrics").body.decode()
        own = {
            name: family
            for name, family in read_exposed(text_string_to_metric_families(text)).items()
            if name in read_documented()
        }
        assert own == {
            name: family for name, family in read_documented().items() if name not in _WHILE_WRONG
        }
        names = [family.name for family in text_string_to_metric_families(text)]
        assert len(names) == len(set(names)), "no family comes twice"
        server_only = server.get("/metrics").body.decode()
        passed_on = set(read_exposed(text_string_to_metric_families(server_only)))
        assert passed_on == set(read_exposed(text_string_to_metric_families(text))) - set(own)


def test_unknown_figures_are_left_out_not_zero(server: Server) -> None:
    with Proxy(server.port) as proxy:
        proxy.refusing = {"/execution": 500, "/infer": 503, "/metrics": 500}
        with Sidecar(server.root, server.task, proxy.port, pace=0.2) as sidecar:
            sidecar.until_state(Check.SERVER, "ok")
            assert set(sidecar.metrics()) == {
                "enginewright_baseline_lowered_total",
                "enginewright_check",
                "enginewright_probe_failures_total",
                "enginewright_probe_duration_seconds_bucket",
                "enginewright_probe_duration_seconds_count",
                "enginewright_probe_duration_seconds_sum",
                "enginewright_runs_failing",
            }


def test_an_opset_beyond_the_runtimes_is_reported(server: Server, tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), SAMPLES)
    recipe = change_manifest(tmp_path).recipe
    change_manifest(tmp_path, recipe=recipe.model_copy(update={"max_opset": 16}))
    with Sidecar(tmp_path, task, server.port) as sidecar:
        sidecar.until(lambda: "enginewright_opset_supported" in sidecar.metrics(), "reported")
        (sample,) = sidecar.metrics()["enginewright_opset_supported"]
        assert sample.value == 0
