"""A namespace's store without its pods: volumes of the local cluster are folders of this machine.

Tests damage artefacts in it as a disk, a careless user or an attacker would.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.harness import Namespace

CLAIM = "enginewright-store"


def volume(namespace: Namespace) -> Path:
    """Return the folder of a namespace's store."""
    claim = namespace.get("persistentvolumeclaim", CLAIM)
    bound = namespace.get("persistentvolume", claim["spec"]["volumeName"])
    return Path(bound["spec"]["hostPath"]["path"])


def files_of(artifact: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files that an artefact's manifest lists, with the digests in it."""
    for item in manifest(artifact)["files"]:
        yield artifact / item["path"], item["sha256"]


def manifest(artifact: Path) -> dict[str, Any]:
    """Return an artefact's manifest."""
    return dict(json.loads((artifact / "manifest.json").read_text()))


def is_intact(artifact: Path) -> bool:
    """Return whether an artefact is there, and every file has the digest in its manifest."""
    try:
        return all(
            hashlib.sha256(path.read_bytes()).hexdigest() == digest
            for path, digest in files_of(artifact)
        )
    except FileNotFoundError:  # while it is replaced
        return False


def holds(artifact: Path, recipe: dict[str, Any]) -> bool:
    """Return whether an artefact is an engine of a recipe."""
    try:
        return bool(manifest(artifact)["engine"]["recipe"] == recipe)
    except FileNotFoundError:
        return False


def engine_file(artifact: Path) -> Path:
    """Return the file of an artefact that holds its engine."""
    return artifact / str(manifest(artifact)["engine"]["file"])


def corrupt(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    """Cut a file in half, as an interrupted copy."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def mistake(artifact: Path, other: Path) -> None:
    """Replace an artefact's files by those of another one, whose manifest then states the key of this one."""
    for path, _ in files_of(other):  # into the same folders, which the pods own
        (artifact / path.relative_to(other)).write_bytes(path.read_bytes())
    stated = manifest(other) | {"key": artifact.name}
    (artifact / "manifest.json").write_text(json.dumps(stated))


def lie(artifact: Path) -> None:
    """Give the first file of a manifest the digest of the second one."""
    stated = manifest(artifact)
    first, second, *_ = stated["files"]
    first["sha256"] = second["sha256"]
    (artifact / "manifest.json").write_text(json.dumps(stated))
