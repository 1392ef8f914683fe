"""Builds the engine, unless the store has one that passes, and serves its progress meanwhile."""

import logging
import shutil
from typing import Final

from enginewright_contract.manifest import Manifest
from enginewright_contract.report import StageReport
from enginewright_contract.task import SIDECAR_PORT, EngineTask

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import GOLDEN_FOLDER, PROCESSING_FOLDER
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.pipeline import own_pipeline
from enginewright_runtime.engine import builder, verify
from enginewright_runtime.engine.handoff import (
    DRIVER,
    ENGINE_FOLDER,
    PREPARED_FOLDER,
    EngineBuilt,
    describe_published,
    summary,
)
from enginewright_runtime.engine.timings import Timings
from enginewright_runtime.session import driver
from enginewright_runtime.store import ENGINE, Store, credit, open_store
from enginewright_runtime.tensorrt import progress
from enginewright_runtime.tensorrt.target import refuse_unserved

_log: Final = logging.getLogger(__name__)
_PROGRESS: Final = "progress.json"
STAGE: Final = "build"
_OF_PREPARED: Final = (f"{GOLDEN_FOLDER}/", f"{PROCESSING_FOLDER}/")  # files of the prepared model


def run(task: EngineTask, paths: Paths, port: int = SIDECAR_PORT) -> StageReport:
    """Fetch the prepared model and build the engine, serving progress on `port`; leaves `EngineBuilt`.

    An engine in the store that this release is not credited with is taken if it passes all checks, and
    proved by the next stages as one that was built.
    """
    store = open_store(paths, ENGINE)
    stored = store.find_intact(task.engine_key)
    if stored is not None and credit.is_credited(store, stored, own_pipeline()):
        EngineBuilt().write(paths.work)
        return StageReport(
            stage=STAGE,
            ok=True,
            message=f"cached: the store has engine {task.engine_key[:12]}",
            engine=describe_published(stored, is_cached=True),
        )
    refuse_unserved(task.recipe)
    with progress.serve(paths.work / _PROGRESS, port):
        prepared = paths.work / PREPARED_FOLDER
        shutil.rmtree(prepared, ignore_errors=True)
        progress.report_progress(paths.work / _PROGRESS, 0, "Fetching the prepared model")
        manifest = open_store(paths).read(task.prepared_key, prepared)
        if stored is not None and (taken := _take_stored(task, paths, store, manifest)):
            return taken
        timings = Timings(open_store(paths), task.recipe, paths.work)
        timings.load()
        request = builder.BuildRequest(
            manifest=manifest,
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


def _take_stored(
    task: EngineTask, paths: Paths, store: Store, prepared: Manifest
) -> StageReport | None:
    """Take the engine that another release left in the store, if it passes; else it is built again."""
    folder = paths.work / ENGINE_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    try:
        manifest = store.read(task.engine_key, folder)
        if manifest.engine is None:
            return None
        verify.check(task, paths, manifest.engine, prepared)
    except StageFailure as failure:
        _log.warning("the engine in the store is not used: %s", failure.message)
        return None
    names = (file.path for file in manifest.files)
    EngineBuilt(
        engine=manifest.engine,
        files=tuple(name for name in names if not name.startswith(_OF_PREPARED)),
        driver=manifest.versions.get(DRIVER),
    ).write(paths.work)
    return StageReport(
        stage=STAGE,
        ok=True,
        message=f"the store has engine {task.engine_key[:12]}, which another release or an import left:"
        f" it is proved again: {summary(manifest.engine)}",
        facts={"engine": manifest.engine.model_dump(mode="json")},
    )
