"""Asks the shipped TensorRT-RTX provider which devices it takes: runs its own check, without a GPU.

The check is a function of the plug-in's library that is not exported. It is called where its symbol
table says that it lies, with a stand-in for the driver that has a device of any compute capability.
Run as a program, for native code is loaded: prints the capabilities of its arguments that it takes.
"""

import ctypes
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_STAND_IN: Final = Path(__file__).with_name("any_device.c")
_CHECK: Final = "IsOrtHardwareDeviceSupported"
_LIBRARY: Final = "libonnxruntime_providers_nv_tensorrt_rtx.so"
_DRIVER: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
_RUNTIME: Final = "libcudart.so.13"


def folder() -> Path:
    spec = importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(_LIBRARY)
    return Path(spec.origin).parent


def library() -> Path:
    return folder() / _LIBRARY


def symbols() -> dict[str, tuple[int, int]]:
    """Return the plug-in's functions: name -> address and size."""
    listed = subprocess.run(
        ["nm", "--defined-only", "--print-size", str(library())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = (line.split() for line in listed.splitlines())
    return {line[3]: (int(line[0], 16), int(line[1], 16)) for line in lines if len(line) == 4}


def _list_linked() -> list[str]:
    """Return the functions of the driver and of CUDA's runtime that the plug-in is linked to."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", "--format=just-symbols", str(library())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = (line.partition("@")[0] for line in listed.splitlines())
    return [name for name in names if re.match(r"cu(da)?[A-Z]|nvml", name)]


def find_taken(capabilities: Iterable[str], scratch: Path) -> set[str]:
    """Return those of the compute capabilities whose devices the provider takes."""
    own = _STAND_IN.read_text()
    missing = [name for name in _list_linked() if f" {name}(" not in own]
    source = scratch / "any_device.c"
    source.write_text(own + "".join(f"int {name}(void) {{ return 0; }}\n" for name in missing))
    (scratch / "versions").write_text(f"{_RUNTIME} {{ global: *; }};\n")  # as NVIDIA's has
    for name in (*_DRIVER, _RUNTIME):
        holds = [source.name, "-Wl,--version-script=versions"] if name == _RUNTIME else []
        subprocess.run(
            ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", name, *holds],
            cwd=scratch,
            check=True,
        )
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), str(scratch), *capabilities],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return set(json.loads(done.stdout))


def _main(scratch: Path, capabilities: list[str]) -> None:
    device, *_ = (
        ctypes.CDLL(str(scratch / name), ctypes.RTLD_GLOBAL) for name in (_RUNTIME, *_DRIVER)
    )
    for pattern in ("libtensorrt_rtx.so.*", "libtensorrt_onnxparser_rtx.so.*"):
        ctypes.CDLL(str(next(folder().glob(pattern))), ctypes.RTLD_GLOBAL)
    provider = ctypes.CDLL(str(library()))
    exported = symbols()["CreateEpFactories"][0]
    loaded = ctypes.cast(provider.CreateEpFactories, ctypes.c_void_p).value or 0
    (place,) = (where for name, (where, _) in symbols().items() if name.endswith(_MANGLED))
    check = ctypes.CFUNCTYPE(ctypes.c_bool, *[ctypes.c_void_p] * 5)(loaded - exported + place)
    device.any_device_api.restype = ctypes.c_void_p
    devices = []
    for capability in capabilities:
        device.any_device_is(*map(int, capability.split(".")))
        if check(1, device.any_device_api(), None, None, None):
            devices.append(capability)
    print(json.dumps(devices))


_MANGLED: Final = f"{_CHECK}EPK17OrtHardwareDeviceRK6OrtApiPiS6_S6_"

if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
