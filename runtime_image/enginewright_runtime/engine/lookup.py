"""Checks whether an engine must be built, or one in the store proved, before a device is requested."""

from enginewright_contract.report import StageReport
from enginewright_contract.task import LOOKUP_STAGE, EngineTask

from enginewright_runtime import oci
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.pipeline import own_pipeline
from enginewright_runtime.engine.handoff import describe_published, summary
from enginewright_runtime.store import ENGINE, credit, open_store


def run(task: EngineTask, paths: Paths) -> StageReport:
    """Look for the engine in the store, checking every file; a missing engine is not a failure."""
    store = open_store(paths, ENGINE)
    manifest = store.find_intact(task.engine_key)
    if manifest is None or manifest.engine is None:
        return StageReport(
            stage=LOOKUP_STAGE,
            ok=True,
            message=f"the store has no complete engine {task.engine_key[:12]}: it will be built",
        )
    if not credit.is_credited(store, manifest, own_pipeline()):
        return StageReport(
            stage=LOOKUP_STAGE,
            ok=True,
            message=f"the store has engine {task.engine_key[:12]}, which this release has not proved:"
            " it will be, or built again",
        )
    pushed = oci.push(paths, store, manifest)
    return StageReport(
        stage=LOOKUP_STAGE,
        ok=True,
        message=pushed.describe(
            f"the store has engine {task.engine_key[:12]}: {summary(manifest.engine)}"
        ),
        engine=pushed.annotate(describe_published(manifest, is_cached=True)),
    )
