"""Calls into NVIDIA's driver from a separate process: memory that it allocates, and a kernel that faults.

`hold` and `FAULT` use the driver's library alone, so they need no compiler and no toolkit.
"""

import ctypes
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# allocates memory until only `spare` bytes are free, reports it, and frees it when its input ends
_HOLD: Final = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code: sys.exit(f"driver error {code}")
check(cuda.cuInit(0))
device, context = ctypes.c_int(), ctypes.c_void_p()
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
free, total, at = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
check(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(free.value - int(sys.argv[1]))))
print(free.value, flush=True)
sys.stdin.read()
"""

# Loaded by the server's interpreter through `sitecustomize`: once the file in FAULT_FILE exists, a thread of the
# server launches a kernel that writes to an address that is not mapped, in the context that ONNX Runtime uses.
FAULT: Final = '''
import os, threading, time
def fault(path):
    import ctypes
    while not os.path.exists(path):
        time.sleep(0.05)
    cuda = ctypes.CDLL("libcuda.so.1")
    ptx = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry fault() { .reg .u64 %a; .reg .u32 %v; mov.u64 %a, 8; mov.u32 %v, 1; st.global.u32 [%a], %v; ret; }
"""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    codes = [cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0)]
    codes.append(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    codes.append(cuda.cuCtxSetCurrent(context))
    codes.append(cuda.cuModuleLoadData(ctypes.byref(module), ptx))
    codes.append(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"fault"))
    codes.append(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
    codes.append(cuda.cuCtxSynchronize())
    with open(path + ".done", "w") as file:
        file.write(repr(codes))
if os.environ.get("FAULT_FILE") and "serve" in open("/proc/self/cmdline").read().split("\\0"):
    threading.Thread(target=fault, args=(os.environ["FAULT_FILE"],), daemon=True).start()
'''


@contextmanager
def hold(spare: int) -> Iterator[int]:
    """Allocate all memory of the device but `spare` bytes; yield how many bytes were free before."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(spare)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None  # noqa: S101 - piped
    line = process.stdout.readline()
    try:
        yield int(line or 0)
    finally:
        process.communicate()
        time.sleep(0.5)  # the driver frees it after the process has ended


def read_used_bytes() -> int | None:
    """Return the bytes of device 0 that are in use, from NVML, if it reports them."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    failed = (
        nvml.nvmlInit_v2()
        or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
        or nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    )
    return None if failed else int(memory[2])
