"""The benchmark of verdicts: what counts as a disagreement, whose cause is written, and what is published."""

import json
from dataclasses import replace
from typing import Any

import pytest

from bench.verdicts import comparing
from bench.verdicts.asking import list_proposals, read_verdict, shorten
from bench.verdicts.cases import CASES, REPOSITORY
from bench.verdicts.causes import CAUSES, Cause
from bench.verdicts.comparing import count, find_disagreements, list_misses
from bench.verdicts.results import BESIDE, CHECKER, COLUMNS, Model, Results, Verdict, Word, read
from hack.tables.verdicts import MEASURED

TAKES, REFUSES = Word(None), Word("unsupported", takes_prepared=True)
PASS, FAIL = Verdict("pass", []), Verdict("fail", ["UnsupportedOperator"], "no kernel")
CAUSE = Cause(("sm89",), ("m",), accepted=True, right="preflight", text="the If is folded")


def model(verdict: Verdict, word: Word, *, column: str = "sm89") -> Model:
    return Model(
        "m", "VAD", "m.onnx", 16, 9, 0.1, [], {"cpu": PASS, column: verdict}, {column: word}
    )


def results(*models: Model) -> Results:
    return Results({"date": "2026-11-27", "versions": {"onnx": "1.23.2"}}, list(models))


@pytest.mark.parametrize(
    ("verdict", "word", "expected"),
    [
        (PASS, TAKES, []),
        (FAIL, REFUSES, []),
        (Verdict("warn", ["OpsetConverted"]), TAKES, []),
        (PASS, REFUSES, [True]),
        (FAIL, TAKES, [False]),
    ],
)
def test_who_accepts_alone_disagrees(verdict: Verdict, word: Word, expected: list[bool]) -> None:
    disagreements = find_disagreements(results(model(verdict, word)))
    assert [item.accepted for item in disagreements] == expected


def test_the_checker_is_held_against_the_verdict_on_cpu() -> None:
    (item,) = find_disagreements(results(model(PASS, REFUSES, column=CHECKER)))
    assert (item.column, item.accepted) == (CHECKER, True)


def test_a_disagreement_without_a_cause_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "CAUSES", ())
    (miss,) = list_misses(results(model(PASS, REFUSES)), whole=True)
    assert miss == "UNEXPLAINED m, TensorRT-RTX: preflight accepts it, the tool does not"


def test_a_cause_is_right_for_one_and_a_miss_where_the_tool_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparing, "CAUSES", (CAUSE,))
    seen = results(model(PASS, REFUSES))
    assert list_misses(seen, whole=True) == []
    (tally,) = [item for item in count(seen) if item.column == "sm89"]
    assert (tally.models, tally.agree, tally.preflight, tally.tool) == (1, 0, 1, 0)
    monkeypatch.setattr(comparing, "CAUSES", (replace(CAUSE, right="tool"),))
    assert list_misses(seen, whole=True) == ["WRONG m, sm89: the If is folded"]


def test_a_cause_of_nothing_is_a_miss_of_whole_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "CAUSES", (CAUSE,))
    agreeing = results(model(PASS, TAKES))
    assert list_misses(agreeing, whole=True) == ["IDLE the If is folded"]
    assert list_misses(agreeing, whole=False) == []


def test_a_run_without_a_verdict_is_a_miss() -> None:
    silent = Verdict("error", [], "no result within 1200 s")
    misses = list_misses(results(model(silent, REFUSES)), whole=False)
    assert misses == ["NO VERDICT m, sm89: no result within 1200 s"]


DOCUMENT: dict[str, Any] = {
    "findings": [
        {
            "severity": "error", "reason": "ShapeProfileMissing", "targets": ["sm89"],
            "options": ["--shapes x=1x3:1x3:8x3", "--budget allow"],
        },
        {"severity": "warning", "reason": "RuleViolated", "targets": ["sm89", "cpu"], "options": []},
    ],
    "targets": {
        "sm89": {"verdict": "fail", "reason": "ShapeProfileMissing", "message": "x has no sizes"},
        "cpu": {"verdict": "warn", "changes": [{"kind": "opset"}, {"kind": "opset"}]},
    },
}  # fmt: skip


def test_a_target_fails_for_its_errors_and_warns_of_its_warnings() -> None:
    assert read_verdict(DOCUMENT, "sm89") == Verdict(
        "fail", ["ShapeProfileMissing"], "x has no sizes"
    )
    assert read_verdict(DOCUMENT, "cpu") == Verdict("warn", ["RuleViolated"], "", ["opset"])
    assert read_verdict({"stopped": "killed"}, "cpu") == Verdict("error", [], "killed")


def test_sizes_are_proposed_to_targets_that_fail() -> None:
    assert list_proposals(DOCUMENT, "sm89") == ["--shapes x=1x3:1x3:8x3"]
    assert list_proposals(DOCUMENT, "cpu") == []


def test_messages_are_short_and_name_no_path_of_a_machine() -> None:
    told = f"cannot open {REPOSITORY}/build/x/model.onnx: /onnxruntime_src/onnxruntime/core/graph.cc:1 n"
    assert shorten(told) == "cannot open model.onnx: graph.cc:1 n"
    assert len(shorten("node " * 200)) <= 240


def test_names_of_models_and_causes_are_those_of_cases_and_columns() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) >= 25
    columns = {*BESIDE, *(column.name for column in COLUMNS)}
    for cause in CAUSES:
        assert set(cause.models) <= set(names), cause.text
        assert set(cause.columns) <= columns, cause.text


def test_what_is_published_has_all_models_and_a_cause_for_each_disagreement() -> None:
    published = read(json.loads(MEASURED.read_text()))
    assert [item.name for item in published.models] == [case.name for case in CASES]
    assert list_misses(published, whole=True) == []
