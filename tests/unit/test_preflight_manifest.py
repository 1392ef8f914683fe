"""The manifest that preflight writes: what the API server takes, of options, proposals and files of this machine."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from enginewright_cli.plan.validation import problems
from enginewright_cli.preflight import options, targets
from enginewright_cli.preflight.manifest import write_manifest
from enginewright_cli.preflight.request import PreflightRequest
from enginewright_cli.preflight.result import Found, Result
from enginewright_cli.upload.files import parse
from enginewright_contract.task import Extension, Processing

from tests.support.plan_objects import image_facts

HELD = image_facts("cpu")
EVERYTHING = PreflightRequest(
    source="exports/1 Größe (v2).onnx",
    targets=(targets.parse("cpu", "cpu"),),
    recipe=options.recipe(
        HELD,
        shapes=(options.shape("ids: 'a'=1x2:2x4:4x8@-1..640"),),
        target_precision="INT8",
        runtime_version=None,
        target_opset=17,
        samples_uri="pvc://local-samples/real.npz",
        calibration_uri="pvc://local-calibration/real.npz",
        rest_precision=None,
        extensions=(Extension(type="ONNXRuntimeExtensions"),),
        processing=Processing(
            before=("pvc://before-0/tokens.onnx", "s3://models/more.onnx"), after=()
        ),
    ),
    promise=options.promise("compute=2.5%,nodes=5%"),
    samples=Path("/data/real.npz"),
    calibration=Path("/data/days"),
    backends=("cpu",),
    steps={"before-0": Path("/steps/tokens.onnx")},
)
PLAIN = PreflightRequest(
    source="https://models.example/" + "Very-long_name" * 5 + ".onnx",
    targets=EVERYTHING.targets,
    recipe=options.recipe(
        HELD,
        shapes=(),
        target_precision=None,
        runtime_version=None,
        target_opset=None,
        samples_uri=None,
        calibration_uri=None,
    ),
    promise=options.promise(None),
)


def read(request: PreflightRequest, result: Result) -> Any:
    text = write_manifest(request, result)
    assert text is not None
    manifest = yaml.safe_load(text)
    assert problems(manifest) == []
    return manifest


def make_failed(*suggested: str) -> Result:
    finding = Found(
        severity="error",
        reason="ShapeProfileMissing",
        message="",
        remedy="",
        options=suggested,
        stage="validate",
        targets=("cpu",),
    )
    return Result(verdict="fail", source="", findings=(finding,))


def test_every_option_is_a_field() -> None:
    result = Result(verdict="warn", source="")
    manifest = read(EVERYTHING, result)
    assert manifest["metadata"]["name"] == "model-1-gr-e-v2"
    assert manifest["spec"] == {
        "source": {"uri": "pvc://models/1-Gr--e--v2-.onnx"},
        "extensions": [{"type": "ONNXRuntimeExtensions"}],
        "processing": {
            "before": [{"uri": "pvc://models/tokens.onnx"}, {"uri": "s3://models/more.onnx"}]
        },
        "targetOpset": 17,
        "precision": "INT8",
        "quantization": {"calibration": {"uri": "pvc://models/days"}},
        "shapes": [
            {
                "input": "ids: 'a'",
                "min": [1, 2],
                "opt": [2, 4],
                "max": [4, 8],
                "range": {"low": "-1", "high": "640"},
            }
        ],
        "parity": {"samples": {"uri": "pvc://models/real.npz"}},
        "backends": ["cpu"],
        "fallback": {"policy": "Budget", "maxComputeShare": "2.5%", "maxNodeShare": "5%"},
    }
    text = write_manifest(EVERYTHING, result) or ""
    commands = [shlex.split(line[2:]) for line in text.splitlines() if line.startswith("# ")]
    assert sorted(command[:-1] for command in commands) == [
        ["enginewright", "upload", local]
        for local in ("/data/days", "/data/real.npz", "/steps/tokens.onnx", EVERYTHING.source)
    ]
    assert all(f"uri: {command[-1]}" in text and parse(command[-1]) for command in commands)


def test_proposals_are_filled_in_beside_what_is_given() -> None:
    manifest = read(PLAIN, make_failed("--shapes 'my input=1x3:1x4:8x9'", "--shapes y=1:2:3"))
    assert [item["input"] for item in manifest["spec"]["shapes"]] == ["my input", "y"]
    assert manifest["spec"]["source"] == {"uri": PLAIN.source}
    assert len(manifest["metadata"]["name"]) <= 40
    assert "shapes" not in read(PLAIN, Result(verdict="pass", source=""))["spec"]


@pytest.mark.parametrize("result", [make_failed(), Result(verdict="unknown", source="")])
def test_nothing_is_written_of_what_would_not_serve(result: Result) -> None:
    assert write_manifest(PLAIN, result) is None
