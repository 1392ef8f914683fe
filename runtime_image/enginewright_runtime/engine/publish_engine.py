"""Publishes the engine to the store as a self-contained artefact, and reports its facts."""

from typing import Final

from enginewright_contract.manifest import MODEL_NAME, ArtifactFile, EngineInfo, Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.report import StageReport
from enginewright_contract.task import EngineTask

from enginewright_runtime import oci
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import MODEL_FOLDER, PROCESSING_FOLDER
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.pipeline import own_pipeline
from enginewright_runtime.engine.handoff import (
    DRIVER,
    ENGINE_FOLDER,
    PREPARED_FOLDER,
    EngineBenchmarked,
    EngineBuilt,
    EngineVerified,
    describe_published,
    summary,
)
from enginewright_runtime.engine.verify import read_manifest
from enginewright_runtime.store import ENGINE, credit, open_store

STAGE: Final = "publish-engine"
_PUSH_SECONDS: Final = 120  # the pod holds a device; a Job that only looks has more time


def run(task: EngineTask, paths: Paths) -> StageReport:
    """Publish the files of the earlier stages, in place of what another release left under the key; idempotent."""
    built = EngineBuilt.read(paths.work)
    store = open_store(paths, ENGINE)
    if built.engine is None:
        manifest, cached = store.find(task.engine_key), True
        if manifest is not None and not credit.is_credited(store, manifest, own_pipeline()):
            manifest = None
    else:
        manifest, cached = _publish(task, paths, built, built.engine)
    if manifest is None or manifest.engine is None:
        raise StageFailure(
            Reason.ARTIFACT_MISSING,
            f"engine {task.engine_key[:12]} was removed from the store meanwhile, or replaced",
            remedy="no action needed: it is rebuilt",
        )
    pushed = oci.push(paths, store, manifest, _PUSH_SECONDS)
    did = "the store already has" if cached else "published"
    return StageReport(
        stage=STAGE,
        ok=True,
        message=pushed.describe(f"{did} engine {task.engine_key[:12]}: {summary(manifest.engine)}"),
        engine=pushed.annotate(describe_published(manifest, is_cached=cached)),
        facts={"manifest": manifest.model_dump(mode="json")},
    )


def _publish(
    task: EngineTask, paths: Paths, built: EngineBuilt, engine: EngineInfo
) -> tuple[Manifest, bool]:
    verified = EngineVerified.read(paths.work)
    benchmarked = EngineBenchmarked.read(paths.work)
    prepared = read_manifest(paths.work)
    info = engine.model_copy(
        update={
            "latency": benchmarked.latency,
            "latencies": benchmarked.latencies,
            "backends": benchmarked.backends,
            "parity_max_abs_error": verified.parity_max_abs_error,
            "parity": verified.parity,
        }
    )

    def describe(files: tuple[ArtifactFile, ...]) -> Manifest:
        versions = prepared.versions | {task.recipe.backend: task.recipe.backend_version}
        versions |= {DRIVER: built.driver} if built.driver else {}
        return prepared.model_copy(
            update={
                "key": task.engine_key,
                "model": f"{MODEL_FOLDER}/{MODEL_NAME}",
                "files": files,
                "versions": versions,
                "engine": info,
            }
        )

    golden = [prepared.golden_inputs, prepared.golden_outputs]
    golden += [path for path in (prepared.golden_expected, prepared.golden_parts) if path]
    files = {name: paths.work / ENGINE_FOLDER / name for name in built.files}
    steps = [file.path for file in prepared.files if file.path.startswith(f"{PROCESSING_FOLDER}/")]
    files |= {name: paths.work / PREPARED_FOLDER / name for name in (*golden, *steps)}
    store = open_store(paths, ENGINE)
    return credit.publish(store, task.engine_key, files, describe, own_pipeline())
