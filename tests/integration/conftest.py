"""What the tests of the runtime share: real models, and the other ONNX Runtime distributions."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process_state import process_state  # noqa: F401 - a fixture
from tests.support.source_servers import GoServers, SourceServers, go_servers, source_servers

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
    return _python("openvino")


@pytest.fixture(scope="session")
def gpu_python() -> Path:
    """Return the interpreter of the environment with onnxruntime-gpu and no CUDA, made once."""
    return _python("gpu")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SourceServers]:
    """Run the servers that sources read from."""
    with source_servers(tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GoServers]:
    """Run a gateway of this test's own."""
    folder = tmp_path / "gateway"
    folder.mkdir()
    with go_servers(folder) as running:
        (folder / "s3/store").mkdir()
        yield running


def _python(variant: str) -> Path:
    environment = REPOSITORY / f".venv-{variant}"
    subprocess.run(
        [str(REPOSITORY / "hack/venv"), str(environment), f"runtime-{variant}"],
        capture_output=True,
        check=True,
        timeout=280,
    )
    return environment / "bin/python"
