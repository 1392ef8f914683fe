"""`enginewright migrate`: the example of the docs, what is left to decide, and what is no ONNX model."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from enginewright_cli.app import app
from enginewright_cli.plan.validation import problems
from typer.testing import CliRunner

PAGE = Path(__file__).resolve().parents[2] / "docs/migrate.md"


def run(text: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["migrate", "-"], input=text)
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def service(name: str = "detector", **predictor: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"predictor": predictor},
    }


def test_the_example_of_the_docs() -> None:
    source, expected = re.findall(
        r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    written, _ = run(source)
    assert yaml.safe_load(written) == yaml.safe_load(expected)
    assert "# predictor.serviceAccountName: keys of its Secrets are not taken" in written


def test_what_has_no_counterpart_is_a_comment_and_the_rest_is_valid() -> None:
    model = {
        "modelFormat": {"name": "onnx"},
        "storageUri": "https://shop.blob.core.windows.net/models/detector",
        "resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}},
        "args": ["--fast"],
    }
    given = service(
        model=model, minReplicas=0, maxReplicas=3, timeout=30, containerConcurrency=4,
        canaryTrafficPercent=10, nodeSelector={"zone": "a"},
    )  # fmt: skip
    written, _ = run(yaml.safe_dump(given))
    manifest = yaml.safe_load(written)
    assert problems(manifest) == []
    assert manifest["metadata"] == {"name": "detector", "namespace": "shop"}
    assert manifest["spec"] == {
        "source": {"uri": "az://shop.blob.core.windows.net/models/detector"},
        "serving": {
            "autoscaling": {"minReplicas": 1, "maxReplicas": 3},
            "requestTimeout": "30s",
            "maxQueue": 4,
        },
        "podTemplate": {"nodeSelector": {"zone": "a"}, "resources": {"limits": {"cpu": "2"}}},
    }
    comments = [line for line in written.splitlines() if line.startswith("# ")]
    for field in (
        "storageUri", "resources: nvidia.com/gpu", "minReplicas: 0", "protocolVersion",
        "predictor.canaryTrafficPercent", "predictor.model.args",
    ):  # fmt: skip
        assert any(comment.startswith(f"# {field}") for comment in comments), field


def test_one_that_is_no_onnx_model_is_named_and_the_others_are_migrated() -> None:
    forest = service("forest", model={"modelFormat": {"name": "sklearn"}, "storageUri": "s3://b/f"})
    old = service("old", onnx={"storageUri": "pvc://claim"})
    both = {"kind": "List", "items": [forest, old]}
    written, said = run(yaml.safe_dump(both), code=1)
    assert yaml.safe_load(written)["spec"]["source"]["uri"] == "pvc://claim/model.onnx"
    assert "forest: modelFormat is sklearn: export the model to ONNX" in said


@pytest.mark.parametrize(
    ("text", "code", "wording"),
    [
        ("kind: Deployment", 1, "contains no InferenceService, but Deployment"),
        ("kind: [", 2, "is not valid YAML"),
    ],
)
def test_a_file_without_services(text: str, code: int, wording: str) -> None:
    assert wording in run(text, code)[1]
