"""The commands of docs/preflight.md about many models, and of docs/plan.md, are run as they stand there.

Those of its first sections are run where their outputs are looked at (`examples` in conftest.py).
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support import broken_models as broken
from tests.support.preflight_runs import Desk

REPOSITORY = Path(__file__).parents[2]
PREFLIGHT = (REPOSITORY / "docs/preflight.md").read_text()
PLAN = (REPOSITORY / "docs/plan.md").read_text()


def section(name: str) -> str:
    (body,) = re.findall(
        rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", PREFLIGHT, re.MULTILINE | re.DOTALL
    )
    return str(body)


def blocks(text: str, language: str) -> list[str]:
    contents = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [str(content) for content in contents]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a repository as the examples speak of it."""
    desk = Desk(tmp_path)
    desk.save(broken.open_dimensions("batch", "width"), "models/detect.onnx")
    desk.save(broken.relu(), "models/embed.onnx")
    (toml,) = blocks(section("enginewright.toml"), "toml")
    (desk.root / "enginewright.toml").write_text(toml)
    return desk


def bash(desk: Desk, script: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = desk.run("-euo", "pipefail", "-c", script, command=("bash",), environment={"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_many_models(desk: Desk) -> None:
    (script,) = blocks(section("Many models"), "sh")
    assert "2 models: 2 warn" in bash(desk, script)


def test_the_configuration(desk: Desk) -> None:
    (script,) = blocks(section("enginewright.toml"), "sh")
    whole, one = script.strip().splitlines()
    reported = json.loads(bash(desk, f"{whole} --json"))
    assert [list(item["targets"]) for item in reported["models"]] == [["sm89", "cpu"], ["cpu"]]
    assert bash(desk, one).startswith("WARN  models/embed.onnx")


def test_plan(desk: Desk) -> None:
    (manifest,) = blocks(PLAN, "yaml")
    (desk.root / "manifest.yaml").write_text(manifest)
    (script,) = blocks(PLAN, "sh")
    first, second = script.strip().splitlines()
    assert bash(desk, first).startswith("CHANGES  InferenceModel default/resnet50 (new)")
    reported = json.loads(bash(desk, second))
    assert reported["models"][0]["steps"][1]["key"]
    assert "no cluster" in reported["assumed"][0]
