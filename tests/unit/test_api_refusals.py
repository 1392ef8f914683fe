"""Fields that this version does not act on are named, and nothing else is."""

from typing import Any

import pytest
from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.refusals import refused_fields

CALIBRATION = {"calibration": {"uri": "pvc://models/calibration.npz"}}


def refused(change: dict[str, Any]) -> tuple[str, ...]:
    source = {"uri": "pvc://models/model.onnx", **change.pop("source", {})}
    return refused_fields(InferenceModelSpec.model_validate({"source": source, **change}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"build": {"interim": "CUDA"}}, "spec.build.interim: CUDA (only None)"),
        ({"build": {"interim": "CPU"}}, "spec.build.interim: CPU (only None)"),
    ],
)  # fmt: skip
def test_a_field_that_would_be_ignored_is_named(change: dict[str, Any], expected: str) -> None:
    assert refused(change) == (expected,)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"source": {"uri": "https://host/model.onnx", "refreshInterval": "10m"}},
        {"source": {"uri": "http://host/model.onnx"}},
        {"extensions": [{"uri": "pvc://a/b", "sha256": "0" * 64, "type": "CustomOperators"}]},
        {"targetOpset": 17, "precision": "INT8", "quantization": CALIBRATION},
        {"parity": {"outputs": [{"name": "y", "rtol": "0.1"}]}},
        {"build": {"interim": "None", "timeout": "2h"}},
        {"parity": {"rtol": "0.1", "atol": "0.1", "samples": {"uri": "pvc://models/golden.npz"}}},
        {"rollout": {"strategy": "Recreate", "paused": True}, "serving": {"maxQueue": 1}},
        {"rollout": {"canary": {"shadow": "10%"}}},
        {"replicas": 0, "backends": ["cpu"], "accelerators": [{"class": "cpu"}]},
        {"serving": {"autoscaling": {"maxReplicas": 8}}},
        {"serving": {"batching": {"maxSize": 8, "maxDelay": "5ms"}}},
        {"serving": {"auth": {"secretRef": {"name": "clients"}}}},
        {"serving": {"tls": {"secretRef": {"name": "certificate"}}}},
    ],
)
def test_what_is_acted_on_passes(change: dict[str, Any]) -> None:
    assert refused(change) == ()
