"""Every rule finds what it is for and nothing else, and no rule cries wolf."""

from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from enginewright_runtime.rules import table
from enginewright_runtime.rules.text import printable

from tests.support.broken_rules import BROKEN, GOOD, Broken
from tests.unit.test_rules_judged import judge


def load(folder: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(
        str(folder / "model/model.onnx"), options, providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: f"{case.rule}: {case.reported}")
def test_rule_finds(case: Broken, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    if case.files is not None:
        case.files(tmp_path / "model")
    findings = judge(tmp_path, case.model(), case.backend, case.precision)
    mine = [finding for finding in findings if finding["rule"] == case.rule]
    assert len(mine) == 1, findings
    assert {finding["rule"] for finding in findings} - {case.rule} == case.also
    rule = next(rule for rule in table.RULES if rule.name == case.rule)
    assert (mine[0]["severity"], mine[0]["reason"]) == (case.severity, rule.reason)
    assert case.reported in mine[0]["cause"]
    assert mine[0]["remedy"] == printable(case.remedy or rule.remedy)
    assert mine[0]["cause"].isprintable()
    assert (mine[0]["node_count"], len(mine[0]["nodes"])) == (case.nodes, case.nodes)
    if case.severity == "error" and case.refused:
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            load(tmp_path)


LOADABLE = [case for case in GOOD if case[2] == "cpu"]


@pytest.mark.parametrize("case", LOADABLE, ids=lambda case: case[0])
def test_onnx_runtime_loads_the_good_models(case: Any, tmp_path: Path) -> None:
    _, model, _, files = case
    (tmp_path / "model").mkdir()
    if files is not None:
        files(tmp_path / "model")
    (tmp_path / "model/model.onnx").write_bytes(model().SerializeToString())
    load(tmp_path)
