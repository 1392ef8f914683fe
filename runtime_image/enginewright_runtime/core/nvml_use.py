"""Memory and utilization of the container's device, as NVIDIA's management library (NVML) reports them."""

import ctypes
from dataclasses import dataclass
from typing import Final, Self

from enginewright_runtime.core.nvml import LIBRARY, NvmlMemory

_ENABLED: Final = 1  # NVML_DEVICE_MIG_ENABLE


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t of nvml.h; percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


@dataclass(frozen=True)
class DeviceUse:
    """What all processes use of one device, or of one MIG slice."""

    used: int  # bytes
    size: int  # bytes
    # share of the driver's last sample period in which a kernel ran, 0 to 1; not reported of MIG slices,
    # where the GPU's figure is that of all slices
    utilization: float | None


@dataclass(frozen=True)
class DeviceMeter:
    """The one device, or the one MIG slice, of this container."""

    _nvml: ctypes.CDLL
    _device: ctypes.c_void_p
    _whole: bool  # not a slice

    @classmethod
    def open(cls, library: str = LIBRARY) -> Self | None:
        """Find the device; return None without a driver, or with several: CUDA numbers them in another order than NVML."""
        try:
            nvml = ctypes.CDLL(library)
            count, device = ctypes.c_uint(), ctypes.c_void_p()
            if (
                nvml.nvmlInit_v2()
                or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
                or count.value != 1
                or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
            ):
                return None
            if not _is_sliced(nvml, device):
                return cls(nvml, device, _whole=True)
            slices = _slices(nvml, device)
        except (OSError, AttributeError):
            return None
        return cls(nvml, slices[0], _whole=False) if len(slices) == 1 else None

    def read(self) -> DeviceUse | None:
        """Return what is in use now, or None if NVML fails; it may block for as long as the driver does."""
        memory = NvmlMemory()
        if self._nvml.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(memory)):
            return None
        return DeviceUse(int(memory.used), int(memory.total), self._utilization())

    def _utilization(self) -> float | None:
        rates = _Utilization()
        if not self._whole:
            return None
        failed = self._nvml.nvmlDeviceGetUtilizationRates(self._device, ctypes.byref(rates))
        return None if failed else rates.gpu / 100


def _is_sliced(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> bool:
    """Whether MIG is enabled; devices without MIG have no such mode."""
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    failed = nvml.nvmlDeviceGetMigMode(device, ctypes.byref(current), ctypes.byref(pending))
    return not failed and current.value == _ENABLED


def _slices(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    """Return the MIG slices of `device` that this container may use."""
    most = ctypes.c_uint()
    if nvml.nvmlDeviceGetMaxMigDeviceCount(device, ctypes.byref(most)):
        return []
    slices = []
    for index in range(most.value):
        handle = ctypes.c_void_p()
        if not nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index, ctypes.byref(handle)):
            slices.append(handle)
    return slices
