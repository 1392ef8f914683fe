"""Copies the artefact to serve from the store into a serving pod and verifies every file."""

from enginewright.contract.report import StageReport
from enginewright.contract.task import FETCH_ARTIFACT, ServeTask

from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.store import ENGINE, PREPARED, Store


def run(task: ServeTask, paths: Paths) -> StageReport:
    """Copy the artefact that the task names, an engine or a prepared model, to its folder.

    Raises:
        StageFailure: ArtifactMissing, ArtifactCorrupt, EngineCorrupt or StoreUnavailable.
    """
    kind = PREPARED if task.engine_key is None else ENGINE
    manifest = Store(paths.store, kind).read(task.engine_key or task.prepared_key, paths.artifact)
    size = sum(file.size_bytes for file in manifest.files)
    return StageReport(
        stage=FETCH_ARTIFACT,
        ok=True,
        message=f"{kind.title} {manifest.key[:12]}, {format_bytes(size)}, all digests match",
    )
