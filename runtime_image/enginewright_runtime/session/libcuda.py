"""Run as a separate program: queries NVIDIA's driver library and prints JSON.

It imports only the standard library, so that the child starts in milliseconds; a broken driver can
crash or hang only this process. `driver` reads the output.
"""

import ctypes
import json
import sys
from typing import Any, Final

LIBRARY: Final = "libcuda.so.1"
# CUdevice_attribute of the driver API
_MAJOR: Final = 75
_MINOR: Final = 76


def main() -> int:
    """Print what the driver reports; always return 0."""
    print(json.dumps(_ask()))
    return 0


def _ask() -> dict[str, Any]:
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return {"unopened": str(error)}
    try:
        initialise, version_of = cuda.cuInit, cuda.cuDriverGetVersion
    except AttributeError as error:
        return {"unopened": f"{LIBRARY} is not the driver's library: {error}"}
    version = ctypes.c_int()
    code = version_of(ctypes.byref(version))
    found: dict[str, Any] = {"version": version.value} if code == 0 else {}
    if code := initialise(0):
        return found | {"code": code, "detail": _error_string(cuda, code)}
    return found | _device(cuda)


def _device(cuda: ctypes.CDLL) -> dict[str, Any]:
    """Return compute capability and memory of device 0; {}: the driver reports none."""
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    try:
        failed = (
            cuda.cuDeviceGet(ctypes.byref(device), 0)
            or cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
            or cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        )
    except AttributeError:
        return {}
    if failed:
        return {}
    return {"compute_capability": f"{major.value}.{minor.value}"} | _memory(cuda, device)


def _memory(cuda: ctypes.CDLL, device: ctypes.c_int) -> dict[str, int]:
    """Return the device's bytes, of a MIG slice those of the slice; {}: the driver does not tell."""
    size = ctypes.c_size_t()
    try:
        failed = cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    except AttributeError:
        return {}
    return {"memory": size.value} if size.value and not failed else {}


def _error_string(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    try:
        failed = cuda.cuGetErrorString(code, ctypes.byref(text))
    except AttributeError:
        return ""
    return "" if failed or text.value is None else text.value.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
