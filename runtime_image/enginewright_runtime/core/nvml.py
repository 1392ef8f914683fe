"""Critical errors (Xid), names and memory use of the devices, as NVIDIA's management library (NVML) reports them.

The driver brings the library. Without it, or where events are not permitted, as in a MIG instance or some
virtual machines, nothing is reported, and failing runs show later that the device is lost.
"""

import ctypes
from dataclasses import dataclass
from typing import Final, Self

LIBRARY: Final = "libnvidia-ml.so.1"
_XID_CRITICAL_ERROR: Final = 0x8  # nvmlEventTypeXidCriticalError of nvml.h
_ERROR_TIMEOUT: Final = 10  # nvmlReturn_t
_ERROR_GPU_IS_LOST: Final = 15
GPU_IS_LOST_XID: Final = 79  # "GPU has fallen off the bus"
_NAME_BYTES: Final = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE


class _EventData(ctypes.Structure):
    """nvmlEventData_t of nvml.h."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("event_type", ctypes.c_ulonglong),
        ("event_data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_t of nvml.h; bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def device_bytes(library: str = LIBRARY) -> int | None:
    """Return the bytes in use on device 0 by all processes, if reported.

    NVML has no figures by process in containers; an engine Job uses its device exclusively.
    """
    try:
        nvml = ctypes.CDLL(library)
        device, memory = ctypes.c_void_p(), NvmlMemory()
        failed = (
            nvml.nvmlInit_v2()
            or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
            or nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
        )
    except (OSError, AttributeError):
        return None
    return None if failed else int(memory.used)


def device_names(library: str = LIBRARY) -> list[str]:
    """Return the names of all devices that the driver reports here, none without a driver."""
    try:
        nvml = ctypes.CDLL(library)
        count = ctypes.c_uint()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        return [_name(nvml, index) for index in range(count.value)]
    except (OSError, AttributeError):
        return []


def _name(nvml: ctypes.CDLL, index: int) -> str:
    device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    failed = nvml.nvmlDeviceGetHandleByIndex_v2(
        index, ctypes.byref(device)
    ) or nvml.nvmlDeviceGetName(device, name, _NAME_BYTES)
    return f"device {index}" if failed else name.value.decode(errors="replace")


@dataclass(frozen=True)
class XidEvents:
    """The events of all devices that are visible in this container."""

    _nvml: ctypes.CDLL
    _events: ctypes.c_void_p

    @classmethod
    def open(cls, library: str = LIBRARY) -> Self | None:
        """Register for events; return None without a driver that supports them."""
        try:
            nvml = ctypes.CDLL(library)
            events, count = ctypes.c_void_p(), ctypes.c_uint()
            if (
                nvml.nvmlInit_v2()
                or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
                or nvml.nvmlEventSetCreate(ctypes.byref(events))
            ):
                return None
            registered = [_register(nvml, index, events) for index in range(count.value)]
        except (OSError, AttributeError):
            return None
        return cls(nvml, events) if any(registered) else None

    def wait(self, milliseconds: int) -> int | None:
        """Return the number of the next Xid, or None if there was none in time; raises OSError if waiting fails."""
        data = _EventData()
        code = self._nvml.nvmlEventSetWait_v2(self._events, ctypes.byref(data), milliseconds)
        if code == _ERROR_TIMEOUT:
            return None
        if code == _ERROR_GPU_IS_LOST:
            return GPU_IS_LOST_XID
        if code:
            raise OSError(f"nvmlEventSetWait_v2 fails with {code}")
        return int(data.event_data) if data.event_type == _XID_CRITICAL_ERROR else None


def _register(nvml: ctypes.CDLL, index: int, events: ctypes.c_void_p) -> bool:
    device = ctypes.c_void_p()
    failed = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) or (
        nvml.nvmlDeviceRegisterEvents(device, ctypes.c_ulonglong(_XID_CRITICAL_ERROR), events)
    )
    return not failed
