"""The options that device backends set: the shipped providers know them, and their errors are understood."""

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from enginewright_runtime.core.ort_messages import is_out_of_memory
from enginewright_runtime.session import driver, libcuda
from enginewright_runtime.session.base import SessionRequest
from enginewright_runtime.session.cuda import CudaBackend, arena_limit
from enginewright_serving.server.inference.run_errors import Fault, fault_from_rerun
from onnx import helper

from tests.support import broken_models as broken
from tests.support import rtx_devices
from tests.support.extensions import compile_c
from tests.support.programs import run_program
from tests.support.tensorrt_claims import TensorRtProvider

GIB = 1 << 30

EFFECTIVE = """
import json, onnxruntime as ort, sys
from pathlib import Path
from enginewright_runtime.session.base import SessionRequest
from enginewright_runtime.session.loading import find
request = SessionRequest(Path(sys.argv[1]), 1, device_memory=int(sys.argv[3]))
providers = find(sys.argv[2]).providers(ort.SessionOptions(), request)
session = ort.InferenceSession(sys.argv[1], providers=providers, enable_fallback=0)
print(json.dumps(session.get_provider_options()))
"""
UNKNOWN = """
import onnxruntime as ort, sys
try:
    ort.InferenceSession(sys.argv[1], providers=[("CUDAExecutionProvider", {"nonsense": "1"})], enable_fallback=0)
except Exception as error:
    print(error)
"""
LIMITED = """
import numpy as np, onnxruntime as ort, sys
from onnxruntime.capi import _pybind_state as C
memory = C.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, C.OrtMemType.DEFAULT)
ort.create_and_register_allocator(memory, C.OrtArenaCfg({"max_mem": 1 << 20, "arena_extend_strategy": 1}))
options = ort.SessionOptions()
options.add_session_config_entry("session.use_env_allocators", "1")
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
try:
    session.run(None, {"x": np.ones((1 << 20, 4), np.float32)})
except Exception as error:
    print(error)
session.run(None, {"x": np.ones((2, 4), np.float32)})
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "relu.onnx"
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    onnx.save(broken.build([node], [broken.value("x", "n", 4)], [broken.value("y", "n", 4)]), path)
    return path


@pytest.mark.parametrize("backend", ["cuda", "tensorrt"])
def test_the_shipped_cuda_provider_takes_the_options(
    backend: str, gpu_python: Path, model: Path, tmp_path: Path
) -> None:
    """The real onnxruntime-gpu reports its options in effect; what it does not know it refuses."""
    folder = tmp_path / "stand-ins"
    folder.mkdir()
    stand_in = TensorRtProvider(gpu_python, folder)
    printed = stand_in.run(EFFECTIVE, str(model), backend, str(80 * GIB))
    effective = json.loads(printed.splitlines()[-1])["CUDAExecutionProvider"]
    given = CudaBackend().provider_options(SessionRequest(model, 1, device_memory=80 * GIB))
    assert {name: effective[name] for name in given} == given
    assert given["gpu_mem_limit"] == str(72 * GIB)
    assert (effective["do_copy_in_default_stream"], effective["prefer_nhwc"]) == ("1", "0")
    assert "Unknown provider option" in stand_in.run(UNKNOWN, str(model))


@pytest.mark.parametrize(
    ("memory", "left"), [(80 * GIB, 8 * GIB), (6 * GIB, GIB), (2 * GIB, GIB // 2)]
)
def test_the_arena_leaves_memory_outside(memory: int, left: int) -> None:
    assert memory - arena_limit(memory) == left


def test_without_a_known_device_there_is_no_limit(model: Path) -> None:
    assert "gpu_mem_limit" not in CudaBackend().provider_options(SessionRequest(model, 1))


# fault: Devices | a request that needs more memory than the device has | ONNX Runtime's arena, which is
#   limited | it fails alone: 500, or 400 if it asks for more than there is at all
def test_a_request_beyond_the_arena_is_out_of_memory_and_the_next_one_runs(model: Path) -> None:
    """A real arena of ONNX Runtime with a limit: CUDA's is the same class."""
    done = run_program([sys.executable, "-c", LIMITED, str(model)], timeout=60)
    error = Exception(done.stdout)
    assert "smaller than requested bytes of 16777216" in str(error)
    assert is_out_of_memory(str(error))
    assert fault_from_rerun(error, None, error, memory=GIB) is Fault.SERVER
    assert fault_from_rerun(error, None, error, memory=1 << 20) is Fault.CLIENT, (
        "the device never has it"
    )


@pytest.mark.parametrize(
    ("library", "literal", "text"),
    [
        (
            "rtx",
            "Requested size was %lld bytes.",
            "Error Code 2: OutOfMemory (Requested size was 16777216 bytes.)",
        ),
        ("tensorrt", "Memory allocation failed. Size=", "Memory allocation failed. Size=16777216"),
        (
            "cuda",
            "Available memory of ",
            "Available memory of 8 is smaller than requested bytes of 16777216",
        ),
    ],
)
def test_messages_of_the_shipped_libraries_without_memory(
    library: str, literal: str, text: str, gpu_python: Path
) -> None:
    (capi,) = gpu_python.parents[1].glob("lib/*/site-packages/onnxruntime/capi")
    folder, name = {
        "rtx": (rtx_devices.folder(), "libtensorrt_rtx.so.*"),
        "tensorrt": (capi, "libonnxruntime_providers_tensorrt.so"),
        "cuda": (capi, "libonnxruntime.so.*"),
    }[library]
    file, *_ = folder.glob(name)  # others are links to it
    assert literal.encode() in file.read_bytes()
    assert is_out_of_memory(text)
    error = Exception(text)
    assert fault_from_rerun(error, None, error, memory=1 << 20) is Fault.CLIENT
    assert fault_from_rerun(error, None, error, memory=GIB) is Fault.SERVER


DRIVER = """
#include <stddef.h>
int cuDriverGetVersion(int *version) { *version = 13010; return 0; }
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int index) { *device = index + 7; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : 0; return device != 7;
}
MEMORY
"""
REPORTED = (
    "int cuDeviceTotalMem_v2(size_t *size, int device) { *size = 5L << 30; return device != 7; }"
)


@pytest.mark.parametrize(("memory", "reported"), [(REPORTED, 5 * GIB), ("", None)])
def test_the_driver_tells_the_memory_of_the_device(
    memory: str, reported: int | None, tmp_path: Path
) -> None:
    """Where there is no device, the library is a stand-in with cuda.h's signatures."""
    compile_c(tmp_path / libcuda.LIBRARY, DRIVER.replace("MEMORY", memory))
    child = (sys.executable, "-I", "-S", str(Path(libcuda.__file__)))
    report = driver.ask("13", ("env", f"LD_LIBRARY_PATH={tmp_path}", *child))
    answer: Any = (report.driver.reason, report.compute_capability, report.memory)
    assert answer == (None, "9.0", reported)
