"""Copies the artefact to serve from the store into a serving pod and verifies every file.

A canary's pods get the golden samples of the revision that serves too, and pods of an engine its prepared
model where that may serve sizes outside the engine's profiles. They serve without these.
"""

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from enginewright.contract.report import StageReport
from enginewright.contract.task import FETCH_ARTIFACT, STABLE_FAILURE, ServeTask

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.serve.manifest import profiles_exclude_sizes
from enginewright_runtime.store import ENGINE, PREPARED, MountedImage, NodeCache, Store, open_store

_log: Final = logging.getLogger(__name__)


def run(task: ServeTask, paths: Paths) -> StageReport:
    """Copy the artefact that the task names, an engine or a prepared model, to its folder.

    Raises:
        StageFailure: ArtifactMissing, ArtifactCorrupt, EngineCorrupt or StoreUnavailable.
    """
    kind = PREPARED if task.engine_key is None else ENGINE
    cache = NodeCache(paths.node_cache) if paths.node_cache else None
    image = MountedImage(paths.artifact_image) if paths.artifact_image.is_dir() else None
    manifest = open_store(paths, kind, cache, image).read(
        task.engine_key or task.prepared_key, paths.artifact
    )
    size = sum(file.size_bytes for file in manifest.files)
    cached = f", {format_bytes(cache.bytes_read)} of it from the node's cache" if cache else ""
    mounted = f", {format_bytes(image.bytes_read)} of it from its OCI image" if image else ""
    if task.stable_key is not None:
        _fetch_stable(task.stable_key, paths, cache)
    if task.engine_key is not None and task.serves_outside and profiles_exclude_sizes(manifest):
        without = "sizes outside the engine's profiles will not be served"
        _fetch_optional(Store.read, task.prepared_key, paths, cache, paths.outside, without)
    if cache:
        cache.finish()
    return StageReport(
        stage=FETCH_ARTIFACT,
        ok=True,
        message=f"{kind.title} {manifest.key[:12]}, {format_bytes(size)}{mounted}{cached}, all digests match",
    )


def _fetch_stable(key: str, paths: Paths, cache: NodeCache | None) -> None:
    """Copy the golden samples of the revision that serves, or write why that is not possible."""
    target = paths.stable
    without = "cannot compare answers with the revision that serves"
    if failure := _fetch_optional(Store.read_golden, key, paths, cache, target, without):
        with suppress(OSError):
            target.mkdir(parents=True)
            (target / STABLE_FAILURE).write_text(failure.cause)


def _fetch_optional(
    read: Callable[[Store, str, Path], object],
    key: str,
    paths: Paths,
    cache: NodeCache | None,
    target: Path,
    without: str,
) -> StageFailure | None:
    """Copy what a pod can serve without; return why that is not possible, and leave nothing of it then.

    Args:
        read: copies from the store.
        key: of a prepared model.
        paths: of the pod.
        cache: of its node.
        target: the folder for it.
        without: what that means, for the log.
    """
    shutil.rmtree(target, ignore_errors=True)  # of an earlier attempt
    try:
        read(open_store(paths, cache=cache), key, target)
    except StageFailure as failure:
        _log.warning("%s: %s", without, failure.message)
        shutil.rmtree(target, ignore_errors=True)
        return failure
    return None
