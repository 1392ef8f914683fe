"""Real fallbacks of real libraries, each with the reason that the library gives, none silent."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from enginewright_runtime.session import driver, libcuda, load_errors

from tests.support import broken_models as broken
from tests.support.extensions import compile_c
from tests.support.programs import run_program
from tests.support.serving import run_json

if TYPE_CHECKING:
    from subprocess import CompletedProcess

CUDA_LIBRARIES = ("libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcudart.so.13")

_LOAD = """
import json, sys
from pathlib import Path
from enginewright_runtime.session import loading
from enginewright_runtime.session.openvino import OpenVinoBackend
from enginewright_runtime.session.driver import NOT_NEEDED
from enginewright_runtime.core.failure import StageFailure
asked = json.loads(sys.argv[1])
if asked["options"]:
    OpenVinoBackend.provider_options = lambda self, request: asked["options"]
try:
    loaded = loading.create(
        asked["backend"], Path(asked["model"]), threads=1, strict=asked["strict"],
        device=None if asked["ask"] else NOT_NEEDED,
    )
    found = {"providers": loaded.session.get_providers(), "nodes": loaded.placement.nodes,
        "elsewhere": loaded.placement.elsewhere,
        "reason": loaded.cause and loaded.cause.reason,
        "message": loaded.cause and loaded.cause.cause}
except StageFailure as failure:
    found = {"providers": None, "reason": failure.reason, "message": failure.message}
print(json.dumps(found))
"""


def load(
    python: Path | str,
    folder: Path,
    backend: str,
    *,
    strict: bool = True,
    options: dict[str, str] | None = None,
    ask: bool = True,
    libraries: Path | None = None,
) -> dict[str, Any]:
    """Load a model in another environment; `ask` False: pass over what the driver would say."""
    path = folder / "model.onnx"
    onnx.save(broken.relu(), path)
    asked = {
        "backend": backend,
        "model": str(path),
        "strict": strict,
        "options": options,
        "ask": ask,
    }
    environment = {"LD_LIBRARY_PATH": str(libraries)} if libraries else {}
    reported: dict[str, Any] = run_json(python, _LOAD, json.dumps(asked), **environment)
    return reported


def test_onnxruntime_gpu_without_cuda_names_the_missing_library(
    gpu_python: Path, tmp_path: Path
) -> None:
    reported = load(gpu_python, tmp_path, "cuda")
    assert reported["reason"] == Reason.PROVIDER_MISSING
    assert reported["providers"] is None
    libraries, _, driver = reported["message"].partition("; and DriverMissing: ")
    assert all(name in libraries for name in CUDA_LIBRARIES)
    assert "libcuda.so.1" not in libraries, "that is the driver's, another reason"
    assert "libcuda.so.1" in driver, "the other cause is named too"


def test_where_fallback_is_allowed_the_same_serves_from_the_cpu_and_says_why(
    gpu_python: Path, tmp_path: Path
) -> None:
    reported = load(gpu_python, tmp_path, "cuda", strict=False)
    assert reported["providers"] == ["CPUExecutionProvider"]
    assert reported["nodes"] == {"CPUExecutionProvider": 1}
    assert len(reported["elsewhere"]) == 1
    assert reported["reason"] == Reason.PROVIDER_MISSING
    assert "libcublasLt.so.13" in reported["message"]


def test_tensorrt_runs_nothing_without_its_library_even_where_fallback_is_allowed(
    gpu_python: Path, tmp_path: Path
) -> None:
    reported = load(gpu_python, tmp_path, "tensorrt", strict=False)
    assert (reported["providers"], reported["reason"]) == (None, Reason.PROVIDER_MISSING)
    assert "libnvinfer.so.10" in reported["message"]


def compile_libraries(folder: Path, sources: dict[str, str]) -> Path:
    """Compile one library a name."""
    folder.mkdir()
    for name, source in sources.items():
        compile_c(folder / name, source, f"-Wl,-soname,{name}")
    return folder


def test_cuda_without_a_driver_is_driver_missing(gpu_python: Path, tmp_path: Path) -> None:
    """The libraries are empty, but they are found: what ONNX Runtime misses next is libcuda."""
    folder = compile_libraries(tmp_path / "cuda", dict.fromkeys(CUDA_LIBRARIES, ""))
    reported = load(gpu_python, tmp_path, "cuda", libraries=folder)
    assert reported["reason"] == Reason.DRIVER_MISSING
    assert "NVIDIA's driver is not available: libcuda.so.1" in reported["message"]
    by_its_words = load(gpu_python, tmp_path, "cuda", strict=False, ask=False, libraries=folder)
    assert by_its_words["reason"] == Reason.DRIVER_MISSING
    assert by_its_words["message"] == (
        "CUDAExecutionProvider needs libcuda.so.1, which cannot be opened"
    )
    assert by_its_words["providers"] == ["CPUExecutionProvider"]


def test_tensorrt_is_held_where_the_loader_finds_it(gpu_python: Path, tmp_path: Path) -> None:
    folder = compile_libraries(tmp_path / "nvidia", {"libnvinfer.so.10": ""})
    (folder / "libnvinfer.so.10").rename(folder / "libnvinfer.so.10.13.3")
    (folder / "libnvinfer.so.10").symlink_to("libnvinfer.so.10.13.3")
    program = "from enginewright_runtime.probe import probe; print(probe().to_json())"
    reported = run_json(gpu_python, program, LD_LIBRARY_PATH=str(folder))
    assert reported["backends"]["tensorrt"] == "10.13.3"


def test_tensorrt_rtx_without_a_driver_is_driver_missing(tmp_path: Path) -> None:
    reported = load(sys.executable, tmp_path, "tensorrt-rtx", strict=False)
    assert (reported["providers"], reported["reason"]) == (None, Reason.DRIVER_MISSING)
    by_its_words = load(sys.executable, tmp_path, "tensorrt-rtx", ask=False)
    assert by_its_words["reason"] == Reason.DRIVER_MISSING
    assert by_its_words["message"].startswith(
        "NvTensorRTRTXExecutionProvider needs libcuda.so.1, which cannot be opened"
    )


@pytest.mark.parametrize(
    ("options", "wording"),
    [
        ({"device_type": "GPU"}, "OpenVINO: Device GPU is not available"),
        (
            {"device_type": "CPU", "precision": "FP16"},
            "OpenVINO: Unsupported inference precision is selected. CPU only supports FP32",
        ),
        (
            {"device_type": "CPU", "num_of_threads": "many"},
            "OpenVINO: Number of threads should be a number",
        ),
        # this one raises instead of falling back
        ({"no_such_option": "1"}, "Invalid OpenVINO EP option: no_such_option"),
    ],
)
def test_errors_of_openvino_are_reported_verbatim(
    options: dict[str, str], wording: str, openvino_python: Path, tmp_path: Path
) -> None:
    reported = load(openvino_python, tmp_path, "openvino", options=options)
    assert (reported["providers"], reported["reason"]) == (None, Reason.PROVIDER_REFUSED)
    assert wording in reported["message"]
    kept = load(openvino_python, tmp_path, "openvino", options=options, strict=False)
    assert kept["providers"] == ["CPUExecutionProvider"]
    assert kept["nodes"] == {"CPUExecutionProvider": 1}
    assert kept["reason"] == Reason.PROVIDER_REFUSED
    assert wording in kept["message"]
    assert "onnxruntime/core" not in kept["message"]


# What cannot be made to happen here, in the words that were seen elsewhere.


@pytest.mark.parametrize(
    ("wording", "reason", "message"),
    [
        (
            (
                "2026-11-21 07:48:08.058574101 [E:onnxruntime:Default, cuda_call.cc:123] CUDA failure"
                " 35: CUDA driver version is insufficient for CUDA runtime version ; GPU=-1 ;"
                " hostname=vm ; file=/onnxruntime_src/cuda.cc ; expr=cudaSetDevice(info_.device_id);"
            ),
            Reason.DRIVER_TOO_OLD,
            "CUDA driver version is insufficient",
        ),
        (
            (
                "[TensorRT] The engine plan file is generated on an incompatible device, expecting"
                " compute 8.6 got compute 8.9, please rebuild."
            ),
            Reason.ENGINE_INCOMPATIBLE,
            "expecting compute 8.6 got compute 8.9",
        ),
        (
            (
                "[TensorRT] The engine plan file is not compatible with this version of TensorRT,"
                " expecting library version 10.3.0.26 got 10.0.1.6, please rebuild."
            ),
            Reason.ENGINE_VERSION_MISMATCH,
            "expecting library version 10.3.0.26",
        ),
        (
            "CUDA failure 36: API call is not supported in the installed CUDA driver ; GPU=-1 ;",
            Reason.DRIVER_TOO_OLD,
            "not supported in the installed CUDA driver",
        ),
        ("CUDA failure 100: no CUDA-capable device", Reason.PROVIDER_REFUSED, "no CUDA-capable"),
        ("", Reason.PROVIDER_REFUSED, "could not create XProvider, and no error was logged"),
    ],
)
def test_words_to_reasons(wording: str, reason: Reason, message: str) -> None:
    cause = load_errors.cause("XProvider", wording)
    assert cause.reason is reason
    assert message in cause.cause
    assert "hostname" not in cause.cause, "a condition names no pod"


def test_an_engine_that_is_refused_for_nothing_known_is_incompatible() -> None:
    cause = load_errors.engine_cause("tensorrt", "[ONNXRuntimeError] : 1 : FAIL : it did not load")
    assert cause == Finding(
        reason=Reason.ENGINE_INCOMPATIBLE,
        cause="backend tensorrt rejected the engine: it did not load",
    )


# The driver


def test_the_driver_that_is_not_here_is_missing() -> None:
    device = driver.ask("13")
    if device.driver.present:
        pytest.skip("this machine has a driver")
    assert device.driver.needed
    assert device.driver.reason is Reason.DRIVER_MISSING
    assert "libcuda.so.1" in device.driver.message
    assert device.compute_capability is None


_DRIVER = """
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 : attribute == 76 ? 9 : 0; return 0;
}
int cuGetErrorString(int code, const char **text) { *text = "no CUDA-capable device"; return 0; }
"""


def driver_saying(folder: Path, init: int, version: int) -> Sequence[str]:
    """Return how to ask a driver of ours, which answers as NVIDIA's does."""
    source = _DRIVER.replace("INIT", str(init)).replace("VERSION", str(version))
    libraries = compile_libraries(folder / "driver", {libcuda.LIBRARY: source})
    return (
        "env",
        f"LD_LIBRARY_PATH={libraries}",
        sys.executable,
        "-I",
        "-S",
        str(libcuda.__file__),
    )


def test_a_driver_tells_version_and_compute_capability(tmp_path: Path) -> None:
    device = driver.ask("13", tuple(driver_saying(tmp_path, 0, 13020)))
    assert (device.driver.present, device.driver.reason) == (True, None)
    assert (device.driver.version, device.compute_capability) == ("13.2", "8.9")


def test_a_driver_for_an_older_cuda_is_too_old(tmp_path: Path) -> None:
    reported = driver.ask("13", tuple(driver_saying(tmp_path, 0, 12040))).driver
    assert (reported.present, reported.reason) == (True, Reason.DRIVER_TOO_OLD)
    assert reported.message == "NVIDIA's driver supports CUDA 12.4, but this image needs CUDA 13"


@pytest.mark.parametrize(
    ("code", "reason"), [(100, Reason.DRIVER_MISSING), (803, Reason.DRIVER_TOO_OLD)]
)
def test_a_driver_that_does_not_start_is_reported_with_its_code(
    code: int, reason: Reason, tmp_path: Path
) -> None:
    reported = driver.ask("13", tuple(driver_saying(tmp_path, code, 13000))).driver
    assert reported.reason is reason
    assert f"cuInit fails with code {code}: no CUDA-capable device" in reported.message


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os; os.abort()", "crashed with SIGABRT"),
        ("raise SystemExit('no such thing')", "could not be queried: no such thing"),
    ],
)
def test_a_driver_that_breaks_its_asker_is_missing(program: str, message: str) -> None:
    reported = driver.ask(None, (sys.executable, "-c", program)).driver
    assert reported.reason is Reason.DRIVER_MISSING
    assert message in reported.message


# What native libraries write

_CAPTURES = """
import os
from enginewright_runtime.session import native_log
with native_log.capture() as log:
    os.write(2, b'to error, ')
    print('to output')
    os.write(1, b'x' * 200_000 + b'the end')
os.write(2, b'; kept ' + str(len(log.text)).encode() + log.text[-7:].encode())
print('after')
"""

_CRASHES = """
import os
from enginewright_runtime.session import native_log
with native_log.capture():
    os.write(2, b'terminate called')
    os.abort()
"""


def run(program: str) -> "CompletedProcess[str]":
    return run_program([sys.executable, "-c", program], timeout=60, code=None)


def test_captured_output_is_passed_on() -> None:
    done = run(_CAPTURES)
    assert done.stdout == "after\n"
    assert done.stderr.startswith("to error, to output\n")
    assert done.stderr.endswith("xthe end; kept 65536the end")


def test_the_last_words_of_a_crash_are_not_lost() -> None:
    done = run(_CRASHES)
    assert done.returncode < 0
    assert done.stderr == "terminate called"
