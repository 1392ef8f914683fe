"""Measures the engine on the device that it was built for, where there is one."""

from typing import Final

from enginewright.contract.manifest import Latency
from enginewright.contract.report import StageReport
from enginewright.contract.task import EngineTask

from enginewright_runtime.digests import MODEL_NAME
from enginewright_runtime.handoff import MODEL_FOLDER
from enginewright_runtime.isolation import run_isolated
from enginewright_runtime.paths import Paths
from enginewright_runtime.stages.engine import handoff
from enginewright_runtime.stages.engine.handoff import (
    ENGINE_FOLDER,
    EngineBenchmarked,
    EngineBuilt,
)
from enginewright_runtime.stages.engine.verify import read_manifest

STAGE: Final = "benchmark"
_RUNNER: Final = "enginewright_runtime.stages.engine.device_run"


def run(task: EngineTask, paths: Paths) -> StageReport:
    """Measure latency after a warm-up; leaves `EngineBenchmarked`.

    Raises:
        StageFailure: as `backends.create`.
    """
    built = EngineBuilt.pick_up(paths.work)
    if built.engine is None or task.recipe.ahead_of_time:
        EngineBenchmarked().leave(paths.work)
        if built.engine is None:
            return handoff.cached(STAGE)
        return StageReport(
            stage=STAGE, ok=True, message="not measured: the engine was built without a device"
        )
    inputs, outputs = handoff.samples(paths.work, read_manifest(paths.work))
    answer = run_isolated(
        f"{_RUNNER}:benchmark",
        f"measuring the engine on backend {task.recipe.backend}",
        backend=task.recipe.backend,
        model=str(paths.work / ENGINE_FOLDER / MODEL_FOLDER / MODEL_NAME),
        inputs=str(inputs),
        outputs=str(outputs),
    )
    latency = Latency.model_validate(answer)
    EngineBenchmarked(latency=latency).leave(paths.work)
    return StageReport(
        stage=STAGE,
        ok=True,
        message=f"p50 {latency.p50 * 1000:.2f} ms, p90 {latency.p90 * 1000:.2f} ms,"
        f" p99 {latency.p99 * 1000:.2f} ms over {latency.samples} runs",
    )
