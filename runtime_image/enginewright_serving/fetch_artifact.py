"""Copies the artefact to serve from the store into a serving pod and verifies every file.

A canary's pods also get the golden samples of the revision that serves, if possible.
"""

import logging
import shutil
from contextlib import suppress
from typing import Final

from enginewright_contract.report import StageReport
from enginewright_contract.task import FETCH_ARTIFACT, STABLE_FAILURE, ServeTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.store import ENGINE, PREPARED, MountedImage, NodeCache, open_store

_log: Final = logging.getLogger(__name__)


def run(task: ServeTask, paths: Paths) -> StageReport:
    """Copy the artefact of the task, an engine or a prepared model, to its folder; raise StageFailure."""
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
    if cache:
        cache.finish()
    return StageReport(
        stage=FETCH_ARTIFACT,
        ok=True,
        message=f"{kind.title} {manifest.key[:12]}, {format_bytes(size)}{mounted}{cached}, all digests match",
    )


def _fetch_stable(key: str, paths: Paths, cache: NodeCache | None) -> None:
    target = paths.stable
    shutil.rmtree(target, ignore_errors=True)  # of an earlier attempt
    try:
        open_store(paths, cache=cache).read_golden(key, target)
    except StageFailure as failure:
        _log.warning("cannot compare answers with the revision that serves: %s", failure.message)
        shutil.rmtree(target, ignore_errors=True)
        with suppress(OSError):
            target.mkdir(parents=True)
            (target / STABLE_FAILURE).write_text(failure.cause)
