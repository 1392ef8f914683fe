"""What a store needs of the place that holds it: a mounted volume, or a bucket."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from enginewright.contract.manifest import ArtifactFile, Manifest

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.store.artifacts import Artifact, ArtifactKind


@dataclass(frozen=True)
class Publication:
    """What is to be published under one key."""

    artifact: Artifact
    files: Mapping[str, Path]  # by path inside the artefact
    describe: Callable[[tuple[ArtifactFile, ...]], Manifest]  # returns the manifest of copied files
    is_intact: Callable[[], bool]  # whether the store has an artefact with this key by now


@dataclass(frozen=True)
class Listed:
    """An artefact that the store has a manifest of."""

    key: str
    published: datetime  # timezone-aware


@dataclass(frozen=True)
class Leftover:
    """What belongs to no artefact, and is too old to be of a publication in progress."""

    name: str
    size: int  # bytes
    modified: datetime  # timezone-aware


class Medium(ABC):
    """Where a store is; safe for concurrent processes.

    Names are paths in the store, with /. Every method raises OSError for errors of the disk, and
    StageFailure with StoreUnavailable for all others.
    """

    @abstractmethod
    def get(self, name: str, largest: int) -> bytes | None:
        """Return a small file, of a larger one only a part; None: it does not exist."""

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Write a small file, or replace it atomically."""

    @abstractmethod
    def copy(
        self,
        artifact: Artifact,
        file: ArtifactFile,
        writer: BinaryIO | None,
        on_chunk: Callable[[int], None] | None = None,
    ) -> Copied | None:
        """Copy a file of an artefact to `writer` (None: only read); None: it does not exist.

        Returns:
            Digest and size of what the store holds; of another size than listed, the size alone.
        """

    @abstractmethod
    def opened(
        self, artifact: Artifact, file: ArtifactFile
    ) -> AbstractContextManager[BinaryIO | None]:
        """Open a file of an artefact, unverified; None: it does not exist."""

    @abstractmethod
    def publish(self, publication: Publication) -> tuple[Manifest, bool]:
        """Store an artefact, its manifest last; replace a damaged one.

        Returns:
            Its manifest, and whether it is in the store: False if another publisher was first.
        """

    @abstractmethod
    def leftovers(self, named: Callable[[], frozenset[str]]) -> Iterator[Leftover]:
        """Yield what can be removed; `named` returns the digests of all files that manifests name."""

    @abstractmethod
    def remove(self, leftover: Leftover) -> bool:
        """Remove a leftover; False: it stays, since it was renewed meanwhile or cannot be removed."""

    @abstractmethod
    def artifacts(self, kind: ArtifactKind) -> Iterator[Listed]:
        """Yield all artefacts of a kind, with as few requests as possible."""
