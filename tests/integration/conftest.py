"""What the tests of the runtime share: real models, and the other ONNX Runtime distributions."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginewright_runtime.remote import retry

from tests.support.preflight_runs import Desk
from tests.support.preparing import Workplace
from tests.support.process_state import process_state  # noqa: F401 - a fixture
from tests.support.programs import run_program
from tests.support.source_servers import GoServers, SourceServers, go_servers, source_servers
from tests.support.store_places import AgingPlace, no_waiting, of_gateway
from tests.support.web import WebServer

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def models() -> Path:
    """Return the folder with the real models, downloaded once."""
    shown = run_program([str(REPOSITORY / "hack/models")], timeout=240)
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
    folder = tmp_path / "gateway"
    folder.mkdir()
    with go_servers(folder) as running:
        (folder / "s3/store").mkdir()
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """Return the folders of a pod whose stages run in this process."""
    return Workplace(tmp_path, in_process=True)


@pytest.fixture
def strict_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workplace]:
    """Return a place whose outcomes tell of leftovers in temporary folders; no traceback may come of it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield Workplace(tmp_path, in_process=True)
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return folders that the command runs in."""
    return Desk(tmp_path)


@pytest.fixture
def web() -> Iterator[WebServer]:
    """Run a web server whose answers the test decides."""
    with WebServer() as server:
        yield server


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait between tries."""
    monkeypatch.setattr(retry, "_FIRST_PAUSE", 0.001)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no metadata service of the machine, and do not wait between tries."""
    no_waiting(monkeypatch)


@pytest.fixture
def aging(gateway: GoServers) -> AgingPlace:
    """Return a store in the gateway."""
    return of_gateway(gateway, gateway.addresses["s3"])


def _python(variant: str) -> Path:
    environment = REPOSITORY / f".venv-{variant}"
    subprocess.run(
        [str(REPOSITORY / "hack/venv"), str(environment), f"runtime-{variant}"],
        capture_output=True,
        check=True,
        timeout=280,
    )
    return environment / "bin/python"
