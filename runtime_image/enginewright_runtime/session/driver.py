"""Queries NVIDIA's driver in a child process, before anything that needs it is loaded."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright_contract.execution import Driver
from enginewright_contract.reasons import Reason

from enginewright_runtime.core import nvml
from enginewright_runtime.session import libcuda

LIBRARIES: Final = frozenset({libcuda.LIBRARY, nvml.LIBRARY})  # that come with the driver
# of the kernel module, which every container sees: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15"
VERSION_FILE: Final = Path("/proc/driver/nvidia/version")
_RELEASE: Final = re.compile(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE)
_SECONDS: Final = 30.0  # a driver that hangs is none
# cuInit's codes for a driver that does not fit what is installed beside it
_MISFITS: Final = frozenset({35, 803, 804})


@dataclass(frozen=True)
class Device:
    """The driver, and the device that a session would use."""

    driver: Driver
    compute_capability: str | None = None  # "8.9", if the driver reports a device
    memory: int | None = None  # bytes in all, if the driver reports them


NOT_NEEDED: Final = Device(Driver(needed=False, present=False))


def ask(cuda_major: str | None, command: tuple[str, ...] | None = None) -> Device:
    """Query NVIDIA's driver by a child or `command`; `cuda_major` is the CUDA version that the image's libraries need."""
    child = command or (sys.executable, "-I", "-S", str(Path(libcuda.__file__)))
    try:
        done = subprocess.run(child, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return _missing(f"NVIDIA's driver did not answer within {_SECONDS:.0f} s")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return _missing(f"the driver's library {libcuda.LIBRARY} crashed with {name}")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        return _missing(f"NVIDIA's driver could not be queried: {last or 'no output'}")
    return _read(answer, cuda_major)


def release(file: Path = VERSION_FILE) -> str | None:
    """Return the version of NVIDIA's driver, such as 570.86.15, or None if there is no driver or it does not tell."""
    try:
        match = _RELEASE.search(file.read_text(errors="replace") + "\n")
    except OSError:
        return None
    return match.group(1) if match else None


def _read(answer: dict[str, Any], cuda_major: str | None) -> Device:
    if "unopened" in answer:
        return _missing(f"NVIDIA's driver is not available: {answer['unopened']}")
    number = answer.get("version")
    version = f"{number // 1000}.{number % 1000 // 10}" if number else None
    if code := answer.get("code"):
        detail = f": {answer['detail']}" if answer.get("detail") else ""
        reason = Reason.DRIVER_TOO_OLD if code in _MISFITS else Reason.DRIVER_MISSING
        message = f"NVIDIA's driver is installed, but cuInit fails with code {code}{detail}"
        return Device(_unusable(reason, message, version))
    if number and cuda_major and number // 1000 < int(cuda_major):
        message = f"NVIDIA's driver supports CUDA {version}, but this image needs CUDA {cuda_major}"
        return Device(
            _unusable(Reason.DRIVER_TOO_OLD, message, version), answer.get("compute_capability")
        )
    return Device(
        Driver(needed=True, present=True, version=version),
        answer.get("compute_capability"),
        answer.get("memory"),
    )


def _missing(message: str) -> Device:
    return Device(Driver(needed=True, present=False, reason=Reason.DRIVER_MISSING, message=message))


def _unusable(reason: Reason, message: str, version: str | None) -> Driver:
    return Driver(needed=True, present=True, version=version, reason=reason, message=message)
