"""Measures the engine on the device that it was built for, where there is one."""

from typing import Final

from enginewright.contract.manifest import Latency
from enginewright.contract.report import StageReport
from enginewright.contract.task import EngineTask

from enginewright_runtime.paths import Paths
from enginewright_runtime.stages.engine import handoff
from enginewright_runtime.stages.engine.handoff import (
    EngineBenchmarked,
    EngineBuilt,
)
from enginewright_runtime.stages.engine.verify import read_manifest, run_on_device

STAGE: Final = "benchmark"
_RUNNER: Final = "enginewright_runtime.stages.engine.device_run:benchmark"


def run(task: EngineTask, paths: Paths) -> StageReport:
    """Measure latency after a warm-up; leaves `EngineBenchmarked`.

    Raises:
        StageFailure: as `verify.run_on_device`.
    """
    built = EngineBuilt.pick_up(paths.work)
    if built.engine is None or task.recipe.ahead_of_time:
        EngineBenchmarked().leave(paths.work)
        if built.engine is None:
            return handoff.cached(STAGE)
        return StageReport(
            stage=STAGE, ok=True, message="not measured: the engine was built without a device"
        )
    manifest = read_manifest(paths.work)
    answer = run_on_device(_RUNNER, "measuring the engine", task, paths, manifest, {})
    latency = Latency.model_validate(answer)
    EngineBenchmarked(latency=latency).leave(paths.work)
    return StageReport(
        stage=STAGE,
        ok=True,
        message=f"p50 {latency.p50 * 1000:.2f} ms, p90 {latency.p90 * 1000:.2f} ms,"
        f" p99 {latency.p99 * 1000:.2f} ms over {latency.samples} runs",
    )
