"""What the OCI image of an artefact consists of: it follows from the artefact's files alone.

A layer is an uncompressed tar archive, of one file where possible, so nodes and registries keep files of equal content
and path once. Source: OCI image specification 1.1.
"""

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Protocol, TypeAlias

from enginewright_contract.base import canonical_json
from enginewright_contract.keys import content_hash
from enginewright_contract.manifest import ArtifactFile, Manifest

from enginewright_runtime.core.digests import CHUNK

MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
_ANNOTATION: Final = "dev.enginewright"
_FORMAT: Final = 1  # of all below; another one makes other images
# Nodes stack few layers: containerd's overlay file system about 120. The smallest files share the last one.
_MOST_LAYERS: Final = 32
_END: Final = bytes(2 * tarfile.BLOCKSIZE)
_TAG_DIGITS: Final = 16
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class FileReader(Protocol):
    """What a layer reads of a file."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes; none at the end."""


Opened: TypeAlias = Callable[[ArtifactFile], AbstractContextManager[FileReader]]


@dataclass(frozen=True)
class ImageLayer:
    """Some files of an artefact as an archive."""

    files: tuple[ArtifactFile, ...]

    @property
    def size(self) -> int:
        """Return its bytes."""
        heads = sum(len(head) for _, head in self._heads())
        return heads + sum(map(_pad, self.files)) + len(_END)

    def chunks(self, opened: Opened) -> Iterator[bytes]:
        """Yield its content, no empty chunk; `opened` returns each file, of the listed size."""
        for file, head in self._heads():
            yield head
            with opened(file) as reader:
                while chunk := reader.read(CHUNK):
                    yield chunk
            if padding := bytes(_pad(file) - file.size_bytes):
                yield padding
        yield _END

    def _heads(self) -> Iterator[tuple[ArtifactFile, bytes]]:
        """Yield each file with the entries before it: its folders, and its own."""
        folders: set[str] = set()
        for file in self.files:
            head = b""
            for folder in reversed(PurePosixPath(file.path).parents[:-1]):
                if str(folder) not in folders:
                    folders.add(str(folder))
                    head += _entry(str(folder), tarfile.DIRTYPE, 0o755, 0)
            yield file, head + _entry(file.path, tarfile.REGTYPE, 0o644, file.size_bytes)


@dataclass(frozen=True)
class Image:
    """The manifest of an image, and the configuration that it names."""

    manifest: bytes
    config: bytes

    @property
    def digest(self) -> str:
        """Return what identifies the image."""
        return digest_of(self.manifest)

    @property
    def config_digest(self) -> str:
        """Return the digest of the configuration."""
        return digest_of(self.config)


def layers_of(manifest: Manifest) -> tuple[ImageLayer, ...]:
    """Return the layers of an artefact's image, the largest file first."""
    files = sorted(manifest.files, key=lambda file: (-file.size_bytes, file.path))
    alone = files if len(files) <= _MOST_LAYERS else files[: _MOST_LAYERS - 1]
    rest = sorted(files[len(alone) :], key=lambda file: file.path)
    return (*(ImageLayer((file,)) for file in alone), *((ImageLayer(tuple(rest)),) if rest else ()))


def tag_of(manifest: Manifest) -> str:
    """Return the tag of an artefact's image; artefacts of one key may differ in content."""
    files = [
        [file.path, file.sha256, file.size_bytes]
        for file in sorted(manifest.files, key=lambda file: file.path)
    ]
    return f"{_kind(manifest)}-{manifest.key}-{content_hash(_FORMAT, files)[:_TAG_DIGITS]}"


def image_of(manifest: Manifest, layers: Sequence[ImageLayer], digests: Sequence[str]) -> Image:
    """Return an artefact's image; `digests` of its layers, in their order."""
    config = canonical_json(
        {
            # required, although the files are the same on all platforms
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": list(digests)},  # not compressed
        }
    ).encode()
    listed = [
        _descriptor(_LAYER_TYPE, digest, layer.size)
        for layer, digest in zip(layers, digests, strict=True)
    ]
    text = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(_CONFIG_TYPE, digest_of(config), len(config)),
            "layers": listed,
            "annotations": {
                f"{_ANNOTATION}.kind": _kind(manifest),
                f"{_ANNOTATION}.key": manifest.key,
            },
        }
    )
    return Image(text.encode(), config)


def is_digest(text: str) -> bool:
    """Return whether a text is a digest as `digest_of` writes it."""
    return _DIGEST.fullmatch(text) is not None


def digest_of(content: bytes) -> str:
    """Return a digest as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _entry(name: str, kind: bytes, mode: int, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size = kind, mode, size
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8")


def _pad(file: ArtifactFile) -> int:
    return -(-file.size_bytes // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _kind(manifest: Manifest) -> str:
    return "prepared" if manifest.engine is None else "engine"


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest, "size": size}
