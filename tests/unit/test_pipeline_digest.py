"""The digest of what makes artefacts changes with the code of stages, and not with what only serves."""

import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from enginewright_runtime.core import pipeline
from enginewright_runtime.core.pipeline import pipeline_digest


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Return what takes the digest of code in a folder."""
    for name in ("contract/task.py", "runtime/prepare/publish.py", "runtime/serve/sidecar/main.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("pass\n")
    monkeypatch.setattr(pipeline, "_CONTRACT", tmp_path / "contract")
    monkeypatch.setattr(pipeline, "_RUNTIME", tmp_path / "runtime")
    return lambda: pipeline_digest({})


@pytest.mark.parametrize(
    "changed", ["contract/task.py", "runtime/prepare/publish.py", "runtime/prepare/new.py"]
)
def test_what_stages_import_changes_it(
    digest: Callable[[], str], tmp_path: Path, changed: str
) -> None:
    before = digest()
    (tmp_path / changed).write_text("1\n")
    assert digest() != before


def test_what_only_serves_does_not(digest: Callable[[], str], tmp_path: Path) -> None:
    before = digest()
    (tmp_path / "runtime/serve/sidecar/main.py").write_text("1\n")
    (tmp_path / "runtime/serve/README").write_text("1\n")
    assert digest() == before


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> str:
    found = [SimpleNamespace(name=name, version=version) for name, version in versions.items()]
    monkeypatch.setattr(metadata, "distributions", lambda: iter(found))
    return pipeline_digest({})


def test_packages_change_it_and_our_own_version_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that changes only what serves prepares no model again."""
    before = installed(monkeypatch, enginewright="0.1.0", onnx="1.22.0")
    assert installed(monkeypatch, onnx="1.22.0", enginewright="0.2.0") == before
    assert installed(monkeypatch, enginewright="0.1.0", onnx="1.22.1") != before


def test_an_image_for_other_machines_makes_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = pipeline_digest({})
    monkeypatch.setattr(platform, "machine", lambda: "another")
    assert pipeline_digest({}) != before


def test_libraries_from_elsewhere_than_packages_change_it() -> None:
    assert pipeline_digest({"cuda_major": "12"}) != pipeline_digest({"cuda_major": "13"})
    assert pipeline_digest({}) == pipeline_digest({})
