"""Writes the folder of an artefact, durable before anything else sees it."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from enginewright_contract.manifest import MANIFEST_NAME, ArtifactFile, Manifest

from enginewright_runtime.core import digests
from enginewright_runtime.core.logs import TransferProgress

_log: Final = logging.getLogger(__name__)


def write_folder(
    folder: Path,
    files: Mapping[str, Path],
    describe: Callable[[tuple[ArtifactFile, ...]], Manifest],
) -> Manifest:
    """Copy files to a new folder, the manifest last, all of it durable.

    Args:
        folder: to create.
        files: what to copy, by path in the folder.
        describe: returns the manifest for the copied files.

    Raises:
        OSError: A file cannot be read or written.
    """
    listed = []
    for name, source in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as reader, target.open("xb") as writer:
            progress = TransferProgress(_log, f"storing {name}", source.stat().st_size)
            copied = digests.copy(reader, writer, progress.add)
            _sync(writer)
        listed.append(ArtifactFile(path=name, sha256=copied.sha256, size_bytes=copied.size_bytes))
    manifest = describe(tuple(listed))
    with (folder / MANIFEST_NAME).open("xb") as writer:
        writer.write(manifest.to_json().encode())
        _sync(writer)
    for path in sorted({folder / name for name in files}, reverse=True):
        digests.sync_folder(path.parent)
    digests.sync_folder(folder)
    return manifest


def _sync(writer: BinaryIO) -> None:
    writer.flush()
    os.fsync(writer.fileno())
