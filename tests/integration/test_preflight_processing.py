"""`enginewright preflight` of a model with steps: the checks of the Job, and a request through the whole chain."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from hack.samples import text_steps
from tests.integration.test_docs_processing import infer, prepare_served
from tests.support import processing
from tests.support.broken_models import initializer, parse_text
from tests.support.preflight_runs import Desk
from tests.support.serving import Server

REPOSITORY = Path(__file__).parents[2]
EXTENSION = ("--extension", "ONNXRuntimeExtensions")
BEFORE, AFTER = f"--before={text_steps.TOKENIZER}", f"--after={text_steps.VERDICT}"
SENT = "--request=mood-request.json"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    tools = Desk(tmp_path)
    generate = [sys.executable, "-m", "hack.samples.text_steps", str(tools.root)]
    subprocess.run(generate, cwd=REPOSITORY, check=True)
    return tools


def finding(document: dict[str, Any]) -> dict[str, Any]:
    (only,) = (item for item in document["findings"] if item["severity"] == "error")
    assert only["remedy"]
    error: dict[str, Any] = only
    return error


def test_the_sample_is_checked_and_served(desk: Desk, tmp_path: Path) -> None:
    arguments = (text_steps.MODEL, "--target=cpu", "--backend=cpu", BEFORE, AFTER, *EXTENSION, SENT)
    code, document = desk.run_json(*arguments)
    assert code == 0, document
    assert document["verdict"] == "pass"
    assert document["targets"]["cpu"]["answer"] == [
        {"name": "verdict", "datatype": "BYTES", "shape": [1], "values": ["good"]}
    ]
    shown = desk.run(*arguments)
    assert "cpu: answers verdict BYTES [1]: good" in shown.stdout
    place = tmp_path / "served"
    place.mkdir()
    shutil.copytree(desk.root, place / "source")
    task = prepare_served(place, (desk.root / "mood.yaml").read_text())
    with Server(place, task) as server:
        assert infer(server, text_steps.REQUEST) == {"verdict": ["good"]}
        other = json.loads(json.dumps(text_steps.REQUEST))
        other["inputs"][0]["data"] = ["bad, very bad"]
        assert infer(server, other) == {"verdict": ["bad"]}


def test_a_configuration_has_the_steps(desk: Desk) -> None:
    (desk.root / "enginewright.toml").write_text(
        f"""
        [[models]]
        path = "{text_steps.MODEL}"
        targets = ["cpu"]
        backend = "cpu"
        before = ["{text_steps.TOKENIZER}"]
        after = ["{text_steps.VERDICT}"]
        extensions = ["ONNXRuntimeExtensions"]
        request = "mood-request.json"
        """
    )
    done = desk.run("--json")
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(done.stdout)["models"]
    assert model["targets"]["cpu"]["answer"][0]["values"] == ["good"]
    tokenizer = processing.decoder()
    onnx.save(tokenizer, desk.root / text_steps.TOKENIZER)  # another step: no cached result
    assert desk.run("--quiet").returncode == 1


def failing() -> onnx.ModelProto:
    """Return score [n] -> verdict [n], which fails on every score but 0."""
    return parse_text(
        """(float["n"] score) => (string["n"] verdict) {
        number = Cast <to = 7> (score) verdict = Gather(labels, number) }""",
        initializer("labels", ["none"], object),
    )


def test_a_request_that_a_step_fails_on_fails_the_target(desk: Desk) -> None:
    onnx.save(failing(), desk.root / "failing.onnx")
    code, document = desk.run_json(
        text_steps.MODEL,
        "--target=cpu",
        "--backend=cpu",
        BEFORE,
        "--after=failing.onnx",
        *EXTENSION,
        SENT,
    )
    assert code == 1
    error = finding(document)
    assert (error["reason"], error["stage"]) == ("InvalidModel", "examine")
    assert (
        "would answer --request with 500: step spec.processing.after[0] failed" in error["message"]
    )


def test_a_request_that_does_not_fit_fails_the_target(desk: Desk) -> None:
    wrong = {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 1], "data": [2]}]}
    (desk.root / "wrong.json").write_text(json.dumps(wrong))
    code, document = desk.run_json(
        text_steps.MODEL,
        "--target=cpu",
        "--backend=cpu",
        BEFORE,
        AFTER,
        *EXTENSION,
        "--request=wrong.json",
    )
    assert code == 1
    error = finding(document)
    assert error["reason"] == "RequestsRejected"
    assert "with 400: " in error["message"]
    assert "'text'" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--before=gone.onnx"], "--before gone.onnx: no such file"),
        ([AFTER] * 3, "--after: 3 steps, more than 2; merge some with onnx.compose.merge_models"),
        (["--extension=libmine.so"], "--extension 'libmine.so': write ONNXRuntimeExtensions"),
        (["--request=gone.json"], "--request gone.json: no such file"),
    ],
)
def test_wrong_options_are_refused_at_once(desk: Desk, arguments: list[str], message: str) -> None:
    done = desk.run(text_steps.MODEL, "--target=cpu", "--backend=cpu", *arguments)
    assert done.returncode == 64
    assert message in done.stderr


def test_a_request_needs_a_target_that_runs(desk: Desk) -> None:
    done = desk.run(text_steps.MODEL, "--target=sm89", SENT)
    assert done.returncode == 64
    assert "no target answers it, since engines are not run here; add --target cpu" in done.stderr


def test_the_manifest_is_that_of_the_files() -> None:
    spec = yaml.safe_load(text_steps.MANIFEST)["spec"]
    uris = [spec["source"], *spec["processing"]["before"], *spec["processing"]["after"]]
    names = [item["uri"].removeprefix("pvc://models/") for item in uris]
    assert names == [text_steps.MODEL, text_steps.TOKENIZER, text_steps.VERDICT]
