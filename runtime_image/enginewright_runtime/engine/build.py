"""Builds the engine, unless the store has it, and serves its progress meanwhile."""

import shutil
from typing import Final

from enginewright_contract.report import StageReport
from enginewright_contract.task import SIDECAR_PORT, EngineTask

from enginewright_runtime.core.paths import Paths
from enginewright_runtime.engine import builder
from enginewright_runtime.engine.handoff import (
    ENGINE_FOLDER,
    PREPARED_FOLDER,
    EngineBuilt,
    describe_published,
    summary,
)
from enginewright_runtime.engine.timings import Timings
from enginewright_runtime.session import driver
from enginewright_runtime.store import ENGINE, open_store
from enginewright_runtime.tensorrt import progress
from enginewright_runtime.tensorrt.target import refuse_unserved

_PROGRESS: Final = "progress.json"
STAGE: Final = "build"


def run(task: EngineTask, paths: Paths, port: int = SIDECAR_PORT) -> StageReport:
    """Fetch the prepared model and build the engine, serving progress on `port`; leaves `EngineBuilt`."""
    manifest = open_store(paths, ENGINE).find_intact(task.engine_key)
    if manifest is not None:
        EngineBuilt().write(paths.work)
        return StageReport(
            stage=STAGE,
            ok=True,
            message=f"cached: the store has engine {task.engine_key[:12]}",
            engine=describe_published(manifest, is_cached=True),
        )
    refuse_unserved(task.recipe)
    with progress.serve(paths.work / _PROGRESS, port):
        prepared = paths.work / PREPARED_FOLDER
        shutil.rmtree(prepared, ignore_errors=True)
        progress.report_progress(paths.work / _PROGRESS, 0, "Fetching the prepared model")
        timings = Timings(open_store(paths), task.recipe, paths.work)
        timings.load()
        request = builder.BuildRequest(
            manifest=open_store(paths).read(task.prepared_key, prepared),
            prepared=prepared,
            recipe=task.recipe,
            out=paths.work / ENGINE_FOLDER,
            progress=paths.work / _PROGRESS,
            timing_cache=timings.path,
        )
        built = builder.build(request)
        timings.save(request.out / builder.BUILD_LOG)
    version = None if task.recipe.ahead_of_time else driver.release()
    EngineBuilt(engine=built.engine, files=built.files, driver=version).write(paths.work)
    warning = f"; {built.findings[0].cause}" if built.findings else ""
    return StageReport(
        stage=STAGE,
        ok=True,
        message=f"built in {built.engine.build_seconds:.1f} s: {summary(built.engine)}{warning}",
        findings=built.findings,
        facts={"engine": built.engine.model_dump(mode="json")},
    )
