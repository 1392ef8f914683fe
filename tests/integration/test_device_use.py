"""Memory and utilization of a device, read from a stand-in with nvml.h's signatures; absent without one."""

import threading
from pathlib import Path

import pytest
from enginewright_runtime.core.nvml import device_names
from enginewright_runtime.core.nvml_use import DeviceMeter, DeviceUse
from enginewright_serving.server.observe import device_use
from enginewright_serving.server.observe.device_use import DeviceMetrics, DeviceSampler
from enginewright_serving.server.observe.metrics import Metrics
from prometheus_client.parser import text_string_to_metric_families

from tests.support.extensions import compile_c
from tests.support.optional import present
from tests.support.waiting import until

NVML = """
#include <stdio.h>
#include <unistd.h>
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
#define GPU ((void *)0xd0)
#define SLICE ((void *)0x51)
int nvmlInit_v2(void) { return NO_DRIVER; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = DEVICES; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned size) {
    snprintf(name, size, "NVIDIA H100"); return device != GPU;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = GPU; return index; }
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    *current = SLICES > 0; *pending = 7; return device != GPU || SLICES < 0 ? 3 : 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { *count = 7; return device != GPU; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice) {
    *slice = SLICE; return index >= 2 && index < 2 + SLICES ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    while (HANGS) pause();
    memory->total = device == SLICE ? 10 : 80; memory->free = 5; memory->used = device == SLICE ? 3 : 42;
    return FAILS;
}
int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
    rates->gpu = 73; rates->memory = 9; return device != GPU;
}
"""
USUAL = {"NO_DRIVER": 0, "DEVICES": 1, "SLICES": -1, "HANGS": 0, "FAILS": 0}


def nvml(folder: Path, **differs: int) -> str:
    defined = [f"-D{name}=({value})" for name, value in (USUAL | differs).items()]
    return compile_c(folder / "libnvidia-ml.so", NVML, *defined)


@pytest.mark.parametrize(
    ("differs", "use"),
    [
        ({}, DeviceUse(42, 80, 0.73)),
        ({"SLICES": 0}, DeviceUse(42, 80, 0.73)),
        ({"SLICES": 1}, DeviceUse(3, 10, None)),
    ],
    ids=["a device without MIG", "MIG is disabled", "a slice"],
)
def test_utilization_of_a_device(differs: dict[str, int], use: DeviceUse, tmp_path: Path) -> None:
    meter = present(DeviceMeter.open(nvml(tmp_path, **differs)))
    assert meter.read() == use


@pytest.mark.parametrize(
    "differs", [{"NO_DRIVER": 9}, {"DEVICES": 2}, {"DEVICES": 0}, {"SLICES": 2}]
)
def test_nothing_is_reported_of_an_unknown_device(differs: dict[str, int], tmp_path: Path) -> None:
    assert DeviceMeter.open(nvml(tmp_path, **differs)) is None


@pytest.mark.parametrize(
    ("differs", "names"),
    [
        ({}, ["NVIDIA H100"]),
        ({"DEVICES": 2}, ["NVIDIA H100", "device 1"]),
        ({"DEVICES": 0}, []),
        ({"NO_DRIVER": 9}, []),
    ],
)
def test_names_of_devices(differs: dict[str, int], names: list[str], tmp_path: Path) -> None:
    assert device_names(nvml(tmp_path, **differs)) == names
    assert device_names("libnvidia-ml-that-is-nowhere.so.1") == []
    assert device_names("libc.so.6") == []


def test_nothing_is_reported_without_nvml() -> None:
    assert DeviceMeter.open("libnvidia-ml-that-is-nowhere.so.1") is None
    assert DeviceMeter.open("libc.so.6") is None


def test_a_failed_call_is_no_sample(tmp_path: Path) -> None:
    meter = present(DeviceMeter.open(nvml(tmp_path, FAILS=15)))
    assert meter.read() is None


def read_exposition(sampler: DeviceSampler) -> dict[str, float]:
    """Return the device's series as a scrape has them."""
    metrics = Metrics("rank", "r1")
    metrics.add(DeviceMetrics("rank", "r1", sampler.latest))
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(metrics.expose().decode())
        for sample in family.samples
        if sample.name.startswith("enginewright_gpu")
        and sample.labels == {"model": "rank", "revision": "r1"}
    }


def test_the_device_is_exposed_until_its_sample_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = DeviceSampler(nvml(tmp_path))
    until(lambda: sampler.latest() is not None, "a sample")
    assert read_exposition(sampler) == {
        "enginewright_gpu_memory_bytes": 42,
        "enginewright_gpu_memory_size_bytes": 80,
        "enginewright_gpu_utilization_ratio": 0.73,
    }
    monkeypatch.setattr(device_use, "_OLDEST", 0.0)
    assert read_exposition(sampler) == {}


def test_a_slice_has_no_utilization(tmp_path: Path) -> None:
    sampler = DeviceSampler(nvml(tmp_path, SLICES=1))
    until(lambda: sampler.latest() is not None, "a sample")
    assert read_exposition(sampler) == {
        "enginewright_gpu_memory_bytes": 3,
        "enginewright_gpu_memory_size_bytes": 10,
    }


# fault: Devices | a call of NVIDIA's management library that never returns | its own thread makes it;
#   a scrape reads the latest sample | the device's metrics are absent after 30 s
def test_a_driver_that_hangs_holds_up_no_scrape(tmp_path: Path) -> None:
    sampler = DeviceSampler(nvml(tmp_path, HANGS=1))
    assert any(thread.name == "nvml" for thread in threading.enumerate())
    assert read_exposition(sampler) == {}


def test_without_nvml_the_thread_ends(tmp_path: Path) -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "nvml"}
    sampler = DeviceSampler(str(tmp_path / "none.so"))
    until(
        lambda: {item for item in threading.enumerate() if item.name == "nvml"} <= before,
        "the end of the thread",
    )
    assert read_exposition(sampler) == {}
