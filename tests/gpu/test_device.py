"""What only a device can show: its driver, its memory, and engines that were built for it running."""

import re
from pathlib import Path

import pytest
from enginewright_contract.engines import why_unusable
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.nvml import device_bytes
from enginewright_runtime.core.nvml_use import DeviceMeter
from enginewright_runtime.session.driver import Device

from tests.support.engines import EnginePlace, matmul, recipe

OTHER = {"8.9": "8.6"}  # a compute capability that is not this device's


@pytest.fixture
def place(tmp_path: Path, device: Device) -> EnginePlace:
    """Return a place with a prepared model, where TensorRT-RTX serves on this device."""
    if unusable := why_unusable("tensorrt-rtx", device.compute_capability):
        pytest.skip(unusable)
    made = EnginePlace(tmp_path, fresh=True)
    made.prepare_model(matmul())
    return made


def test_the_driver_names_the_device(device: Device) -> None:
    assert device.driver.present
    assert re.fullmatch(r"\d+\.\d", device.compute_capability or "")


def test_memory_of_the_device_is_told() -> None:
    assert (device_bytes() or 0) > 0


def test_its_use_is_told() -> None:
    """Utilization of a whole device only; compare with `nvidia-smi`."""
    meter = DeviceMeter.open()
    assert meter is not None
    use = meter.read()
    assert use is not None
    assert 0 < use.used < use.size
    assert use.utilization is None or 0 <= use.utilization <= 1


def test_the_driver_and_nvml_agree_on_the_size(device: Device) -> None:
    """CUDA's figure leaves out what the driver keeps for itself."""
    meter = DeviceMeter.open()
    assert meter is not None
    use = meter.read()
    assert use is not None
    assert device.memory is not None
    assert 0.9 * use.size < device.memory <= use.size


def test_an_engine_built_on_the_device_is_proven_and_measured(
    place: EnginePlace, device: Device
) -> None:
    task = place.engine_task(recipe(device.compute_capability, ahead_of_time=False))
    outcomes = place.build_engine(task)
    assert {name: outcome.code for name, outcome in outcomes.items() if outcome.code} == {}
    engine = place.engine_manifest(task).engine
    assert engine is not None
    assert engine.compute_capabilities == (device.compute_capability,)
    assert engine.nodes_accelerated == engine.nodes_total
    assert engine.parity_max_abs_error is not None
    assert engine.latency is not None
    assert engine.latency.peak_device_memory_bytes
    published = outcomes["publish-engine"].report.engine
    assert published is not None
    assert len(published.latencies) == len(engine.latencies) > 0
    assert published.parity_with == "prepared"


def test_a_class_of_another_device_is_refused_before_anything_is_built(
    place: EnginePlace, device: Device
) -> None:
    other = OTHER.get(device.compute_capability or "", "8.9")
    task = place.engine_task(recipe(other, ahead_of_time=False))
    build = place.build_engine(task)["build"]
    assert build.report.reason is Reason.ENGINE_INCOMPATIBLE
    assert f"this device has {device.compute_capability}" in build.message
