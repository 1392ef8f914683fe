"""What the image maven has: NVIDIA's TensorRT from Maven Central, found and loaded by all that uses it, up to the driver.

Of CUDA only the runtime is real here: cuBLAS and cuDNN have 0.8 GB, of which TensorRT's provider calls six functions,
none of them before it has a device.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import onnx
import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.session import driver

from tests.support import broken_models as broken
from tests.support.extensions import compile_c
from tests.support.programs import run_program
from tests.support.serving import run_json
from tests.support.tensorrt_libraries import VERSIONS, fetch

pytestmark = pytest.mark.timeout(1800)
REPOSITORY: Final = Path(__file__).resolve().parents[2]
LINKED: Final = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
KERNELS: Final = ("libnvinfer_builder_resource_ptx.so.10.15.1",)
CUDA: Final = {
    "libcublas.so.13": ("cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2"),
    "libcublasLt.so.13": (),
    "libcudnn.so.9": ("cudnnCreate", "cudnnDestroy", "cudnnSetStream"),
    "libcurand.so.10": (),
}
_PROBE: Final = "from enginewright_runtime.probe import probe; print(probe().to_json())"
_VERSION: Final = """
import ctypes, json
print(json.dumps([ctypes.CDLL("libnvinfer.so.10").getInferLibVersion()]))
"""
_PARSE: Final = """
import json, sys
from pathlib import Path
from enginewright_runtime.tensorrt import native
version, model, log = sys.argv[1:]
answer = native.parse(backend="tensorrt", version=version, model=Path(model), log=Path(log), plugins=[])
print(json.dumps(answer.parsed))
"""
_LOAD: Final = """
import json, sys
from pathlib import Path
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session import driver, loading
device = driver.NOT_NEEDED if sys.argv[2:] else None
try:
    loading.create("tensorrt", Path(sys.argv[1]), threads=1, device=device)
    refused = {}
except StageFailure as failure:
    refused = {"reason": failure.reason, "cause": failure.cause}
words = Path("/proc/self/maps").read_text().split()
print(json.dumps(refused | {"opened": sorted({word for word in words if word.startswith("/")})}))
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder that the image gets, without CUDA."""
    folder = tmp_path_factory.mktemp("image") / "nvidia"
    install = REPOSITORY / "runtime_image/install-nvidia"
    run_program([install, folder, "tensorrt-bindings-10.txt", fetch("10")], timeout=900)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with CUDA's runtime, and with what stands in for cuBLAS and cuDNN."""
    folder = tmp_path_factory.mktemp("cuda")
    lock = (REPOSITORY / "requirements/nvidia-cuda.txt").read_text().replace(" \\\n", " ")
    (entry,) = (line for line in lock.splitlines() if line.startswith("nvidia-cuda-runtime=="))
    (folder / "lock.txt").write_text(entry)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    target = folder / "package"
    run_program(
        [*pip, "--no-deps", "--require-hashes", "--target", target, "-r", folder / "lock.txt"]
    )
    libraries = folder / "libraries"
    for name, functions in CUDA.items():
        source = "".join(f"int {function}(void) {{ return 1; }}" for function in functions)
        compile_c(libraries / name, source, f"-Wl,-soname,{name}", "-Wl,--default-symver")
    (runtime,) = target.rglob("libcudart.so.13")
    shutil.copy(runtime, libraries)
    return libraries


def load(python: Path, folder: Path, *libraries: Path, ask: bool) -> dict[str, Any]:
    """Load a model on TensorRT's backend; `ask` False: pass over what the driver would say."""
    model = folder / "model.onnx"
    onnx.save(broken.relu(), model)
    arguments = [str(model), *([] if ask else ["unasked"])]
    path = ":".join(map(str, libraries))
    reported: dict[str, Any] = run_json(python, _LOAD, *arguments, LD_LIBRARY_PATH=path)
    return reported


def test_the_image_has_all_libraries_of_one_version(image: Path) -> None:
    folders = [str(image / name) for name in ("tensorrt_bindings", "tensorrt_libs")]
    assert (image / "libraries.conf").read_text().split() == folders
    assert sorted(path.name for path in (image / "tensorrt_libs").iterdir()) == sorted(
        (*LINKED, *KERNELS)
    )
    (number,) = run_json(sys.executable, _VERSION, LD_LIBRARY_PATH=folders[1])
    major, minor, patch = map(int, VERSIONS["10"].split(".")[:3])
    assert number == major * 10_000 + minor * 100 + patch


def test_the_probe_says_which_version_it_is_and_where_it_is_from(
    image: Path, gpu_python: Path
) -> None:
    environment = {"PYTHONPATH": str(image), "LD_LIBRARY_PATH": str(image / "tensorrt_libs")}
    reported = run_json(gpu_python, _PROBE, **environment)
    assert reported["backends"]["tensorrt"] == VERSIONS["10"]
    address = "pkg:maven/org.bytedeco/tensorrt@10.15-1.5.13?classifier=linux-x86_64-redist"
    assert reported["origins"] == {"tensorrt": address}
    assert "unusable" not in reported


def test_the_builder_finds_the_libraries_and_parses(
    image: Path, gpu_python: Path, tmp_path: Path
) -> None:
    model, log = tmp_path / "model.onnx", tmp_path / "log"
    onnx.save(broken.relu(), model)
    environment = {"PYTHONPATH": str(image), "LD_LIBRARY_PATH": str(image / "tensorrt_libs")}
    assert run_json(gpu_python, _PARSE, VERSIONS["10"], str(model), str(log), **environment)


def test_onnxruntimes_provider_lacks_only_cudas_libraries_without_them(
    image: Path, gpu_python: Path, tmp_path: Path
) -> None:
    reported = load(gpu_python, tmp_path, image / "tensorrt_libs", ask=True)
    assert reported["reason"] == Reason.PROVIDER_MISSING
    lacking = reported["cause"].partition("; and DriverMissing: ")[0]
    assert lacking.partition(": ")[2].split(", ") == [
        "libcublas.so.13",
        "libcudart.so.13",
        "libcudnn.so.9",
    ]


def test_onnxruntimes_provider_loads_the_libraries_and_lacks_the_driver(
    image: Path, cuda: Path, gpu_python: Path, tmp_path: Path
) -> None:
    """It opens TensorRT and its parser and plug-ins, and then ONNX Runtime's CUDA provider, which is linked to the driver."""
    if driver.ask("13").driver.present:
        pytest.skip("this machine has a driver")
    libraries = image / "tensorrt_libs"
    asked = load(gpu_python, tmp_path, libraries, cuda, ask=True)
    assert (asked["reason"], "libcuda.so.1" in asked["cause"]) == (Reason.DRIVER_MISSING, True)
    refused = load(gpu_python, tmp_path, libraries, cuda, ask=False)
    assert refused["reason"] == Reason.DRIVER_MISSING
    assert (
        refused["cause"] == "TensorrtExecutionProvider needs libcuda.so.1, which cannot be opened"
    )
    assert {str(libraries / name) for name in LINKED} <= set(refused["opened"])
    assert "libonnxruntime_providers_tensorrt.so" in {Path(path).name for path in refused["opened"]}
