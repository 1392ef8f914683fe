"""What the rules say of models that people use: no error and no warning that is not true."""

from pathlib import Path
from typing import Final

import pytest
from enginewright_contract.task import Recipe
from enginewright_runtime.prepare.validate.inspection import inspect_here

BACKENDS: Final = ("cpu", "cuda", "openvino", "tensorrt", "tensorrt-rtx")
SHAPES: Final = {"shapes-missing"}  # asked for by design: most of them have open sizes
# Each was looked at by hand: the graph has these nodes, and TensorRT's documentation these limits.
WARNINGS: Final = {
    ("silero_vad.onnx", "tensorrt"): {"control-flow"},
    ("silero_vad_16k_op15.onnx", "tensorrt"): {"control-flow"},
    ("silero_vad_half.onnx", "tensorrt"): {"control-flow"},
    ("silero_vad_op18_ifless.onnx", "tensorrt"): {"control-flow"},  # has an If all the same
    ("swift_f0", "tensorrt"): {"float64"},  # casts the pitch to float64 to look it up
    ("swift_f0", "cuda"): {"float64"},
}
# The pitch is an output of float64, which the TensorRT-RTX provider refuses: it is built, not served.
ERRORS: Final = {("swift_f0", "tensorrt-rtx"): {"type-not-served"}}


def judge(path: Path, backend: str, precision: str | None = None) -> dict[str, str]:
    """Return the rules that find something, with their severity."""
    recipe = {
        "backend": backend,
        "ort_version": "1.31.1",
        "max_opset": 25,
        "max_ir_version": 13,
        "precision": precision,
    }
    inspected = inspect_here(path, Recipe.model_validate(recipe))
    severities = {finding.rule: finding.severity for finding in inspected.findings}
    return {rule: severity for rule, severity in severities.items() if rule not in SHAPES}


@pytest.mark.parametrize("backend", BACKENDS)
def test_findings_are_known_and_true(backend: str, models: Path) -> None:
    paths = sorted(models.rglob("*.onnx"))
    assert len(paths) > 8
    for path in paths:
        name = path.name if path.name != "model.onnx" else path.parent.name
        like = "tensorrt" if backend == "tensorrt-rtx" else backend
        expected = dict.fromkeys(WARNINGS.get((name, like), ()), "warning")
        expected |= dict.fromkeys(ERRORS.get((name, backend), ()), "error")
        assert judge(path, backend) == expected, name


def test_a_variance_that_float16_cannot_hold(models: Path) -> None:
    """97,903,600 in batch_norm_0.w_2: cut off, the detector's masks overlap by 63% alone."""
    findings = {
        path.name: set(judge(path, "tensorrt", "FP16")) & {"half-range", "half-overflow"}
        for path in models.rglob("*.onnx")
    }
    assert {name for name, rules in findings.items() if rules} == {"ch_PP-OCRv4_det_infer.onnx"}
