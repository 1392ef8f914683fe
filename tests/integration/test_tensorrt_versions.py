"""The real TensorRT provider and wheels of TensorRT beside it: only the major version it is linked to is used."""

from pathlib import Path

import pytest
from enginewright_contract.reasons import ExitCode, Reason

from tests.integration.test_backends_fallback import compile_libraries, load
from tests.support.engines import EnginePlace, recipe
from tests.support.serving import run_json

_PROBE = "from enginewright_runtime.probe import probe; print(probe().to_json())"
_WHEELS = {
    "tensorrt_cu13_bindings": "tensorrt_bindings",
    "tensorrt_cu13_libs": "tensorrt_libs",
}
WHY = (
    "but the TensorRT provider of ONNX Runtime 1.31.1 is linked to TensorRT 10 (libnvinfer.so.10)"
    " and loads no engine of another major version"
)


def wheels(folder: Path, **versions: str) -> str:
    """Install what pip leaves of NVIDIA's wheels, without their modules; return the folder."""
    for name, version in versions.items():
        about = folder / f"{name}-{version}.dist-info"
        about.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
        (about / "METADATA").write_text(metadata)
        (about / "top_level.txt").write_text(f"{_WHEELS[name]}\n")
    return str(folder)


# fault: Engines | TensorRT 11 in a gpu image whose ONNX Runtime is linked to TensorRT 10 | the probe
#   of the image, else the start of the build | before the build; `cuda` is served
@pytest.mark.parametrize("has_old_library", [False, True])
def test_an_image_with_tensorrt_11_serves_cuda_and_says_why_not_tensorrt(
    has_old_library: bool, gpu_python: Path, tmp_path: Path
) -> None:
    path = wheels(tmp_path / "site", tensorrt_cu13_bindings="11.4.0.106")
    libraries = tmp_path / "nvidia"
    compile_libraries(libraries, {"libnvinfer.so.10": ""} if has_old_library else {})
    reported = run_json(gpu_python, _PROBE, PYTHONPATH=path, LD_LIBRARY_PATH=str(libraries))
    assert set(reported["backends"]) == {"cuda", "cpu"}
    assert reported["unusable"] == {
        "tensorrt": f"this image has tensorrt_cu13_bindings 11.4.0.106, {WHY}"
    }


@pytest.mark.parametrize("installed", [{}, {"tensorrt_cu13_bindings": "10.16.1.11"}])
def test_an_image_with_tensorrt_10_or_none_has_nothing_unusable(
    installed: dict[str, str], gpu_python: Path, tmp_path: Path
) -> None:
    path = wheels(tmp_path / "site", **installed)
    libraries = compile_libraries(
        tmp_path / "nvidia", {"libnvinfer.so.10": ""} if installed else {}
    )
    reported = run_json(gpu_python, _PROBE, PYTHONPATH=path, LD_LIBRARY_PATH=str(libraries))
    assert "unusable" not in reported
    assert reported["backends"].get("tensorrt") == installed.get("tensorrt_cu13_bindings")


def test_a_session_without_its_library_names_the_one_that_is_there(
    gpu_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheels(tmp_path / "site", tensorrt_cu13_libs="11.4.0.106")
    monkeypatch.setenv("PYTHONPATH", path)
    reported = load(gpu_python, tmp_path, "tensorrt")
    assert reported["reason"] == Reason.PROVIDER_MISSING
    assert f"; this image has tensorrt_cu13_libs 11.4.0.106, {WHY}" in reported["message"]


def test_a_build_with_tensorrt_11_is_refused_before_anything_is_fetched(
    gpu_python: Path, tmp_path: Path
) -> None:
    path = wheels(tmp_path / "site", tensorrt_cu13_bindings="11.4.0.106")
    place = EnginePlace(tmp_path, python=gpu_python, fresh=True, environment={"PYTHONPATH": path})
    place.prepared = "ab" * 32  # the store has no such model
    task = place.engine_task(recipe(backend="tensorrt", version="11.4.0.106", ahead_of_time=False))
    outcome = place.engine_stage("build", task)
    assert (outcome.code, outcome.report.reason) == (ExitCode.PERMANENT, Reason.VERSION_MISMATCH)
    assert WHY in outcome.message
    assert "build the image with the required version" in outcome.message
