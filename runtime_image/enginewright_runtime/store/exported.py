"""An untrusted artefact in a local folder, which `store import` checks completely before it stores any of it."""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from enginewright_contract.manifest import MANIFEST_NAME, ArtifactFile, Manifest

from enginewright_runtime.core import digests
from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.plain_files import open_plain
from enginewright_runtime.store.artifacts import Artifact, ArtifactKind, difference, is_digest

_REMEDY: Final = "export the artefact again; nothing of it was stored"


@dataclass(frozen=True)
class Exported:
    """A folder with an artefact; methods raise StageFailure: ArtifactCorrupt or EngineCorrupt."""

    kind: ArtifactKind
    manifest: Manifest
    folder: Path

    def files(self) -> dict[str, Path]:
        """Return the files by path inside the artefact, once all are as the manifest lists them."""
        self._check_manifest()
        for file in self.manifest.files:
            self.check(file, self._read_file(file))
        return {file.path: self.folder / file.path for file in self.manifest.files}

    def check(self, file: ArtifactFile, copied: Copied | None) -> None:
        """Raise unless what was read is the file that the manifest lists."""
        if what := difference(file, copied):
            raise self._corrupt(what)

    def _check_manifest(self) -> None:
        key = self.manifest.key
        if not is_digest(key):
            raise self._corrupt(f"the key in {MANIFEST_NAME} is not a sha256")
        try:
            Artifact(self.kind, key).parse_trusted(self.manifest.to_json().encode())
        except StageFailure as failure:
            raise self._corrupt(failure.cause.partition(" is damaged: ")[2]) from None

    def _read_file(self, file: ArtifactFile) -> Copied | None:
        path = self.folder / file.path
        folders = [self.folder / parent for parent in PurePosixPath(file.path).parents][:-1]
        if any(folder.is_symlink() for folder in folders):
            return None
        try:
            with open_plain(path) as reader:
                size = os.fstat(reader.fileno()).st_size
                return digests.copy(reader, None) if size == file.size_bytes else Copied("", size)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._corrupt(f"file {file.path} cannot be read: {error.strerror}") from error

    def _corrupt(self, what: str) -> StageFailure:
        shown = f"{self.kind.title} {self.manifest.key[:12]} in the folder {self.folder}"
        return StageFailure(self.kind.damaged, f"{shown} is damaged: {what}", remedy=_REMEDY)
