"""What the tests of the runtime share: real models, and the second ONNX Runtime distribution."""

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def models() -> Path:
    """Return the folder with the real models, downloaded once."""
    shown = subprocess.run(
        [str(REPOSITORY / "hack/models")], capture_output=True, text=True, check=True, timeout=240
    )
    return Path(shown.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def openvino_python() -> Path:
    """Return the interpreter of the environment with onnxruntime-openvino, made once."""
    environment = REPOSITORY / ".venv-openvino"
    subprocess.run(
        [str(REPOSITORY / "hack/venv"), str(environment), "runtime-openvino"],
        capture_output=True,
        check=True,
        timeout=280,
    )
    return environment / "bin/python"
