"""Copies files and computes their digests in one pass; the digest of a model of several files."""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from enginewright_contract.base import canonical_json
from enginewright_contract.keys import sha256_text
from enginewright_contract.manifest import MODEL_NAME, ArtifactFile

CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Copied:
    """The result of a copy."""

    sha256: str
    size_bytes: int
    version: str | None = None  # the source's identifier of this content, such as etag "1"
    validator: str | None = None  # what `ModelSource.head` returns while the content is unchanged


def copy(
    reader: BinaryIO,
    writer: BinaryIO | None,
    on_chunk: Callable[[int], None] | None = None,
) -> Copied:
    """Copy `reader` to `writer`, if given, and hash it; `on_chunk` gets the size of every chunk; raises OSError."""
    return copy_chunks(iter(lambda: reader.read(CHUNK), b""), writer, on_chunk)


def copy_chunks(
    chunks: Iterable[bytes],
    writer: BinaryIO | None,
    on_chunk: Callable[[int], None] | None = None,
) -> Copied:
    """Write chunks as `copy` does; raises what `chunks` raises."""
    digest = hashlib.sha256()
    size = 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
        if writer is not None:
            writer.write(chunk)
        if on_chunk is not None:
            on_chunk(len(chunk))
    return Copied(digest.hexdigest(), size)


def file_sha256(path: Path) -> Copied:
    """Return digest and size of a file."""
    with path.open("rb") as reader:
        return copy(reader, None)


def model_digest(files: tuple[ArtifactFile, ...]) -> str:
    """Return the digest of a model: of its .onnx file and all external data.

    Of one file it is the sha256 that `sha256sum` prints; of several, the sha256 of the canonical JSON list of
    [path, sha256]: the .onnx file as `MODEL_NAME`, then external data by path in code point order.
    """
    if len(files) == 1:
        return files[0].sha256
    ordered = sorted(files, key=lambda file: (file.path != MODEL_NAME, file.path))
    return sha256_text(canonical_json([[file.path, file.sha256] for file in ordered]))


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable; errors are ignored if the file system does not support it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
