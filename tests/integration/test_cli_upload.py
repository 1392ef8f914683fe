"""`enginewright upload` to real servers: what it writes is what stage `fetch` reads. Claims: tests/apiserver/test_cli_diagnose.py."""

from pathlib import Path

import pytest
from enginewright_cli.app import app
from typer.testing import CliRunner

from tests.support import broken_models as broken
from tests.support.preparing import Workplace
from tests.support.source_servers import SourceServers
from tests.support.store_places import no_waiting

pytestmark = [
    pytest.mark.timeout(900),  # the servers may have to be built first
    pytest.mark.usefixtures("hasty"),
]
MODEL = broken.external("weights/w 1.bin").SerializeToString()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model with external data."""
    folder = tmp_path / "mine"
    (folder / "weights").mkdir(parents=True)
    (folder / "net.onnx").write_bytes(MODEL)
    (folder / "weights/w 1.bin").write_bytes(broken.weights())
    return folder / "net.onnx"


def upload(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["upload", *map(str, arguments)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def check_fetch(place: Workplace, uri: str, **secret: str) -> None:
    outcome = place.fetch(uri, secret or None)
    assert "and 1 external data file," in outcome.message
    assert (place.root / "work/model/weights/w 1.bin").read_bytes() == broken.weights()


def test_to_a_registry(servers: SourceServers, place: Workplace, model: Path) -> None:
    address = f"oci://{servers.host('registry')}/team/mine:v1"
    shown = upload(model, address)
    check_fetch(place, address)
    assert f"uri: {address.rpartition(':')[0]}@sha256:" in shown


def test_to_a_bucket_and_not_over_other_content(
    servers: SourceServers, place: Workplace, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_waiting(monkeypatch)
    servers.put_s3("models", {})
    for name, value in servers.s3().items():
        monkeypatch.setenv(name, value)
    address = "s3://models/mine/v1/net.onnx"
    shown = upload(model, address)
    assert f"uri: {address}" in shown
    check_fetch(place, address, **servers.s3())
    assert "is there already" in upload(model, address)
    model.write_bytes(broken.external("weights/w 1.bin", offset=8).SerializeToString())
    assert "exists with other content" in upload(model, address, code=2)
    upload(model, address, "--overwrite")


@pytest.mark.parametrize(
    ("address", "wording"),
    [
        ("https://example.com/m.onnx", "models are uploaded to pvc://"),
        ("pvc://models/../m.onnx", "write pvc://CLAIM/PATH"),
        ("oci://registry/repository", "write oci://REGISTRY/REPOSITORY:TAG"),
    ],
)
def test_addresses_that_are_none(model: Path, address: str, wording: str) -> None:
    assert wording in " ".join(upload(model, address, code=64).split())


def test_a_model_without_its_weights_is_not_uploaded(model: Path) -> None:
    (model.parent / "weights/w 1.bin").unlink()
    assert "weights/w 1.bin is missing" in upload(model, "s3://models/m.onnx", code=1)


@pytest.mark.parametrize(
    ("address", "wording"),
    [
        ("oci://127.0.0.1:9/team/mine:v1", "`docker login`"),
        ("s3://models/net.onnx", "that this machine reaches the bucket"),
    ],
)
def test_a_remedy_is_one_of_this_machine(
    model: Path, monkeypatch: pytest.MonkeyPatch, address: str, wording: str
) -> None:
    no_waiting(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    shown = " ".join(upload(model, address, code=2).split())
    assert wording in shown
    for foreign in ("spec.source.uri", "pods", "volume"):
        assert foreign not in shown
