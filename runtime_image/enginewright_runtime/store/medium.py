"""What a store needs of the place that holds it: a mounted volume, or a bucket."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from enginewright_contract.manifest import ArtifactFile, Manifest

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.store.artifacts import Artifact, ArtifactKind


@dataclass(frozen=True)
class Publication:
    """What is to be published under one key."""

    artifact: Artifact
    files: Mapping[str, Path]  # by path inside the artefact
    describe: Callable[[tuple[ArtifactFile, ...]], Manifest]  # returns the manifest of copied files
    # whether what the store has under this key by now stays, although the artefact of this manifest was made
    stays: Callable[[Manifest], bool]


@dataclass(frozen=True)
class Listed:
    """An artefact that the store has a manifest of."""

    key: str
    used: datetime  # timezone-aware: when it was published, or a Job last found it
    version: str = ""  # as `Stored.version`


@dataclass(frozen=True)
class Stored:
    """An artefact, when it was used last, and what it occupies."""

    artifact: Artifact
    used: datetime  # as `Listed.used`
    version: str  # of its manifest, if the medium has versions; otherwise `used` tells them apart
    # bytes by name, with its manifest; artefacts share files of equal names
    files: Mapping[str, int]


@dataclass(frozen=True)
class Space:
    """The size of the disk that a store is on."""

    capacity: int  # bytes
    free: int  # bytes


@dataclass(frozen=True)
class Leftover:
    """A file or folder that can be removed: it belongs to no artefact, nor to a publication in progress."""

    name: str
    size: int  # bytes
    modified: datetime  # timezone-aware


class Medium(ABC):
    """Where a store is; safe for concurrent processes. Names are paths in the store, with /.

    Methods raise OSError for errors of the disk, and StageFailure with StoreUnavailable for all others.
    """

    @abstractmethod
    def get(self, name: str, largest: int) -> bytes | None:
        """Return a small file, of a larger one only a part, or None if it does not exist."""

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
        """Copy a file of an artefact, if it exists, to `writer`, if given.

        Returns its digest and size, the digest empty if the medium does not read files of a wrong size.
        """

    @abstractmethod
    def open_file(
        self, artifact: Artifact, file: ArtifactFile
    ) -> AbstractContextManager[BinaryIO | None]:
        """Open a file of an artefact, unverified, if it exists."""

    @abstractmethod
    def publish(self, publication: Publication) -> tuple[Manifest, bool]:
        """Store an artefact, its manifest last; return that, and False if another one is there and stays.

        One that does not stay is replaced: readers that began with it end with the other one.
        """

    @abstractmethod
    def leftovers(self, named: Callable[[], frozenset[str]]) -> Iterator[Leftover]:
        """Yield what can be removed; `named` returns the digests of all files that manifests name."""

    @abstractmethod
    def remove(self, leftover: Leftover) -> bool:
        """Remove a leftover, unless it was renewed or cannot be removed; return whether it is gone."""

    @abstractmethod
    def artifacts(self, kind: ArtifactKind) -> Iterator[Listed]:
        """Yield all artefacts of a kind, with as few requests as possible."""

    @abstractmethod
    def renew(self, artifact: Artifact) -> None:
        """Mark an artefact as used now, if it exists, unless it was within `RENEWED_AFTER_SECONDS`.

        A Job renews an artefact before it verifies it: then no `discard` removes it that found an earlier time.
        """

    @abstractmethod
    def list_stored(self, kinds: Sequence[ArtifactKind]) -> Iterator[Stored]:
        """Yield all artefacts with the sizes of their files as stored, not those in the manifests."""

    @abstractmethod
    def discard(self, unused: Sequence[Stored]) -> list[Stored]:
        """Remove artefacts, each at once, that were not used since they were listed; return the removed ones."""

    @abstractmethod
    def records(self, folder: str) -> Iterator[Leftover]:
        """Yield the small files (`put`) below a folder."""

    @abstractmethod
    def remove_record(self, record: Leftover) -> bool:
        """Remove a small file, unless it was written again or cannot be removed; return whether it is gone."""

    @abstractmethod
    def space(self) -> Space | None:
        """Return the size of the disk, or None for a bucket, which has no limit."""
