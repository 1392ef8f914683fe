"""Compiled kernels outlive a restart of the container, and a damaged cache does not outlive a failed start."""

import logging
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from enginewright_contract.execution import Driver
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ShapeProfile
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session import loading
from enginewright_runtime.session.base import SessionRequest
from enginewright_runtime.session.driver import Device
from enginewright_runtime.session.tensorrt_rtx import TensorRtRtxBackend
from enginewright_serving.server.startup import model_loading, runtime_cache
from enginewright_serving.server.startup.runtime_cache import RuntimeCache

from tests.support import rtx_devices
from tests.support.optional import present
from tests.support.serving import linear_model, write_artifact

DEVICE = Device(Driver(needed=True, present=True, version="13.1"), "8.9")
ENGINE, OTHER = "e" * 64, "f" * 64


def start_cache(root: Path, engine: str = ENGINE, device: Device = DEVICE) -> RuntimeCache:
    return present(RuntimeCache.open(root, engine, device))


def ready(root: Path, kernels: bytes = b"kernels") -> RuntimeCache:
    """Have a start that gets ready."""
    cache = start_cache(root)

    def run_all() -> None:
        (cache.folder / "part-0").write_bytes(kernels)

    cache.fill(run_all)
    cache.keep()
    return cache


def test_the_next_start_reuses_compiled_kernels(tmp_path: Path) -> None:
    first = ready(tmp_path / "cache")
    assert (first.reused, first.bytes) == (False, 7)
    second = start_cache(tmp_path / "cache")
    assert (second.reused, second.bytes, second.folder) == (True, 7, first.folder)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


# fault: Engines | a runtime cache of TensorRT-RTX that makes a start fail or crash | a mark that only a
#   ready start removes | the next start compiles again
def test_a_start_that_did_not_get_ready_leaves_no_cache(tmp_path: Path) -> None:
    ready(tmp_path)
    assert start_cache(tmp_path).reused
    third = start_cache(tmp_path)
    assert (third.reused, third.bytes) == (False, 0)


@pytest.mark.parametrize(
    ("engine", "device"),
    [
        (OTHER, DEVICE),
        (ENGINE, Device(DEVICE.driver, "12.0")),
        (ENGINE, Device(Driver(needed=True, present=True, version="13.2"), "8.9")),
    ],
    ids=["engine", "device", "driver"],
)
def test_it_is_of_one_engine_on_one_device(engine: str, device: Device, tmp_path: Path) -> None:
    first = ready(tmp_path)
    other = start_cache(tmp_path, engine, device)
    assert not other.reused
    assert not first.folder.exists(), "the space is the pod's"


def test_one_that_is_too_large_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready(tmp_path, b"x" * 11)
    monkeypatch.setattr(runtime_cache, "_MOST_BYTES", 10)
    assert not start_cache(tmp_path).reused


def test_files_of_others_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()
    for root in (tmp_path / "link", tmp_path / "file"):
        assert RuntimeCache.open(root, ENGINE, DEVICE) is None
    assert caplog.text.count("kernels are compiled again at every start") == 2
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_provider_that_writes_nothing_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = start_cache(tmp_path)
    cache.fill(lambda: None)
    cache.keep()
    assert "the provider wrote no runtime cache" in caplog.text
    assert not start_cache(tmp_path).reused


def test_the_session_that_compiles_ends_before_the_one_that_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A real session, which writes as it ends, as the plug-in does; every size of the profile has run."""
    caplog.set_level(logging.WARNING)
    shapes = (ShapeProfile(input="x", min=(1, 8), opt=(2, 8), max=(8, 8)),)
    task = write_artifact(
        tmp_path, linear_model(), [{"x": np.ones((1, 8), np.float32)}], shapes=shapes
    )
    artifact = tmp_path / "artifact"
    stored = Manifest.model_validate_json((artifact / "manifest.json").read_bytes())
    manifest = stored.model_copy(update={"engine": SimpleNamespace(sha256=ENGINE, profiles=())})
    steps: list[str] = []

    def load(folder: Path | None) -> loading.LoadedModel:
        assert folder is not None
        loaded = loading.create("cpu", artifact / "model.onnx", threads=1, runtime_cache=folder)
        weakref.finalize(loaded.session, (folder / "part-0").write_bytes, b"kernels")
        return loaded

    cache = present(
        model_loading.open_cache(
            tmp_path / "cache", task, artifact, manifest, load, DEVICE, steps.append
        )
    )
    assert (cache.reused, cache.bytes) == (False, 7)
    assert [step for step in steps if "rows" in step] == ["warming up 4 rows, 1 of 1"]
    assert "wrote no runtime cache" not in caplog.text


def test_damaged_golden_samples_are_refused_before_kernels_are_compiled(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, linear_model(), [{"x": np.ones((1, 8), np.float32)}])
    artifact, steps = tmp_path / "artifact", list[str]()
    (artifact / "golden/parts.npz").write_bytes(b"no archive")
    stored = Manifest.model_validate_json((artifact / "manifest.json").read_bytes())
    changes = {
        "engine": SimpleNamespace(sha256=ENGINE, profiles=()),
        "golden_parts": "golden/parts.npz",
    }
    manifest = stored.model_copy(update=changes)

    def load(folder: Path | None) -> loading.LoadedModel:
        return loading.create("cpu", artifact / "model.onnx", threads=1, runtime_cache=folder)

    cache = tmp_path / "cache"
    with pytest.raises(StageFailure, match="golden samples of the artefact are unusable") as caught:
        model_loading.open_cache(cache, task, artifact, manifest, load, DEVICE, steps.append)
    assert caught.value.reason is Reason.ARTIFACT_CORRUPT
    assert steps == ["compiling the engine's kernels"]


def test_the_shipped_plug_in_has_the_option() -> None:
    request = SessionRequest(Path("model.onnx"), 1, runtime_cache=Path("/tmp/kernels"))
    options = TensorRtRtxBackend().provider_options(request)
    assert options == {"nv_runtime_cache_path": "/tmp/kernels"}
    declared = (rtx_devices.folder() / "tensorrt_rtx_provider_options.h").read_text()
    assert all(f'"{name}"' in declared for name in options)
    assert TensorRtRtxBackend().provider_options(SessionRequest(Path("model.onnx"), 1)) == {}
