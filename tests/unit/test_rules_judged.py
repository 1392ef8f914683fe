"""Every rule finds what it is for and nothing else, and no rule cries wolf."""

from pathlib import Path
from typing import Any

import pytest
from enginewright_contract.task import Recipe
from enginewright_runtime.prepare.validate.inspection import inspect_here
from enginewright_runtime.rules import table
from onnx import ModelProto

from tests.support.broken_rules import BROKEN, GOOD

# reported by the stage, of what it parses, loads or runs
NEEDS_STAGE = {
    *("not-a-model", "nested-too-deep", "file-too-large"),
    *("opset-beyond-runtime", "ir-version-beyond-runtime", "shapes-missing", "shapes-contradict"),
    *("runtime-refuses", "operator-not-implemented", "external-data-refused", "backend-fails"),
    *("locale-missing", "one-size", "smaller-batch"),
    *("nodes-elsewhere", "onnx-checker", "declared-output-shape", "nan-answers"),
}


def judge(
    folder: Path,
    model: ModelProto | bytes,
    backend: str = "cpu",
    precision: str | None = None,
    rest: str | None = None,
) -> list[dict[str, Any]]:
    path = folder / "model" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    recipe = Recipe.model_validate(
        {
            "backend": backend,
            "ort_version": "1.31.1",
            "max_opset": 26,
            "max_ir_version": 13,
            "precision": precision,
            "quantization": {"rest": rest},
        }
    )
    return [finding.model_dump(mode="json") for finding in inspect_here(path, recipe).findings]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case[0])
def test_no_rule_cries_wolf(case: Any, tmp_path: Path) -> None:
    _, model, backend, files = case
    (tmp_path / "model").mkdir()
    if files is not None:
        files(tmp_path / "model")
    assert judge(tmp_path, model(), backend) == []


def test_weights_beyond_fp16_are_reported_where_the_rest_has_it(tmp_path: Path) -> None:
    model = next(case for case in BROKEN if case.rule == "half-range").model()
    for rest, rules in ((None, []), ("FP16", ["half-range"])):
        findings = judge(tmp_path, model, "tensorrt", "INT8", rest)
        assert [finding["rule"] for finding in findings] == rules


def test_every_rule_has_a_broken_model() -> None:
    tried = {case.rule for case in BROKEN}
    assert tried | NEEDS_STAGE == {rule.name for rule in table.RULES}
    assert not tried & NEEDS_STAGE
