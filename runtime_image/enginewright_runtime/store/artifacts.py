"""Kinds of artefacts, and what makes a manifest one that can be trusted to name their files."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from enginewright_contract.keys import compute_prepared_keys, engine_key
from enginewright_contract.manifest import MANIFEST_NAME, MANIFEST_VERSION, ArtifactFile, Manifest
from enginewright_contract.reasons import Reason
from pydantic import ValidationError

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.failure import StageFailure

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# limits of paths that every pod can create
_LONGEST_PATH: Final = 1024  # bytes; S3's limit of a key too
_LONGEST_PART: Final = 255  # bytes
_MOST_PARTS: Final = 40  # sources have at most 32
_MOST_SHOWN: Final = 100  # characters of a path that is refused


@dataclass(frozen=True)
class ArtifactKind:
    """A kind of artefact, with its folder and its terms in messages."""

    folder: str
    title: str
    again: str  # what happens if it is missing
    damaged: Reason
    is_engine: bool

    def corrupt(self, key: str, what: str) -> StageFailure:
        """Return the failure of a damaged artefact."""
        return StageFailure(self.damaged, f"{self.title} {key[:12]} is damaged: {what}")


PREPARED: Final = ArtifactKind(
    "prepared", "prepared model", "it is prepared again", Reason.ARTIFACT_CORRUPT, is_engine=False
)
ENGINE: Final = ArtifactKind(
    "engines", "engine", "it is rebuilt", Reason.ENGINE_CORRUPT, is_engine=True
)


@dataclass(frozen=True)
class Artifact:
    """An artefact, by its kind and key."""

    kind: ArtifactKind
    key: str

    def __post_init__(self) -> None:
        if not is_name(self.key):
            raise StageFailure(Reason.INTERNAL_ERROR, f"{self.key!r} is not a key")

    @property
    def folder(self) -> str:
        """Return its path in the store."""
        return f"{self.kind.folder}/{self.key}"

    @property
    def manifest(self) -> str:
        """Return the path of its manifest in the store."""
        return f"{self.folder}/{MANIFEST_NAME}"

    def corrupt(self, what: str) -> StageFailure:
        """Return the failure of a damaged artefact."""
        return self.kind.corrupt(self.key, what)

    def parse(self, text: bytes) -> Manifest:
        """Return the manifest in `text`; raises the kind's `damaged` unless it is this artefact's, with safe paths."""
        try:
            manifest = Manifest.model_validate_json(text)
        except ValidationError as error:
            raise self.corrupt(f"{MANIFEST_NAME} cannot be read") from error
        if manifest.version > MANIFEST_VERSION:
            raise self.corrupt(f"{MANIFEST_NAME} was written by a newer version of Enginewright")
        if manifest.key != self.key:
            raise self.corrupt(f"{MANIFEST_NAME} belongs to another key")
        if (manifest.engine is not None) != self.kind.is_engine:
            raise self.corrupt(f"{MANIFEST_NAME} describes something else")
        if problem := _problem(manifest.files):
            raise self.corrupt(f"{MANIFEST_NAME} lists {problem}")
        needed = [manifest.model, manifest.golden_inputs, manifest.golden_outputs]
        if manifest.golden_parts is not None:
            needed.append(manifest.golden_parts)
        if manifest.engine is not None:
            needed.append(manifest.engine.file)
        for name in needed:
            if all(file.path != name for file in manifest.files):
                raise self.corrupt(f"{MANIFEST_NAME} does not list {name}")
        return manifest

    def parse_trusted(self, text: bytes) -> Manifest:
        """Return the manifest in `text` if it is `checked` and its recipe has this key; raises as `checked`."""
        manifest = self.parse(text)
        if manifest.key not in (_keys(manifest) or (manifest.key,)):
            raise self.corrupt(
                f"the key in {MANIFEST_NAME} is not that of its recipe: it was changed, or written by"
                " another version of Enginewright"
            )
        return manifest


def _keys(manifest: Manifest) -> tuple[str, ...]:
    """Return the keys that the content of a manifest may have, unknown for an earlier version."""
    if manifest.engine is not None:
        return (engine_key(manifest.engine.prepared_key, manifest.engine.recipe),)
    if manifest.data is None:
        return ()
    return compute_prepared_keys(manifest.model_digest, manifest.recipe, manifest.data)


def _problem(files: tuple[ArtifactFile, ...]) -> str | None:
    names: set[str] = set()
    for file in files:
        if not is_inside(file.path):
            return f"{shorten(file.path)}, which is not inside the artefact, or too long a path"
        if not is_digest(file.sha256):
            return f"no sha256 of {file.path}"
        if file.path in names:
            return f"{file.path} twice"
        names.add(file.path)
    for name in names:
        if any(str(folder) in names for folder in PurePosixPath(name).parents):
            return f"{name} inside of another file"
    return None


def difference(file: ArtifactFile, copied: Copied | None) -> str | None:
    """Return how what was read, if it exists, differs from the file that a manifest lists, if it does."""
    if copied is None:
        return f"file {file.path} is missing"
    if copied.size_bytes != file.size_bytes:
        return f"file {file.path} has {copied.size_bytes} bytes instead of {file.size_bytes}"
    if copied.sha256 != file.sha256:
        return f"file {file.path} has sha256 {copied.sha256[:12]} instead of {file.sha256[:12]}"
    return None


def is_digest(text: str) -> bool:
    """Return whether a text is a sha256 in hex, as keys and digests of files are."""
    return _DIGEST.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Return whether a text can be one part of a path."""
    return bool(text) and text not in {".", ".."} and "/" not in text and "\0" not in text


def is_inside(name: str) -> bool:
    """Return whether every pod can create a file at this path of its folder, and beside the manifest."""
    parts = name.split("/", _MOST_PARTS)
    return (
        len(parts) <= _MOST_PARTS
        and len(name.encode()) <= _LONGEST_PATH
        and all(is_name(part) and len(part.encode()) <= _LONGEST_PART for part in parts)
        and parts[0] != MANIFEST_NAME
    )


def shorten(name: str) -> str:
    """Return a path for messages: quoted, and cut if it is too long."""
    return repr(name[:_MOST_SHOWN]) + (" …" if len(name) > _MOST_SHOWN else "")
