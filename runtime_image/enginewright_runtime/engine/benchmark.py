"""Measures the engine on the device that it was built for, if there is one, and other backends if requested."""

from typing import Final

from enginewright_contract.manifest import MODEL_NAME, BackendLatency, Latency
from enginewright_contract.report import StageReport
from enginewright_contract.task import EngineTask

from enginewright_runtime.core.handoff import MODEL_FOLDER
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.engine import comparison, handoff
from enginewright_runtime.engine.handoff import (
    ENGINE_FOLDER,
    PREPARED_FOLDER,
    EngineBenchmarked,
    EngineBuilt,
)
from enginewright_runtime.engine.verify import read_manifest
from enginewright_runtime.proof.latency.comparing import measure

STAGE: Final = "benchmark"


def run(task: EngineTask, paths: Paths) -> StageReport:
    """Measure every shape profile after a warm-up; leaves `EngineBenchmarked`."""
    built = EngineBuilt.read(paths.work)
    if built.engine is None or task.recipe.ahead_of_time:
        EngineBenchmarked().write(paths.work)
        if built.engine is None:
            return handoff.report_cached(STAGE)
        return StageReport(
            stage=STAGE,
            ok=True,
            message="not measured: the engine was built ahead of time, without a device",
        )
    manifest = read_manifest(paths.work)
    model = paths.work / ENGINE_FOLDER / MODEL_FOLDER / MODEL_NAME
    inputs = paths.work / PREPARED_FOLDER / manifest.golden_inputs
    result = measure(model, task.recipe.backend, inputs)
    backends: tuple[BackendLatency, ...] | None = None
    if task.benchmark_backends:
        own = BackendLatency(backend=task.recipe.backend, latency=result.usual)
        backends = (
            own,
            *comparison.compare_backends(task.benchmark_backends, paths.work, manifest),
        )
    EngineBenchmarked(latency=result.usual, latencies=result.latencies, backends=backends).write(
        paths.work
    )
    return StageReport(
        stage=STAGE,
        ok=True,
        message="; ".join(
            (
                *(_describe(latency) for latency in result.latencies),
                *(_of_backend(backend) for backend in (backends or ())[1:]),
            )
        ),
        facts={
            "latencies": [latency.model_dump(mode="json") for latency in result.latencies],
            "backends": [backend.model_dump(mode="json") for backend in backends or ()],
        },
    )


def _of_backend(compared: BackendLatency) -> str:
    if compared.latency is None:
        return f"backend {compared.backend} is excluded: {compared.excluded}"
    return f"prepared model on backend {compared.backend}, {_describe(compared.latency)}"


def _describe(latency: Latency) -> str:
    text = (
        f"{latency.shapes}: p50 {latency.p50 * 1000:.2f} ms, p90 {latency.p90 * 1000:.2f} ms,"
        f" p99 {latency.p99 * 1000:.2f} ms over {latency.samples} runs"
    )
    if latency.throughput is not None:
        text += f", {latency.throughput:.4g} rows/s"
    if latency.peak_device_memory_bytes is not None:
        text += f", {format_bytes(latency.peak_device_memory_bytes)} of device memory"
    return text
