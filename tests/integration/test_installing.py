"""`pip install 'enginewright[preflight]'` in a fresh environment, as users do it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.support import broken_models as broken
from tests.support.programs import run_program

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS = 240
VERSION = re.search(
    r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, timeout=SECONDS)
    return next(folder.glob("*.whl"))


@pytest.mark.timeout(600)
def test_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=SECONDS)
    onnx.save(broken.relu(), tmp_path / "model.onnx")

    def install(extras: str) -> None:
        pip = [str(environment / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{wheel}[{extras}]"], check=True, timeout=SECONDS)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_program(
            [str(environment / "bin/enginewright"), *arguments],
            cwd=tmp_path,
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
            timeout=SECONDS,
            code=None,
        )

    install("preflight")
    assert VERSION is not None
    assert run("--version").stdout == f"enginewright {VERSION[1]}\n"
    done = run("preflight", "model.onnx", "--target", "cpu", "--html", "report.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("WARN  model.onnx"), "openvino is not installed"
    files = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    assert sum(path.stat().st_size for path in files) < 400_000_000
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    missing = run("preflight", "model.onnx", "--target", "sm89")
    assert missing.returncode == 2
    assert "pip install '.[preflight,rtx]'" in missing.stderr
    install("preflight,rtx")
    done = run("preflight", "model.onnx", "--target", "sm89")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tensorrt-rtx" in done.stdout
