"""Many models in one run: order, worst exit code, bounds of CPUs and memory, one that goes wrong."""

import json
import os
import signal
from pathlib import Path

import pytest
from enginewright.cli.preflight import many, options, targets
from enginewright.cli.preflight.request import Request
from enginewright.contract.images import ImageFacts

from tests.support import broken_models as broken
from tests.support.preflight_runs import Desk, until

pytestmark = pytest.mark.unit

CPU = ("--target", "cpu")
GIB = 1 << 30
HELD = ImageFacts(
    variant="cpu",
    ort_distribution="onnxruntime",
    ort_version="1.31.1",
    max_opset=26,
    max_ir_version=13,
    providers=("CPUExecutionProvider",),
    backends={"cpu": "1.31.1"},
    onnx_version="1.23.2",
    runtime_version="0.1.0",
)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_results_in_the_order_asked_and_the_worst_exit_code(desk: Desk) -> None:
    good = desk.save(broken.relu(), "z-good.onnx")
    bad = desk.save(broken.one_node("Frobnicate", "com.example"), "a-bad.onnx")
    done = desk.run(good, bad, good, *CPU, "--json", "--jobs", "2")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert list(told) == ["schema", "verdict", "models"]
    assert [each["source"] for each in told["models"]] == [str(good), str(bad)]
    assert [each["verdict"] for each in told["models"]] == ["pass", "fail"]
    lines = done.stderr.splitlines()
    assert [line.split("] ")[0] for line in lines] == ["[1/2", "[2/2"]
    assert {line.split("] ")[1].split(" (")[0] for line in lines} == {f"pass {good}", f"fail {bad}"}

    table = desk.run(good, bad, *CPU, "--html", "page.html", "--junit", "junit.xml")
    assert "2 models: 1 pass, 1 fail" in table.stdout
    assert "an earlier run" in table.stdout
    for name in ("page.html", "junit.xml"):
        assert good.name in (desk.root / name).read_text()
        assert bad.name in (desk.root / name).read_text()


def test_a_model_that_cannot_be_looked_at_stops_no_other(desk: Desk) -> None:
    first = desk.save(broken.endless(), "first.onnx")
    good = desk.save(broken.relu(), "good.onnx")
    process = desk.start(first, good, *CPU, "--json", "--jobs", "1")
    until(lambda: list(desk.scratch.glob("*/*/work/converted.json")), "stage golden", 100)
    (stage,) = desk.named("enginewright_ru")
    os.kill(stage, signal.SIGKILL)
    out, _ = process.communicate(timeout=100)
    told = json.loads(out)
    assert process.returncode == 2
    assert [each["verdict"] for each in told["models"]] == ["fail", "pass"]
    assert told["models"][0]["targets"]["cpu"]["reason"] == "InternalError"
    assert "was killed by SIGKILL" in told["models"][0]["targets"]["cpu"]["message"]
    desk.check_clean()


def test_one_model_of_several_that_is_not_there_is_refused_before_any_begins(desk: Desk) -> None:
    good = desk.save(broken.relu())
    done = desk.run(good, "gone.onnx", *CPU)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "enginewright preflight: gone.onnx: there is no such file\n"


def test_an_option_that_one_model_cannot_have_names_the_model(desk: Desk) -> None:
    desk.save(broken.relu(), "a.onnx")
    desk.save(broken.relu(), "b.onnx")
    (desk.root / "enginewright.toml").write_text(
        '[defaults]\ntargets = ["cpu"]\n[[models]]\npath = "*.onnx"\n'
        '[[models]]\npath = "b.onnx"\nruntime_version = "9.9"\n'
    )
    done = desk.run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("enginewright preflight: b.onnx: --runtime-version '9.9'")


def asked(source: Path, *names: str) -> Request:
    return Request(
        source=str(source),
        targets=tuple(map(targets.parse, names)),
        recipe=options.recipe(HELD),
        promise=options.promise(None),
    )


def test_memory_bounds_how_many_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = tmp_path / "small.onnx", tmp_path / "large.onnx"
    small.write_bytes(b"1")
    with large.open("wb") as file:
        file.truncate(GIB // 4)
    monkeypatch.setattr(many, "_free_memory", lambda: 3 * GIB)
    memory = many._Memory()
    assert memory.take(0, asked(large, "cpu"), 1)
    assert not memory.take(1, asked(large, "cpu"), 1)
    assert memory.take(2, asked(small, "cpu"), 1)
    memory.give_back(0)
    assert memory.take(1, asked(large, "cpu"), 1)


def test_memory_bounds_how_many_jobs_of_one_model_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"1")
    need = many._need(asked(path, "cpu", "sm89"))
    for free, jobs in ((2 * need, 2), (need, 1), (need // 2, 1)):
        monkeypatch.setattr(many, "_free_memory", lambda free=free: free / many._USABLE + 1)
        assert many._Memory().take(0, asked(path, "cpu", "sm89"), 2) == jobs
    # beside another model there may be room for one Job, or none
    monkeypatch.setattr(many, "_free_memory", lambda: 2 * need / many._USABLE + 1)
    memory = many._Memory()
    assert [memory.take(number, asked(path, "cpu", "sm89"), 1) for number in range(3)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("source", "names", "jobs"),
    [
        ("model.onnx", ("cpu",), 1),
        ("model.onnx", ("cpu", "sm89"), 2),
        ("model.onnx", ("cpu", "cpu:avx2"), 1),  # one prepared model
        ("model.onnx", ("sm86", "sm89", "sm120"), 3),
        ("https://models.example/model.onnx", ("cpu", "sm89"), 1),
    ],
)
def test_jobs_that_may_run_at_once(source: str, names: tuple[str, ...], jobs: int) -> None:
    request = Request(
        source=source,
        targets=tuple(map(targets.parse, names)),
        recipe=options.recipe(HELD),
        promise=options.promise(None),
    )
    assert many._apart(request) == jobs


def test_a_model_that_is_too_large_for_all_memory_is_looked_at_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = tmp_path / "huge.onnx"
    with huge.open("wb") as file:
        file.truncate(64 * GIB)
    monkeypatch.setattr(many, "_free_memory", lambda: GIB)
    memory = many._Memory()
    assert memory.take(0, asked(huge, "cpu", "sm89"), 2) == 1
    assert not memory.take(1, asked(huge, "cpu"), 1)


def test_external_data_and_engines_count(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"1")
    alone = many._need(asked(path, "cpu"))
    (tmp_path / "model.onnx.data").write_bytes(bytes(1000))
    assert many._need(asked(path, "cpu")) == alone + 5000
    assert many._need(asked(path, "sm89")) > many._need(asked(path, "cpu"))
    assert many._free_memory() > 0
