"""What docs/autoscaling.md says to write is what the operator and the server have."""

from pathlib import Path
from typing import Any

import yaml
from enginewright.api.inference_model import InferenceModelSpec
from enginewright.manifests.autoscaler import CPU_UTILIZATION, QUEUE_METRIC
from enginewright.manifests.field_managers import FIELD_MANAGER, HANDOVER_MANAGER

from hack.tables.metrics import server_metrics

PAGE = (Path(__file__).parents[2] / "docs/autoscaling.md").read_text()


def blocks() -> list[Any]:
    return [yaml.safe_load(part.partition("```")[0]) for part in PAGE.split("```yaml\n")[1:]]


def test_the_model_is_one() -> None:
    spec = InferenceModelSpec.model_validate(blocks()[0]["spec"])
    assert spec.serving.autoscaling
    assert spec.serving.autoscaling.max_replicas == 8


def test_the_adapter_serves_the_metric_that_the_server_exposes() -> None:
    (rule,) = blocks()[1]["rules"]["custom"]
    assert rule["seriesQuery"].partition("{")[0] == QUEUE_METRIC
    assert "name" not in rule, "it keeps its name"
    assert f"`{QUEUE_METRIC}`" in server_metrics()


def test_names_and_numbers_match_the_code() -> None:
    assert f"{CPU_UTILIZATION}% of the request" in PAGE
    assert f"/{QUEUE_METRIC}" in PAGE
    for manager in (FIELD_MANAGER, HANDOVER_MANAGER):
        assert f"`{manager}`" in PAGE
