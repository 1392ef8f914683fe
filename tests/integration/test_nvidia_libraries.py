"""What `hack/images build --nvidia` installs: locked, found and complete, as far as it goes without gigabytes.

The wheels of CUDA and cuDNN have 1.3 GB and are not downloaded. TensorRT's source package, its build backend and
its bindings are NVIDIA's; the wheel of its libraries is a stand-in.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import nvidia_index
from tests.support.programs import run_program
from tests.support.serving import run_json
from tests.support.web import WebServer

if TYPE_CHECKING:
    from subprocess import CompletedProcess

REPOSITORY: Final = Path(__file__).resolve().parents[2]
INSTALL: Final = REPOSITORY / "runtime_image/install-nvidia"
TENSORRT: Final = "nvidia-tensorrt.txt"
SECONDS: Final = 280
_PROBE: Final = "from enginewright_runtime.probe import probe; print(probe().to_json())"


@pytest.fixture
def index() -> Iterator[WebServer]:
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    with WebServer() as server:
        yield server


def install(folder: Path, index: str) -> "CompletedProcess[str]":
    # pip keeps a wheel by its source package: the stand-in must not end up in an image
    environment = {"WHEEL_STUB_PIP_INDEX_URL": index, "PIP_CACHE_DIR": str(folder / "../cache")}
    return run_program(
        [str(INSTALL), str(folder), TENSORRT],
        timeout=SECONDS,
        env=os.environ | environment,
        code=None,
    )


# by the beginning of the file's name, of what ONNX Runtime's providers are linked to
PACKAGES: Final = {
    "libcublas": "nvidia-cublas",
    "libcublasLt": "nvidia-cublas",
    "libcudart": "nvidia-cuda-runtime",
    "libcudnn": "nvidia-cudnn-cu13",
    "libcurand": "nvidia-curand",
    "libnvinfer": "tensorrt-cu13-libs",
    "libnvonnxparser": "tensorrt-cu13-libs",
}
_NEEDED: Final = """
import json
from enginewright_runtime.session.cuda import CudaBackend
from enginewright_runtime.session.libraries import missing
from enginewright_runtime.session.tensorrt import TensorRtBackend
print(json.dumps(sorted({*missing(CudaBackend.library), *missing(TensorRtBackend.library)})))
"""


def read_locks() -> dict[str, str]:
    """Return the versions in the locks, by package."""
    names = ("nvidia-cuda.txt", TENSORRT)
    lines = [
        line
        for name in names
        for line in (REPOSITORY / "requirements" / name).read_text().splitlines()
    ]
    return dict(line.removesuffix(" \\").split("==") for line in lines if "==" in line)


def test_the_locks_have_the_major_versions_that_the_providers_are_linked_to(
    gpu_python: Path,
) -> None:
    needed = set(run_json(gpu_python, _NEEDED)) - {"libcuda.so.1"}
    linked = {}
    for name in needed:
        library, _, major = name.partition(".so.")
        linked[PACKAGES[library]] = major
    versions = read_locks()
    assert linked == {name: versions[name].partition(".")[0] for name in set(PACKAGES.values())}


def test_the_builder_and_the_libraries_are_of_one_version() -> None:
    versions = read_locks()
    assert versions["tensorrt-cu13-bindings"] == versions["tensorrt-cu13-libs"]
    assert versions["tensorrt-cu13-libs"] == nvidia_index.VERSION


def test_tensorrt_is_found_by_the_provider_and_by_its_version(
    index: WebServer, gpu_python: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "nvidia"
    done = install(folder, nvidia_index.offer(index, tmp_path / "wheel"))
    assert done.returncode == 0, done.stderr
    folders = (folder / "libraries.conf").read_text().split()
    assert folders == [str(folder / "tensorrt_bindings"), str(folder / "tensorrt_libs")]
    environment = {"PYTHONPATH": str(folder), "LD_LIBRARY_PATH": ":".join(folders)}
    reported = run_json(gpu_python, _PROBE, **environment)
    assert reported["backends"]["tensorrt"] == nvidia_index.VERSION
    assert "unusable" not in reported


def test_a_library_that_no_package_has_is_named(index: WebServer, tmp_path: Path) -> None:
    address = nvidia_index.offer(index, tmp_path / "wheel", nvidia_index.LIBRARIES[:1])
    done = install(tmp_path / "nvidia", address)
    assert done.returncode == 1
    missing = " ".join(nvidia_index.LIBRARIES[1:]).replace(" ", "\n")
    assert f"that no package of the lock contains: {missing}" in done.stderr


def test_an_index_that_cannot_be_reached_has_a_remedy(tmp_path: Path) -> None:
    with WebServer() as server:
        closed = server.url
    done = install(tmp_path / "nvidia", f"{closed}/")
    assert done.returncode == 1
    assert "set WHEEL_STUB_PIP_INDEX_URL to a mirror, or build the image cuda" in done.stderr
    assert "or maven, whose TensorRT is Maven Central's" in done.stderr
