"""The schema of preflight's JSON: it is that of the classes, it says all, and real results follow it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from enginewright_cli.preflight.result import Results
from enginewright_cli.preflight.schema import schema, text

from tests.support.preflight_results import partial
from tests.support.preflighting import Preflighted

REPOSITORY = Path(__file__).resolve().parents[2]
KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
WORDS = {"title", "description", "default", "$schema", "$id", "$defs"}


KNOWN = WORDS | {
    *("type", "$ref", "anyOf", "enum", "const"),
    *("properties", "required", "additionalProperties", "items"),
}


def problems(value: Any, part: dict[str, Any], whole: dict[str, Any], at: str = "$") -> list[str]:
    """Return where a value does not follow a schema, for the keywords that ours uses."""
    assert part.keys() <= KNOWN, f"this test knows no {part.keys() - KNOWN}"
    if "$ref" in part:
        part = whole["$defs"][part["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in part and all(problems(value, each, whole, at) for each in part["anyOf"]):
        return [f"{at}: {value!r} is none of what it may be"]
    is_kind = isinstance(value, KINDS[part["type"]]) if "type" in part else True
    if not is_kind or (isinstance(value, bool) and part.get("type") != "boolean"):
        return [f"{at}: {value!r} is no {part['type']}"]
    if value not in part.get("enum", [value]) or value != part.get("const", value):
        return [f"{at}: {value!r} is not allowed"]
    return [
        problem
        for name, each, rule in inner(value, part, at)
        for problem in (problems(each, rule, whole, name) if rule is not None else [each])
    ]


def inner(value: Any, part: dict[str, Any], at: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield place, value and rule of what is inside; a problem in place of a value without rule."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield f"{at}[{index}]", each, part["items"]
    if isinstance(value, dict) and "anyOf" not in part:
        for name in part.get("required", ()):
            if name not in value:
                yield at, f"{at}: no {name}", None
        for name, each in value.items():
            rule = part.get("properties", {}).get(name, part.get("additionalProperties"))
            missing = f"{at}: {name} is not described"
            yield f"{at}.{name}", (each if rule else missing), rule


def test_the_file_is_that_of_the_classes() -> None:
    kept = (REPOSITORY / "docs/preflight.schema.json").read_text()
    assert kept == text(), "docs/preflight.schema.json has drifted: run hack/preflight-schema"


def test_every_field_and_form_is_described() -> None:
    made = schema()
    for name, part in made["$defs"].items():
        assert part["description"], name
        for field, each in part["properties"].items():
            assert each["description"].endswith("."), (name, field)
            assert {"type": "null"} not in each.get("anyOf", ()), (name, field)
    one = made["$defs"]["Result"]["properties"]
    assert one["schema"]["const"] == "enginewright.dev/preflight/v1"


def test_real_results_follow_it(rendered: Preflighted, refused: Preflighted) -> None:
    made = schema()
    assert (rendered.code, refused.code) == (0, 1)
    several = Results(verdict="fail", models=(partial(), rendered.result))
    made_up = (json.loads(each.to_json()) for each in (partial(), several))
    for each in (rendered.told, refused.told, *made_up):
        assert problems(each, made, made) == []


def test_it_notices_what_does_not_follow(rendered: Preflighted) -> None:
    made = schema()
    one = made["$defs"]["Result"]
    good = rendered.told
    for wrong, words in (
        (good | {"verdict": "maybe"}, "'maybe' is not allowed"),
        ({key: each for key, each in good.items() if key != "targets"}, "no targets"),
        (good | {"extra": 1}, "extra is not described"),
        (good | {"seconds": "1"}, "'1' is no number"),
        (good | {"cached": 1}, "1 is no boolean"),
        (good | {"findings": [{}]}, "$.findings[0]: no severity"),
        (good | {"schema": "enginewright.dev/preflight/v2"}, "is not allowed"),
    ):
        assert any(words in each for each in problems(wrong, one, made)), words
        assert problems(wrong, made, made)


def test_a_real_run_tells_the_graph_and_where_the_nodes_run(rendered: Preflighted) -> None:
    result = rendered.result
    model, cpu = result.model, result.targets["cpu"]
    assert model is not None
    assert model.graph is not None
    assert model.nodes == 566
    assert sum(each.count for each in model.graph.operators) == 566
    assert model.graph.operator_types == len(model.graph.operators)
    sizes = [each.size_bytes for each in model.graph.weight_types]
    assert 0.8 * model.size_bytes < sum(sizes) < model.size_bytes
    read = sum(each.weight_bytes for each in model.graph.operators)
    assert read == pytest.approx(sum(sizes), rel=0.01)
    assert model.graph.largest_weights[0].size_bytes == max(
        each.size_bytes for each in model.graph.largest_weights
    )
    assert cpu.placement is not None
    counted = sum(each.count for each in cpu.placement.operators)
    assert counted == cpu.nodes_total == cpu.nodes_accelerated
    assert sum(each.share or 0 for each in cpu.placement.operators) == pytest.approx(1, abs=0.001)
    assert not any(each.elsewhere for each in cpu.placement.nodes)
    assert cpu.versions["onnxruntime"]


def test_the_examples_of_the_page_work(examples: Preflighted) -> None:
    assert examples.code == 0, examples.stderr
    made = {path.name for path in examples.folder.iterdir()}
    assert {"result.json", "report.html", "junit.xml", "fixed.onnx", "fixed.changes.json"} <= made
    result = json.loads((examples.folder / "result.json").read_text())
    text = (REPOSITORY / "docs/preflight.md").read_text()
    told = json.loads(text.partition("```json\n")[2].partition("```")[0])
    parts = schema()["$defs"]
    assert told.keys() == result.keys()
    for name, each in (
        ("ModelFacts", told["model"]),
        ("Found", told["findings"][0]),
        ("TargetResult", told["targets"]["sm89"]),
    ):
        assert each.keys() <= parts[name]["properties"].keys()
