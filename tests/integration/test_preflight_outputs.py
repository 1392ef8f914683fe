"""What preflight writes: JSON and its schema, JUnit's XML, a fixed model, of a few runs for all."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_cli.preflight.result import Result, Results
from enginewright_cli.preflight.schema import schema, text

from tests.support import broken_models as broken
from tests.support.optional import present
from tests.support.preflight_results import partial
from tests.support.preflight_runs import Desk
from tests.unit.test_preflight_junit import read

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
KNOWN = {
    *("title", "description", "default", "format", "$schema", "$id", "$defs"),
    *("type", "$ref", "anyOf", "enum", "const"),
    *("properties", "required", "additionalProperties", "items"),
}


@dataclass(frozen=True)
class Run:
    """A run of preflight that has ended, and the folder that it wrote to."""

    folder: Path
    done: CompletedProcess[str]

    @property
    def document(self) -> Any:
        return json.loads(self.done.stdout)

    @property
    def result(self) -> Result:
        """Return its JSON as the class that wrote it."""
        return Result.model_validate_json(self.done.stdout)


FILES = (
    "--html",
    "page.html",
    "--junit",
    "junit.xml",
    "--fix",
    "fixed.onnx",
    "--manifest",
    "m.yaml",
)


@pytest.fixture(scope="module")
def rendered(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a real model's preflight, which changes it, with every file that can be asked for."""
    model = next(models.rglob("ch_ppocr_mobile_v2.0_cls_infer.onnx"))
    desk = Desk(tmp_path_factory.mktemp("rendered"))
    options = "--json --target cpu --backend cpu --target-opset 17 --shapes x=1x3x48x192"
    return Run(desk.root, desk.run(model, *options.split(), *FILES))


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the same of a model that nothing serves, with a name that would be markup."""
    desk = Desk(tmp_path_factory.mktemp("refused"))
    model = broken.one_node("Frobnicate", "com.example")
    model.graph.node[0].name = "<script>\x1b[31m\u202e"
    return Run(desk.root, desk.run(desk.save(model), "--json", "--target", "cpu", *FILES))


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the commands of docs/preflight.md on a model whose data lies where ours might go."""
    desk = Desk(tmp_path_factory.mktemp("examples"))
    (desk.root / "fixed.bin").write_bytes(broken.weights())
    desk.save(broken.external("fixed.bin"))
    text = (REPOSITORY / "docs/preflight.md").read_text()
    ours = text.partition("## JSON")[2].partition("## Missing shapes")[0]
    commands = re.findall(r"^```sh\n(.*?)^```", ours, re.MULTILINE | re.DOTALL)
    assert len(commands) == 3
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "".join(commands)
    done = desk.run("-euc", script, command=("bash",), environment={"PATH": path})
    assert done.returncode == 0, done.stderr
    return Run(desk.root, done)


def problems(value: Any, part: dict[str, Any], whole: dict[str, Any], at: str = "$") -> list[str]:
    """Return where a value does not follow a schema, for the keywords that ours uses."""
    assert part.keys() <= KNOWN, f"this test knows no {part.keys() - KNOWN}"
    if "$ref" in part:
        part = whole["$defs"][part["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in part and all(problems(value, item, whole, at) for item in part["anyOf"]):
        return [f"{at}: {value!r} is none of what it may be"]
    is_kind = isinstance(value, KINDS[part["type"]]) if "type" in part else True
    if not is_kind or (isinstance(value, bool) and part.get("type") != "boolean"):
        return [f"{at}: {value!r} is no {part['type']}"]
    if value not in part.get("enum", [value]) or value != part.get("const", value):
        return [f"{at}: {value!r} is not allowed"]
    return [
        problem
        for name, item, rule in inner(value, part, at)
        for problem in (problems(item, rule, whole, name) if rule is not None else [item])
    ]


def inner(value: Any, part: dict[str, Any], at: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield place, value and rule of what is inside; a problem in place of a value without rule."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield f"{at}[{index}]", item, part["items"]
    if isinstance(value, dict) and "anyOf" not in part:
        for name in part.get("required", ()):
            if name not in value:
                yield at, f"{at}: no {name}", None
        for name, item in value.items():
            rule = part.get("properties", {}).get(name, part.get("additionalProperties"))
            missing = f"{at}: {name} is not described"
            yield f"{at}.{name}", (item if rule else missing), rule


def test_the_file_is_that_of_the_classes() -> None:
    kept = (REPOSITORY / "docs/preflight.schema.json").read_text()
    assert kept == text(), "docs/preflight.schema.json has drifted: run hack/preflight-schema"


def test_every_field_and_form_is_described() -> None:
    made = schema()
    for name, part in made["$defs"].items():
        assert part["description"], name
        for field, item in part["properties"].items():
            assert item["description"].endswith("."), (name, field)
            assert {"type": "null"} not in item.get("anyOf", ()), (name, field)
    one = made["$defs"]["Result"]["properties"]
    assert one["schema"]["const"] == "enginewright.dev/preflight/v1"


def test_real_results_follow_it(rendered: Run, refused: Run) -> None:
    made = schema()
    assert (rendered.done.returncode, refused.done.returncode) == (0, 1)
    several = Results(verdict="fail", models=(partial(), rendered.result))
    made_up = (json.loads(item.to_json()) for item in (partial(), several))
    for item in (rendered.document, refused.document, *made_up):
        assert problems(item, made, made) == []


def test_the_check_notices_violations(rendered: Run) -> None:
    made = schema()
    one = made["$defs"]["Result"]
    good = rendered.document
    for wrong, wording in (
        (good | {"verdict": "maybe"}, "'maybe' is not allowed"),
        ({key: item for key, item in good.items() if key != "targets"}, "no targets"),
        (good | {"extra": 1}, "extra is not described"),
        (good | {"seconds": "1"}, "'1' is no number"),
        (good | {"cached": 1}, "1 is no boolean"),
        (good | {"findings": [{}]}, "$.findings[0]: no severity"),
        (good | {"schema": "enginewright.dev/preflight/v2"}, "is not allowed"),
    ):
        assert any(wording in problem for problem in problems(wrong, one, made)), wording
        assert problems(wrong, made, made)


def test_a_real_run_tells_the_graph_and_where_the_nodes_run(rendered: Run) -> None:
    result = rendered.result
    model, cpu = result.model, result.targets["cpu"]
    assert model is not None
    assert model.graph is not None
    assert model.nodes == 566
    assert sum(operator.count for operator in model.graph.operators) == 566
    assert model.graph.operator_types == len(model.graph.operators)
    sizes = [weight_type_name.size_bytes for weight_type_name in model.graph.weight_types]
    assert 0.8 * model.size_bytes < sum(sizes) < model.size_bytes
    read = sum(operator.weight_bytes for operator in model.graph.operators)
    assert read == pytest.approx(sum(sizes), rel=0.01)
    assert model.graph.largest_weights[0].size_bytes == max(
        largest_weight.size_bytes for largest_weight in model.graph.largest_weights
    )
    assert cpu.placement is not None
    counted = sum(operator.count for operator in cpu.placement.operators)
    assert counted == cpu.nodes_total == cpu.nodes_accelerated
    assert sum(operator.share or 0 for operator in cpu.placement.operators) == pytest.approx(
        1, abs=0.001
    )
    assert not any(node.elsewhere for node in cpu.placement.nodes)
    assert cpu.versions["onnxruntime"]


def test_the_examples_of_the_page_work(examples: Run) -> None:
    made = {path.name for path in examples.folder.iterdir()}
    written = {"result.json", "report.html", "junit.xml", "model.yaml"}
    assert written | {"fixed.onnx", "fixed.changes.json"} <= made
    result = json.loads((examples.folder / "result.json").read_text())
    text = (REPOSITORY / "docs/preflight.md").read_text()
    reported = json.loads(text.partition("```json\n")[2].partition("```")[0])
    parts = schema()["$defs"]
    assert reported.keys() == result.keys()
    for name, item in (
        ("ModelFacts", reported["model"]),
        ("Found", reported["findings"][0]),
        ("TargetResult", reported["targets"]["sm89"]),
    ):
        assert item.keys() <= parts[name]["properties"].keys()


def test_junit_of_a_real_run(rendered: Run, refused: Run) -> None:
    (suite,) = read((rendered.folder / "junit.xml").read_text())
    (case,) = suite
    assert (suite.get("failures"), case.get("name")) == ("0", "cpu")
    assert float(case.get("time", "")) > 0
    assert "converted opset 11 to 17" in case.findtext("system-out", "")
    (case,) = read((refused.folder / "junit.xml").read_text())[0]
    failure = present(case.find("failure"))
    assert failure.get("type") == refused.result.targets["cpu"].reason
    assert "remedy: " in (failure.text or "")


def test_a_real_model_is_written_as_it_would_serve(rendered: Run) -> None:
    model, log = rendered.folder / "fixed.onnx", rendered.folder / "fixed.changes.json"
    reported = json.loads(log.read_text())
    assert reported["schema"] == "enginewright.dev/preflight-fix/v1"
    assert (reported["target"], reported["opset"], reported["source_digest"]) == (
        "cpu",
        17,
        rendered.document["model"]["digest"],
    )
    assert reported["changes"] == rendered.document["targets"]["cpu"]["changes"]
    assert reported["changes"][0]["kind"] == "opset"
    assert reported["parity"]["outputs"][0]["max_abs_error"] < 1e-6
    (file,) = reported["files"]
    assert file["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
    assert onnx.load(model).opset_import[0].version == 17
    sources = [ort.InferenceSession(path) for path in (rendered.document["source"], model)]
    feeds = {"x": np.random.default_rng(0).random((1, 3, 48, 192), dtype=np.float32)}
    first, second = (source.run(None, feeds)[0] for source in sources)
    np.testing.assert_allclose(first, second, rtol=1e-5)
    assert f"wrote {model.name}" in rendered.done.stderr
    assert "changed: converted opset 11 to 17" in rendered.done.stderr
    assert {path.name for path in rendered.folder.iterdir()} == {
        *("fixed.onnx", "fixed.changes.json", "page.html", "junit.xml", "m.yaml")
    }
    manifest = (rendered.folder / "m.yaml").read_text()
    assert manifest == rendered.result.manifest
    assert "max: [1, 3, 48, 192]" in manifest
    assert "# enginewright upload " in (rendered.folder / "page.html").read_text()


def test_nothing_is_written_of_a_model_that_nothing_serves(refused: Run) -> None:
    assert refused.done.returncode == 1
    assert {path.name for path in refused.folder.iterdir()} == {
        "model.onnx",
        "page.html",
        "junit.xml",
    }
    assert "--manifest m.yaml: not written" in refused.done.stderr
    assert "not written, since no target would serve the model" in refused.done.stderr


def test_external_data_goes_along_and_the_sources_stays(examples: Run) -> None:
    place = examples.folder
    assert (place / "fixed.bin").read_bytes() == broken.weights()
    assert (place / "model.onnx").read_bytes() == broken.external("fixed.bin").SerializeToString()
    log = json.loads((place / "fixed.changes.json").read_text())
    assert len(log["files"]) == 1 + len(list(place.glob("fixed.data/*")))
    for item in log["files"]:
        content = (place / item["path"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == item["sha256"]
    onnx.checker.check_model(str(place / "fixed.onnx"), full_check=True)
    feeds = {"x": np.ones((1, 4), dtype=np.float32)}
    (out,) = ort.InferenceSession(place / "fixed.onnx").run(None, feeds)
    np.testing.assert_array_equal(out, feeds["x"])


def test_a_path_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.onnx")
    Path(path).write_bytes(broken.relu().SerializeToString())
    desk = Desk(tmp_path)
    done = desk.run(path, "--target", "cpu", "--html", "page.html")
    assert done.returncode == 64
    assert "\\udcff.onnx: its name is not UTF-8; rename it" in "".join(done.stderr.splitlines())
    assert not (desk.root / "page.html").exists()
