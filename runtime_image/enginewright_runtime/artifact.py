"""Brings a prepared model from the store into a serving pod, every file checked."""

from enginewright.contract.report import StageReport
from enginewright.contract.task import ServeTask

from enginewright_runtime.logs import in_words
from enginewright_runtime.paths import Paths
from enginewright_runtime.store import Store


def run(task: ServeTask, paths: Paths) -> StageReport:
    """Copy the artefact that the task names to the artefact folder.

    Raises:
        StageFailure: ArtifactMissing, ArtifactCorrupt or StoreUnavailable.
    """
    manifest = Store(paths.store).read(task.prepared_key, paths.artifact)
    size = sum(file.size_bytes for file in manifest.files)
    return StageReport(
        stage="fetch-artifact",
        ok=True,
        message=f"prepared model {task.prepared_key[:12]}, {in_words(size)}, all digests match",
    )
