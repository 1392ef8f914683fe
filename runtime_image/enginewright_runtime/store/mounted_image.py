"""Files of an artefact from its OCI image, which the pod mounts to save time; others come from the store."""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from enginewright_contract.manifest import ArtifactFile

from enginewright_runtime.core.digests import CHUNK
from enginewright_runtime.core.plain_files import open_plain

_log: Final = logging.getLogger(__name__)


class MountedImage:
    """The image mounted at one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bytes_read = 0

    def read(self, file: ArtifactFile, writer: BinaryIO, on_chunk: Callable[[int], None]) -> bool:
        """Write a file to `writer`, as `NodeCache.read` does."""
        try:
            cause = self._copy(file, writer, on_chunk)
        except _Unreadable as error:
            cause = str(error)
        if not cause:
            self.bytes_read += file.size_bytes
            return True
        _log.warning("%s is %s in the OCI image: it is read from the store", file.path, cause)
        writer.seek(0)
        writer.truncate()
        return False

    def _copy(self, file: ArtifactFile, writer: BinaryIO, on_chunk: Callable[[int], None]) -> str:
        """Copy a file; return what is wrong with it, or "" if nothing is."""
        digest, size = hashlib.sha256(), 0
        with _open(self._folder / file.path) as reader:
            # no more than one chunk beyond its size, if the file in the image is larger
            while size <= file.size_bytes and (chunk := _chunk(reader)):
                writer.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                on_chunk(len(chunk))
        matches = (digest.hexdigest(), size) == (file.sha256, file.size_bytes)
        return "" if matches else "damaged"


class _Unreadable(Exception):  # noqa: N818 - read as a sentence
    """The image cannot be read; the message says why."""


def _open(path: Path) -> BinaryIO:
    try:
        return open_plain(path)
    except (FileNotFoundError, NotADirectoryError):
        raise _Unreadable("missing") from None
    except OSError as error:
        raise _Unreadable(f"unreadable ({error.strerror})") from None


def _chunk(reader: BinaryIO) -> bytes:
    try:
        return reader.read(CHUNK)
    except OSError as error:
        raise _Unreadable(f"unreadable ({error.strerror})") from None
