"""Tests above their CPU time fail, and so does a run whose layer is above its own; waiting costs nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CONFTEST = """\
from tests.support import budgets

budgets.LIMITS = {"unit": budgets.Limits(60, 0.5, LAYER)}

def pytest_configure(config):
    config.pluginmanager.register(budgets.Budgets())
"""
TESTS = """\
import subprocess, sys, time
import pytest

BURN = "import time\\nwhile time.process_time() < 1.1: pass"

@pytest.fixture(scope="module")
def shared():
    exec(BURN)

@pytest.mark.thorough
def test_left_out(): exec(BURN)

def test_cheap(shared): pass
def test_waits(): time.sleep(0.6)
def test_of_a_child(): subprocess.run([sys.executable, "-c", BURN], check=True)

def test_of_a_child_that_runs_on():
    child = subprocess.Popen([sys.executable, "-c", BURN + "\\nprint(flush=True)\\ntime.sleep(60)"], stdout=subprocess.PIPE)
    assert child.stdout.readline()
    globals()["kept"] = child

def test_end():
    kept.kill()
    kept.wait()
"""


def run(folder: Path, layer: float, *options: str) -> "subprocess.CompletedProcess[str]":
    tests = folder / "tests/unit"
    tests.mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST.replace("LAYER", str(layer)))
    (tests / "test_some.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "THOROUGH"}
    return subprocess.run(
        [*command, *options, "tests"],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("processes", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_test_above_its_limit_fails(tmp_path: Path, processes: tuple[str, ...]) -> None:
    ended = run(tmp_path, 60, *processes)
    failed = {
        line.partition(" - ")[0] for line in ended.stdout.splitlines() if "FAILED tests" in line
    }
    expected = {"test_of_a_child", "test_of_a_child_that_runs_on"}
    assert {item.rpartition("::")[2] for item in failed} == expected, ended.stdout
    assert "a test of its layer may take 0.5" in ended.stdout
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED


def test_a_run_above_the_limit_of_a_layer_fails(tmp_path: Path) -> None:
    ended = run(tmp_path, 0.1, "-k", "cheap")
    assert "1 passed" in ended.stdout
    assert "ABOVE ITS LIMIT" in ended.stdout
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
