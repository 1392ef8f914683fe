"""`enginewright serve` as a user runs it: the curl line that it prints is run, and Ctrl-C leaves nothing behind."""

import json
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from enginewright_contract.execution import Execution
from enginewright_contract.verdict import Verdict

from tests.support import broken_models as broken
from tests.support.ports import free_port
from tests.support.preflight_runs import COMMAND, Desk
from tests.support.programs import run_program
from tests.support.serving import linear_model

if TYPE_CHECKING:
    import subprocess


REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_page_shows_what_describe_prints(models: Path) -> None:
    page = (REPOSITORY / "docs/serve.md").read_text()
    shown = page.partition("$ enginewright describe model.onnx\n")[2].partition("$ ")[0]
    path = next(path for path in models.rglob("*.onnx") if "standard_v3_3" in str(path))
    printed = run_program([*COMMAND, "describe", str(path)]).stdout.replace(str(path), "model.onnx")
    assert printed == shown


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.check_clean()


def wait_for_curl(process: "subprocess.Popen[str]") -> tuple[str, ...]:
    """Return the lines that are printed once the model is ready."""
    assert process.stdout is not None
    lines = []
    while True:
        line = process.stdout.readline()
        assert line, process.communicate(timeout=30)
        lines.append(line.rstrip("\n"))
        if line.startswith("curl"):
            return tuple(lines)


@pytest.mark.parametrize("size", [8, 4096])
def test_the_curl_line_is_answered_as_onnx_runtime_answers(desk: Desk, size: int) -> None:
    """Large requests, of the second size, are in a file."""
    path = desk.save(linear_model(size))
    port = free_port()
    process = desk.start("serve", path, "--target", "cpu", "--port", str(port), command=COMMAND)
    try:
        *_, curl = wait_for_curl(process)
        assert ("--data-binary @" in curl) is (size > 8)
        answer = json.loads(run_program(["bash", "-c", curl]).stdout)
        outputs = {one["name"]: one for one in answer["outputs"]}
        assert np.isclose(sum(outputs["y"]["data"]), outputs["total"]["data"][0], rtol=1e-4)
        base = f"http://localhost:{port}"
        execution = Execution.model_validate_json(read(f"{base}/v2/models/model/execution"))
        assert execution.provider == "CPUExecutionProvider"
        verdict = Verdict.model_validate_json(read(f"http://localhost:{port + 1}/verdict"))
        assert verdict.ready
        assert b"enginewright_" in read(f"{base}/metrics")
        assert b"enginewright_" in read(f"http://localhost:{port + 1}/metrics")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, "ended; temporary files are removed" in errors) == (0, True)
        assert "Traceback" not in errors
        assert "level=info" not in errors
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("model", "arguments", "code", "wording"),
    [
        (broken.relu(), ("--target", "sm89"), 64, "serve with cpu, openvino or cuda"),
        (broken.relu(), ("--target", "nosuch"), 64, "is not a target"),
        (broken.one_node("NoSuchOperator"), (), 1, "stage validate"),
        (None, (), 64, "no such file"),
    ],
)
def test_what_cannot_be_served_says_why(
    desk: Desk, model: onnx.ModelProto | None, arguments: tuple[str, ...], code: int, wording: str
) -> None:
    path: Any = desk.save(model) if model else desk.root / "missing.onnx"
    done = desk.run("serve", path, *arguments, command=COMMAND)
    assert (done.returncode, wording in done.stderr) == (code, True), done.stderr


def test_a_port_that_is_taken_is_named(desk: Desk) -> None:
    port = free_port()
    with socket.create_server(("", port)):
        path = desk.save(linear_model())
        done = desk.run("serve", path, "--target", "cpu", "--port", str(port), command=COMMAND)
    assert done.returncode == 2
    assert f"port {port}" in done.stderr
