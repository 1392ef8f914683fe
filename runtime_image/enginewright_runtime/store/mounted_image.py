"""Files of an artefact from its OCI image, which the pod mounts to save time; others come from the store."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from enginewright_contract.manifest import ArtifactFile

from enginewright_runtime.core.digests import CHUNK, copy_chunks
from enginewright_runtime.core.plain_files import open_plain
from enginewright_runtime.store.artifacts import difference

_log: Final = logging.getLogger(__name__)


class MountedImage:
    """The image mounted at one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bytes_read = 0

    def read(self, file: ArtifactFile, writer: BinaryIO, on_chunk: Callable[[int], None]) -> bool:
        """Write a file to `writer`, as `NodeCache.read` does."""
        try:
            copied = copy_chunks(
                _chunks(self._folder / file.path, file.size_bytes), writer, on_chunk
            )
            cause = difference(file, copied) and "damaged"
        except _Unreadable as error:
            cause = str(error)
        if cause is None:
            self.bytes_read += file.size_bytes
            return True
        _log.warning("%s is %s in the OCI image: it is read from the store", file.path, cause)
        writer.seek(0)
        writer.truncate()
        return False


class _Unreadable(Exception):  # noqa: N818 - read as a sentence
    """The image cannot be read; the message says why."""


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    try:
        with open_plain(path) as reader:
            # no more than one chunk beyond its size, if the file in the image is larger
            while reader.tell() <= size and (chunk := reader.read(CHUNK)):
                yield chunk
    except (FileNotFoundError, NotADirectoryError):
        raise _Unreadable("missing") from None
    except OSError as error:
        raise _Unreadable(f"unreadable ({error.strerror})") from None
