"""Archives and OCI layouts whose bytes follow from their content: sorted names, one owner, one time."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
NAME: Final = "org.opencontainers.image.ref.name"
_INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"


def write_tar(path: Path, files: Mapping[str, bytes | Path], time: int) -> None:
    """Write files as an archive.

    Args:
        path: The archive.
        files: Content, or the file that has it, by name in the archive.
        time: Seconds since the epoch, of every entry.
    """
    with (
        path.open("wb") as output,
        tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, files, time)


def make_tgz(files: Iterable[tuple[str, bytes]], time: int) -> bytes:
    """Return files, in this order, as a compressed archive; compression adds no time."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files:
            _add(archive, {name: content}, time)
    return gzip.compress(plain.getvalue(), mtime=0)


def _add(archive: tarfile.TarFile, files: Mapping[str, bytes | Path], time: int) -> None:
    for name in sorted(files):
        content = files[name]
        entry = tarfile.TarInfo(name)
        entry.mtime, entry.mode = time, 0o644
        if isinstance(content, Path):
            entry.size = content.stat().st_size
            with content.open("rb") as reader:
                archive.addfile(entry, reader)
        else:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def digest_of(content: bytes) -> str:
    """Return a digest as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def write_json(value: object) -> bytes:
    """Return JSON that follows from the value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def describe(kind: str, content: bytes) -> dict[str, Any]:
    """Return the descriptor of a blob."""
    return {"mediaType": kind, "digest": digest_of(content), "size": len(content)}


def make_layout(
    name: str, config: tuple[str, bytes], layer: tuple[str, bytes], annotations: Mapping[str, str]
) -> dict[str, bytes]:
    """Return the files of an OCI layout of one artefact with one layer.

    Args:
        name: Of the artefact in the layout, with tag.
        config: Media type and content.
        layer: Media type and content.
        annotations: Of the manifest.
    """
    manifest = write_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": describe(*config),
            "layers": [describe(*layer)],
            "annotations": dict(annotations),
        }
    )
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX_TYPE,
        "manifests": [describe(MANIFEST_TYPE, manifest) | {"annotations": {NAME: name}}],
    }
    blobs = {path_of(digest_of(content)): content for content in (config[1], layer[1], manifest)}
    return {
        "oci-layout": write_json({"imageLayoutVersion": "1.0.0"}),
        "index.json": write_json(index),
        **blobs,
    }


def path_of(digest: str) -> str:
    """Return where a layout keeps a blob."""
    return f"blobs/{digest.replace(':', '/')}"


def checksums(folder: Path) -> str:
    """Return the lines of SHA256SUMS for the files of a folder."""
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as reader:
            lines.append(f"{hashlib.file_digest(reader, 'sha256').hexdigest()}  {path.name}\n")
    return "".join(lines)
