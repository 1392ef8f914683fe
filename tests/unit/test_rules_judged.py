"""Every rule finds what it is for and nothing else, and no rule cries wolf."""

from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from enginewright.contract.task import Recipe
from enginewright_runtime.prepare.validate.inspection import inspect_here
from enginewright_runtime.rules import table
from enginewright_runtime.rules.text import printable
from onnx import ModelProto

from tests.support.broken_rules import BROKEN, GOOD, Broken

# told by the stage, of what it parses, loads or runs
NEEDS_STAGE = {
    *("not-a-model", "nested-too-deep", "file-too-large"),
    *("opset-beyond-runtime", "ir-version-beyond-runtime", "shapes-missing", "shapes-contradict"),
    *("runtime-refuses", "operator-not-implemented", "external-data-refused", "backend-fails"),
    *("locale-missing", "one-size", "smaller-batch"),
    *("nodes-elsewhere", "onnx-checker", "declared-output-shape", "nan-answers"),
}


def judge(
    folder: Path, model: ModelProto | bytes, backend: str = "cpu", precision: str | None = None
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
        }
    )
    answer = inspect_here(str(path), recipe.model_dump(mode="json"))
    return list(answer["findings"])


def load(folder: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(
        str(folder / "model/model.onnx"), options, providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: f"{case.rule}: {case.told}")
def test_rule_finds(case: Broken, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    if case.files is not None:
        case.files(tmp_path / "model")
    found = judge(tmp_path, case.model(), case.backend, case.precision)
    mine = [each for each in found if each["rule"] == case.rule]
    assert len(mine) == 1, found
    assert {each["rule"] for each in found} - {case.rule} == case.also
    rule = next(rule for rule in table.RULES if rule.name == case.rule)
    assert (mine[0]["severity"], mine[0]["reason"]) == (case.severity, rule.reason)
    assert case.told in mine[0]["message"]
    assert mine[0]["message"].endswith(printable(case.remedy or rule.remedy)), (
        "every finding ends with a remedy"
    )
    assert mine[0]["message"].isprintable()
    assert (mine[0]["node_count"], len(mine[0]["nodes"])) == (case.nodes, case.nodes)
    if case.severity == "error" and case.refused:
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            load(tmp_path)


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case[0])
def test_no_rule_cries_wolf(case: Any, tmp_path: Path) -> None:
    _, model, backend, files = case
    (tmp_path / "model").mkdir()
    if files is not None:
        files(tmp_path / "model")
    assert judge(tmp_path, model(), backend) == []


LOADABLE = [case for case in GOOD if case[2] == "cpu"]


@pytest.mark.parametrize("case", LOADABLE, ids=lambda case: case[0])
def test_onnx_runtime_loads_the_good_models(case: Any, tmp_path: Path) -> None:
    """What is called good above must be."""
    _, model, _, files = case
    (tmp_path / "model").mkdir()
    if files is not None:
        files(tmp_path / "model")
    (tmp_path / "model/model.onnx").write_bytes(model().SerializeToString())
    load(tmp_path)


def test_every_rule_has_a_broken_model() -> None:
    tried = {case.rule for case in BROKEN}
    assert tried | NEEDS_STAGE == {rule.name for rule in table.RULES}
    assert not tried & NEEDS_STAGE
