"""A whole start as on a device: the real server, whose backend for CPUs reports that it has one.

What only a device can show is in tests/gpu.
"""

import textwrap
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.task import ServeTask, ShapeProfile
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.test_device_use import nvml
from tests.support.serving import Server, json_inputs, linear_model, write_artifact
from tests.support.waiting import until

GIB = 1 << 30
DEVICE = """
import onnxruntime as ort
from enginewright_contract.execution import Driver
from enginewright_serving.server.startup import prepare as startup
from enginewright_serving.server.observe.device_use import DeviceSampler
from enginewright_runtime.session.base import CpuBackend
from enginewright_runtime.session.driver import Device
CpuBackend.needs_driver = CpuBackend.caches_kernels = True
CpuBackend.host_memory = lambda self: ort.OrtValue.ortvalue_from_shape_and_type
startup.ask_device = lambda backend: Device(
    Driver(needed=True, present=True, version="13.1"), "8.9", {memory}
)
DeviceSampler.__init__.__defaults__ = ({library!r},)
"""


@pytest.fixture
def task(tmp_path: Path) -> ServeTask:
    shapes = (ShapeProfile(input="x", min=(1, 8), opt=(2, 8), max=(16, 8)),)
    x = np.arange(8, dtype=np.float32)[None]
    return write_artifact(tmp_path, linear_model(), [{"x": x}], shapes=shapes)


def device(library: str, memory: int = GIB) -> str:
    return textwrap.dedent(DEVICE.format(library=library, memory=memory))


def series(server: Server) -> dict[str, float]:
    """Return the device's series."""
    text = server.get("/metrics").body.decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("enginewright_gpu")
    }


def test_a_pod_on_a_device_reports_it_and_has_warmed_up(tmp_path: Path, task: ServeTask) -> None:
    with Server(tmp_path, task, before=device(nvml(tmp_path))) as server:
        until(lambda: series(server), "a sample of the device")
        assert series(server) == {
            "enginewright_gpu_memory_bytes": 42,
            "enginewright_gpu_memory_size_bytes": 80,
            "enginewright_gpu_utilization_ratio": 0.73,
        }
        report = server.get("/v2/models/m/execution").json()
        inputs = report["details"]["inputs"]
        assert inputs["direct"] in (True, False)
        assert inputs["seconds"].keys() == {"usual", "direct"}
        assert "runtime_cache" not in report["details"], "there is no engine"
        warm = {bucket["elements"] for bucket in report["buckets"]}
        assert {rows * 8 for rows in (1, 2, 4, 8, 16)} <= warm
        x = np.arange(8, dtype=np.float32)
        answer = server.post(json_inputs(x=x[None]) | {"outputs": [{"name": "y"}]})
        (y,) = answer.json()["outputs"]
        w = np.arange(32, dtype=np.float32).reshape(8, 4) / 8
        np.testing.assert_allclose(y["data"], x @ w, rtol=1e-5)


def test_without_nvml_it_serves_without_these_metrics(tmp_path: Path, task: ServeTask) -> None:
    with Server(tmp_path, task, before=device("libnvidia-ml-that-is-nowhere.so.1")) as server:
        assert server.get("/v2/health/ready").status == 200
        assert series(server) == {}
