"""Run as a separate program: queries NVIDIA's driver library and prints JSON for `driver`.

It imports only the standard library, to start in milliseconds; a broken driver crashes only this process.
"""

import ctypes
import json
import sys
from typing import Any, Final

LIBRARY: Final = "libcuda.so.1"
# CUdevice_attribute of the driver API
_MAJOR: Final = 75
_MINOR: Final = 76
_MISSING: Final = -1


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
        initialize, version_of = cuda.cuInit, cuda.cuDriverGetVersion
    except AttributeError as error:
        return {"unopened": f"{LIBRARY} is not the driver's library: {error}"}
    version = ctypes.c_int()
    code = version_of(ctypes.byref(version))
    answer: dict[str, Any] = {"version": version.value} if code == 0 else {}
    if code := initialize(0):
        return answer | {"code": code, "detail": _error_string(cuda, code)}
    return answer | _device(cuda)


def _device(cuda: ctypes.CDLL) -> dict[str, Any]:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
        or _call(cuda, "cuDeviceGetAttribute", ctypes.byref(major), _MAJOR, device)
        or _call(cuda, "cuDeviceGetAttribute", ctypes.byref(minor), _MINOR, device)
    )
    if failed:
        return {}
    facts: dict[str, Any] = {"compute_capability": f"{major.value}.{minor.value}"}
    size = ctypes.c_size_t()  # of a MIG slice, that of the slice
    if not _call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(size), device) and size.value:
        facts["memory"] = size.value
    return facts


def _error_string(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    failed = _call(cuda, "cuGetErrorString", code, ctypes.byref(text))
    return "" if failed or text.value is None else text.value.decode(errors="replace")


def _call(cuda: ctypes.CDLL, name: str, *arguments: Any) -> int:  # noqa: ANN401 - of ctypes
    """Call a function of the driver; one that it lacks fails."""
    function = getattr(cuda, name, None)
    return int(function(*arguments)) if function else _MISSING


if __name__ == "__main__":
    sys.exit(main())
