"""What continuous integration takes from us: a hook, an action, a snippet, and the extras they name.

Their files are read as those services read them, and the commands in them are run on models.
"""

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from enginewright_cli.preflight import targets

from tests.support import broken_models as broken
from tests.support.preflight_runs import Desk
from tests.support.programs import run_program

if TYPE_CHECKING:
    from subprocess import CompletedProcess

REPOSITORY = Path(__file__).parents[2]
ACTION = REPOSITORY / ".github/actions/preflight"
RUNTIMES = {"onnxruntime", "onnxruntime-openvino", "onnxruntime-gpu"}
BIN = str(Path(sys.executable).parent)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a repository with two models and a configuration."""
    desk = Desk(tmp_path)
    desk.save(broken.relu(), "models/good.onnx")
    desk.save(broken.one_node("Frobnicate", "com.example"), "models/not good.onnx")
    (desk.root / "enginewright.toml").write_text(
        '[defaults]\ntargets = ["cpu"]\nbackend = "cpu"\n[[models]]\npath = "models/*.onnx"\n'
    )
    return desk


def bash(desk: Desk, script: str, **environment: str) -> "CompletedProcess[str]":
    """Run a script as the services do: it ends at the first failure."""
    path = f"{BIN}:{os.environ['PATH']}"
    return desk.run(
        "-eo",
        "pipefail",
        "-c",
        script,
        command=("bash", "--noprofile", "--norc"),
        environment={"PATH": path, **environment},
    )


def hook() -> dict[str, Any]:
    (entry,) = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())
    return dict(entry)


def action() -> dict[str, Any]:
    return dict(yaml.safe_load((ACTION / "action.yml").read_text()))


def step(name: str) -> dict[str, Any]:
    return dict(next(one for one in action()["runs"]["steps"] if one.get("name") == name))


def gitlab() -> dict[str, Any]:
    text = (REPOSITORY / "docs/preflight.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    jobs = [yaml.safe_load(block) for block in blocks]
    return dict(next(job["preflight"] for job in jobs if "preflight" in job))


def test_the_hook_is_one_that_pre_commit_takes() -> None:
    entry = hook()
    assert {"id", "name", "entry", "language"} <= entry.keys()
    assert entry["language"] == "python"
    assert re.search(entry["files"], "models/a.onnx")
    assert not re.search(entry["files"], "models/a.onnx.data")
    assert entry["require_serial"] is True


def test_the_hook_runs_on_files(desk: Desk) -> None:
    entry = shlex.split(hook()["entry"])
    desk_path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    good = desk.run("models/good.onnx", command=tuple(entry), environment=desk_path)
    assert good.returncode == 0
    assert good.stdout.startswith("PASS  models/good.onnx")
    both = desk.run(
        "models/good.onnx", "models/not good.onnx", command=tuple(entry), environment=desk_path
    )
    assert both.returncode == 1
    assert "2 models: 1 pass, 1 fail" in both.stdout


def test_the_action_is_well_formed() -> None:
    definition = action()
    assert definition["runs"]["using"] == "composite"
    for item in definition["runs"]["steps"]:
        assert ("run" in item) != ("uses" in item)
        assert "run" not in item or item["shell"] == "bash"
        assert "uses" not in item or re.fullmatch(r"actions/[\w-]+@v\d+", item["uses"])
    text = (ACTION / "action.yml").read_text()
    named = set(re.findall(r"inputs\.([\w-]+)", text))
    assert named == definition["inputs"].keys()
    assert all(item["description"] and "default" in item for item in definition["inputs"].values())
    for item in definition["runs"]["steps"]:
        # an expression inside a script would be pasted into it, with any shell code in its value
        assert "${{" not in item.get("run", "")


@pytest.mark.parametrize("name", ["Install", "Preflight"])
def test_the_scripts_of_the_action_pass_shellcheck(name: str) -> None:
    script = "#!/bin/bash\nexport GITHUB_OUTPUT EXTRAS REPOSITORY MODELS TARGET CONFIG\n"
    script += "export ARGUMENTS REPORTS\n" + step(name)["run"]
    run_program([f"{BIN}/shellcheck", "-"], input=script)


def expressions(env: dict[str, str], **values: str) -> dict[str, str]:
    """Fill in `${{ ... }}` as GitHub does."""
    return {
        name: re.sub(r"\$\{\{ (.*?) \}\}", lambda match: values[match[1]], text)
        for name, text in env.items()
    }


def test_the_action_installs_the_extras_of_its_own_repository(desk: Desk) -> None:
    install = step("Install")
    env = expressions(
        install["env"], **{"inputs.extras": "preflight,rtx", "github.action_path": str(ACTION)}
    )
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # 0: none
    done = bash(desk, install["run"], **env, **offline, PIP_DRY_RUN="1", PIP_FORCE_REINSTALL="1")
    assert done.returncode == 0, done.stderr
    assert "Would install enginewright-" in done.stdout
    assert "does not provide the extra" not in done.stderr


@pytest.mark.parametrize(
    ("models", "arguments", "code", "verdict", "reported"),
    [
        ("", "", 1, "fail", "2 models: 1 pass, 1 fail"),
        ("models/good.onnx\n", "--budget\nallow", 0, "pass", "PASS  models/good.onnx"),
        ("models/not good.onnx", "--quiet", 1, "fail", ""),
        ("models/gone.onnx", "", 64, "unknown", ""),
    ],
)
def test_the_action_runs(
    desk: Desk, models: str, arguments: str, code: int, verdict: str, reported: str
) -> None:
    run = step("Preflight")
    inputs = {"models": models, "target": "cpu", "config": "", "arguments": arguments}
    env = expressions(
        run["env"],
        **{f"inputs.{name}": value for name, value in inputs.items()},
        **{"runner.temp": str(desk.root)},
    )
    output = desk.root / "output"
    done = bash(desk, run["run"], **env, GITHUB_OUTPUT=str(output))
    assert done.returncode == code, done.stderr
    assert reported in done.stdout
    assert output.read_text() == f"verdict={verdict}\n"
    kept = sorted(path.name for path in (desk.root / "enginewright-preflight").iterdir())
    assert kept == ([] if code == 64 else ["junit.xml", "report.html"])


def test_the_snippet_for_gitlab_runs(desk: Desk) -> None:
    job = gitlab()
    done = bash(desk, "\n".join(job["script"]))
    assert done.returncode == 1
    assert "2 models: 1 pass, 1 fail" in done.stdout
    kept = [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]
    assert all((desk.root / item).is_file() for item in kept)
    assert job["artifacts"]["when"] == "always"
    (installs,) = job["before_script"]
    assert shlex.split(installs)[:2] == ["pip", "install"]


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return dict(project["optional-dependencies"])


def packages(combination: str) -> set[str]:
    """Return the names of the packages of extras, those of other extras among them."""
    names: set[str] = set()
    for extra in combination.split(","):
        for requirement in extras()[extra]:
            if own := re.fullmatch(r"enginewright\[(.*)\]", requirement):
                names |= packages(own[1])
            else:
                names |= set(re.findall(r"^[\w.-]+", requirement))
    return names


def find_extras() -> set[str]:
    """Return every combination of extras that our words and files tell people to install."""
    texts = [
        (REPOSITORY / ".pre-commit-hooks.yaml").read_text(),
        (REPOSITORY / "docs/preflight.md").read_text(),
    ]
    named = set(targets._EXTRAS.values())
    named |= {item for text in texts for item in re.findall(r"enginewright\[([\w,-]+)\]", text)}
    named |= set(re.findall(r'"(preflight[\w,-]*)"', action()["inputs"]["extras"]["description"]))
    return named


def test_every_extra_that_is_named_is_there_and_brings_one_onnx_runtime() -> None:
    named = find_extras()
    assert {"preflight", "preflight,rtx", "preflight-openvino", "preflight-gpu"} <= named
    for item in named:
        names = packages(item)
        assert {"typer", "rich", "onnx", "jinja2"} <= names, item
        assert len(names & RUNTIMES) == 1, item
    assert "tensorrt-rtx-cu13-libs" in packages(targets._EXTRAS["tensorrt-rtx"])
    assert "onnxruntime-openvino" in packages(targets._EXTRAS["openvino"])
    assert "onnxruntime-gpu" in packages(targets._EXTRAS["cuda"])
