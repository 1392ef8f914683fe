"""Many models in one run: order, worst exit code, bounds of CPUs and memory, one that goes wrong."""

import errno
import json
import os
import signal

from enginewright_cli.preflight import many
from enginewright_cli.preflight.outputs import Outputs
from enginewright_cli.preflight.progress import show_progress
from enginewright_cli.preflight.stages import JOB_SECONDS, Stages
from enginewright_cli.preflight.stopping import Stop
from rich.console import Console
from typing_extensions import override

from tests.support import broken_models as broken
from tests.support.preflight_runs import HELD, Desk, drop_progress, make_request
from tests.support.waiting import until

CPU = ("--target", "cpu", "--backend", "cpu")


def test_results_in_the_order_asked_and_the_worst_exit_code(desk: Desk) -> None:
    good = desk.save(broken.relu(), "z-good.onnx")
    bad = desk.save(broken.one_node("Frobnicate", "com.example"), "a-bad.onnx")
    done = desk.run(good, bad, good, *CPU, "--json", "--jobs", "2")
    reported = json.loads(done.stdout)
    assert done.returncode == 1
    assert list(reported) == ["schema", "verdict", "models"]
    assert [item["source"] for item in reported["models"]] == [str(good), str(bad)]
    assert [item["verdict"] for item in reported["models"]] == ["pass", "fail"]
    lines = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert [line.split("] ")[0] for line in lines] == ["[1/2", "[2/2"]
    assert {line.split("] ")[1].split(" (")[0] for line in lines} == {f"pass {good}", f"fail {bad}"}

    table = desk.run(good, bad, *CPU, "--html", "page.html", "--junit", "junit.xml")
    assert "2 models: 1 pass, 1 fail" in table.stdout
    assert "(cached)" in table.stdout
    for name in ("page.html", "junit.xml"):
        assert good.name in (desk.root / name).read_text()
        assert bad.name in (desk.root / name).read_text()


def test_a_model_that_cannot_be_looked_at_stops_no_other(desk: Desk) -> None:
    first = desk.save(broken.endless(), "first.onnx")
    good = desk.save(broken.relu(), "good.onnx")
    process = desk.start(first, good, *CPU, "--json", "--jobs", "1")
    until(lambda: list(desk.scratch.glob("*/*/work/converted.json")), "stage golden", 100)
    (stage,) = desk.find_named("enginewright_ru")
    os.kill(stage, signal.SIGKILL)
    out, _ = process.communicate(timeout=100)
    reported = json.loads(out)
    assert (process.returncode, reported["verdict"]) == (2, "unknown")
    assert [item["verdict"] for item in reported["models"]] == ["unknown", "pass"]
    assert reported["models"][0]["targets"]["cpu"]["reason"] == "InternalError"
    assert "was killed by SIGKILL" in reported["models"][0]["targets"]["cpu"]["message"]
    desk.check_clean()


def test_one_model_of_several_that_is_not_there_is_refused_before_any_begins(desk: Desk) -> None:
    good = desk.save(broken.relu())
    done = desk.run(good, "gone.onnx", *CPU)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.endswith("enginewright preflight: gone.onnx: no such file\n")


def test_an_option_that_one_model_cannot_have_names_the_model(desk: Desk) -> None:
    desk.save(broken.relu(), "a.onnx")
    desk.save(broken.relu(), "b.onnx")
    (desk.root / "enginewright.toml").write_text(
        '[defaults]\ntargets = ["cpu"]\n[[models]]\npath = "*.onnx"\n'
        '[[models]]\npath = "b.onnx"\nruntime_version = "9.9"\n'
    )
    done = desk.run()
    assert (done.returncode, done.stdout) == (64, "")
    said = drop_progress(done.stderr)
    assert said.startswith("enginewright preflight: b.onnx: --runtime-version '9.9'")


class NoProcesses(Stages):
    """Stages on a machine that cannot start any more processes."""

    @override
    def start(self) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_stages_that_cannot_begin_are_the_result_of_that_model(desk: Desk) -> None:
    settings = many.RunSettings(HELD, "", None, Outputs(), 2, NoProcesses(), Stop(), JOB_SECONDS)
    requests = [
        make_request(desk.save(broken.relu(), name), "cpu") for name in ("a.onnx", "b.onnx")
    ]
    with show_progress(Console(quiet=True), 2) as watcher:
        results, _ = many.check_all(requests, settings, watcher)
    assert [result.targets["cpu"].reason for result in results] == ["InternalError"] * 2
    assert results[0].targets["cpu"].message == "Resource temporarily unavailable"
