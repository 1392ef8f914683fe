"""What the tests of the runtime share: real models, and the other ONNX Runtime distributions."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import broken_models as broken
from tests.support.preflighting import Preflighted, preflight, shell
from tests.support.process_state import process_state  # noqa: F401
from tests.support.source_servers import SourceServers, source_servers

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


@pytest.fixture(scope="session")
def rendered(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Preflighted:
    """Return a real model's preflight, which changes it, with every file that can be asked for."""
    model = next(models.rglob("ch_ppocr_mobile_v2.0_cls_infer.onnx"))
    options = "--json --target cpu --target-opset 17 --shapes x=1x3x48x192"
    files = "--html page.html --junit junit.xml --fix fixed.onnx"
    folder = tmp_path_factory.mktemp("rendered")
    return preflight(model, *options.split(), *files.split(), folder=folder)


@pytest.fixture(scope="session")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Preflighted:
    """Return the same of a model that nothing serves, with a name that would be markup."""
    folder = tmp_path_factory.mktemp("refused")
    model = broken.one_node("Frobnicate", "com.example")
    model.graph.node[0].name = "<script>\x1b[31m\u202e"
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    options = "--json --target cpu --html page.html --junit junit.xml --fix fixed.onnx"
    return preflight("model.onnx", *options.split(), folder=folder)


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Preflighted:
    """Run the commands of docs/preflight.md on a model whose data lies where ours might go."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "fixed.bin").write_bytes(broken.weights())
    (folder / "model.onnx").write_bytes(broken.external("fixed.bin").SerializeToString())
    text = (REPOSITORY / "docs/preflight.md").read_text()
    ours = text.partition("## JSON")[2].partition("## Missing shapes")[0]
    commands = re.findall(r"^```sh\n(.*?)^```", ours, re.MULTILINE | re.DOTALL)
    assert len(commands) == 3
    return shell("".join(commands), folder=folder)


def _python(variant: str) -> Path:
    environment = REPOSITORY / f".venv-{variant}"
    subprocess.run(
        [str(REPOSITORY / "hack/venv"), str(environment), f"runtime-{variant}"],
        capture_output=True,
        check=True,
        timeout=280,
    )
    return environment / "bin/python"
