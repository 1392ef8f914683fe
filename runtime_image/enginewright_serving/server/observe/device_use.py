"""Metrics of the device that the model runs on.

A call of NVML takes as long as the driver does, with a lost device forever. So a thread samples at intervals, and
old samples are not exposed.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from enginewright_runtime.core.nvml import LIBRARY
from enginewright_runtime.core.nvml_use import DeviceMeter, DeviceUse
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

_log: Final = logging.getLogger(__name__)
_INTERVAL: Final = 5.0  # seconds between samples, less than scrape intervals
_OLDEST: Final = 30.0  # seconds after which a sample no longer describes the device
_LABELS: Final = ("model", "revision")


class DeviceSampler:
    """The latest sample of the device; the thread ends where NVML reports nothing."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = library
        self._sample: tuple[float, DeviceUse] | None = None
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def latest(self) -> DeviceUse | None:
        """Return the latest sample, unless it is too old; never block."""
        sample = self._sample
        if sample is None or time.monotonic() - sample[0] > _OLDEST:
            return None
        return sample[1]

    def _run(self) -> None:
        meter = DeviceMeter.open(self._library)
        if meter is None:
            _log.info("NVML does not report one device: no metrics of its memory and utilization")
            return
        while True:
            if (use := meter.read()) is not None:
                self._sample = time.monotonic(), use
            time.sleep(_INTERVAL)


class DeviceMetrics(Collector):
    """The device's metrics; each is absent while its value is unknown."""

    def __init__(self, model: str, revision: str, latest: Callable[[], DeviceUse | None]) -> None:
        self._labels = (model, revision)
        self._latest = latest

    @override
    def collect(self) -> Iterable[Metric]:
        use = self._latest()
        if use is None:
            return
        yield self._gauge(
            "enginewright_gpu_memory_bytes",
            "Memory in use on the pod's GPU or MIG slice, by all processes; absent if NVML does not report one device.",
            use.used,
        )
        yield self._gauge(
            "enginewright_gpu_memory_size_bytes",
            "Memory of the pod's GPU or MIG slice; absent likewise.",
            use.size,
        )
        if use.utilization is not None:
            yield self._gauge(
                "enginewright_gpu_utilization_ratio",
                "Share of time in which a kernel ran on the pod's GPU, of any process, 0 to 1; absent for MIG slices.",
                use.utilization,
            )

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family
