"""The machine that the proof runs on: its prerequisites, and its description for the page. Standard library only."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from hack.gpu_proof.pieces import Index, PieceError

# what ONNX Runtime's CUDA and TensorRT providers load beside the driver, by packages of the machine
_LIBRARIES: Final = (
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudart.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcurand.so.10",
    "libnvrtc.so.13",
)
_MARGIN: Final = 2 << 30  # bytes beside what is unpacked


def refuse(index: Index, work: Path) -> str | None:
    """Return why the machine cannot run the proof, in one sentence, if it cannot."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != index.python:
        return (
            f"this is Python {version}, but the pieces are for Python {index.python}:"
            f" run it with python{index.python}, or pack with --python {version}"
        )
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"this machine has no NVIDIA driver ({error}): run it where nvidia-smi works"
    if code := cuda.cuInit(0):
        return f"NVIDIA's driver fails with code {code}: run it where nvidia-smi works"
    missing = [name for name in _LIBRARIES if not any(_find_library(name))]
    if missing:
        return (
            f"CUDA's libraries are not in this Python's packages: {', '.join(missing)};"
            " install torch for CUDA 13, or run with the Python that has it"
        )
    needed = sum(file.size for file in index.files) + _MARGIN
    work.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(work).free) < needed:
        return f"{work} has {free >> 20} MiB free, but {needed >> 20} MiB are needed: name another folder with --work"
    return None


def library_folders() -> list[str]:
    """Return the folders with CUDA's libraries among this Python's packages."""
    folders = (path.parent for name in _LIBRARIES for path in _find_library(name))
    return list(dict.fromkeys(map(str, folders)))


def _find_library(name: str) -> Iterable[Path]:
    for folder in dict.fromkeys(sys.path):
        yield from Path(folder).glob(f"nvidia/**/{name}")


def describe() -> dict[str, Any]:
    """Return the description of the machine for the page."""
    query = "name,driver_version,memory.total,compute_cap"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        devices = done.stdout.strip().splitlines()
    except (OSError, subprocess.TimeoutExpired):
        devices = []
    return {
        "devices": devices,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "processor": _processor(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )


def require(path: Path) -> Path:
    """Return a folder that must exist.

    Raises:
        PieceError: it does not.
    """
    if not path.is_dir():
        raise PieceError(
            f"{path} is no folder: name the one that `hack/gpu-proof pack` has written"
        )
    return path
