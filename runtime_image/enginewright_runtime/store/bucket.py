"""A store in a bucket of S3, Google's or Azure's storage, or of what speaks the same protocols.

`prepared/<key>/manifest.json` names its files by their digests, and they are `files/<sha256>`: equal
files of several artefacts and publishers are one object, whose content never changes, and replacing a
damaged one repairs all artefacts that name it. The manifest is put last, on condition that no other was
put meanwhile. So readers see an artefact completely or not at all, whenever a publisher or the server
ends, and a publisher that starts again finds the files that were stored before.

A server that ignores conditions keeps the last of several manifests; one that refuses them gets the
manifest without. It names complete files in both cases.

An artefact is removed by a mark in place of its manifest, put on condition that the manifest has not
changed: object stores have no common conditional delete. Jobs that rely on an artefact put its manifest
again before they verify it, with another `written`, because on S3 only other content is another version.
So either the Job is first, and the artefact stays, or it finds the mark and no artefact. Marks stay until
the artefact is published again: deleting one could hit the manifest that has just replaced it.
"""

import io
import json
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from enginewright_contract.collection import RENEWED_AFTER_SECONDS
from enginewright_contract.manifest import LARGEST_MANIFEST, MANIFEST_NAME, ArtifactFile, Manifest
from enginewright_contract.reasons import Reason
from typing_extensions import Buffer, override

from enginewright_runtime.core.digests import Copied, file_sha256
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import TransferProgress
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.store.artifacts import (
    ENGINE,
    PREPARED,
    Artifact,
    ArtifactKind,
    is_digest,
)
from enginewright_runtime.store.medium import Leftover, Listed, Medium, Publication, Stored
from enginewright_runtime.store.objects import ObjectInfo, Objects, unavailable

_log: Final = logging.getLogger(__name__)
_FILES: Final = "files"
# A publisher stores older files again, so that it has the difference to put a manifest that names them
_REUSED_WITHIN: Final = timedelta(days=7)
_REMOVED_AFTER: Final = timedelta(days=14)
_PUT_TRIES: Final = 5  # of a manifest, each after it was replaced
_RENEWED_AFTER: Final = timedelta(seconds=RENEWED_AFTER_SECONDS)
_REMOVED: Final = b'{"removed":true}\n'  # in place of a manifest; no manifest is so short
_AHEAD: Final = 16 << 20  # bytes of one request


class BucketMedium(Medium):
    """The objects below one address."""

    def __init__(self, uri: str, secret: Secret, *, by_hand: bool = False) -> None:
        self._objects = Objects(uri, secret, by_hand=by_hand)

    @classmethod
    def at(cls, uri: str, credentials: Path, *, by_hand: bool = False) -> Self:
        """Return the store at an address, with the Secret in a folder; raises as `open_medium`."""
        try:
            secret = Secret.read(credentials)
        except StageFailure as failure:
            raise unavailable(failure.cause, failure.finding.remedy) from None
        return cls(uri, secret, by_hand=by_hand)

    @override
    def get(self, name: str, largest: int) -> bytes | None:
        """Return an object, empty if it is too large, None also for the mark of a removed artefact."""
        content = self._objects.get(name, largest)
        return None if content == _REMOVED else content

    @override
    def put(self, name: str, content: bytes) -> None:
        self._objects.put(name, content)

    @override
    def copy(
        self,
        artifact: Artifact,
        file: ArtifactFile,
        writer: BinaryIO | None,
        on_chunk: Callable[[int], None] | None = None,
    ) -> Copied | None:
        """Read an object; one of another size is not read."""
        del artifact  # files of all artefacts are in one folder
        return self._objects.receive(_name(file), file.size_bytes, writer, on_chunk)

    @override
    @contextmanager
    def open_file(self, artifact: Artifact, file: ArtifactFile) -> Iterator[BinaryIO | None]:
        del artifact  # files of all artefacts are in one folder
        stored = self._objects.info(_name(file))
        if stored is None:
            yield None
            return
        with io.BufferedReader(_ObjectRanges(self._objects, stored), _AHEAD) as reader:
            yield reader

    @override
    def publish(self, publication: Publication) -> tuple[Manifest, bool]:
        """Put the files, then the manifest unless another one was put meanwhile."""
        listed = tuple(self._put_file(name, path) for name, path in publication.files.items())
        manifest = publication.describe(listed)
        name = publication.artifact.manifest
        content = _encode_manifest(json.loads(manifest.to_json()))
        for _ in range(_PUT_TRIES):
            present = self._objects.info(name)  # before it is judged: only this one is replaced
            if present is not None and publication.stays(manifest):
                return manifest, False
            if self._objects.put_if(name, content, present):
                self._restore(listed, publication)
                return manifest, True
        raise unavailable(f"other publishers keep replacing {name}")

    @override
    def leftovers(self, named: Callable[[], frozenset[str]]) -> Iterator[Leftover]:
        """Yield files that no manifest names; refuse an address where there is none at all."""
        # first: what is published from now on is younger
        files = self._objects.list_objects(_FILES)
        digests = named()
        marks = [
            info
            for kind in (PREPARED, ENGINE)
            for info in self._objects.list_objects(kind.folder)
            if _is_mark(info)
        ]
        for file in files:
            digest = file.name.removeprefix(f"{_FILES}/")
            if not is_digest(digest) or digest in digests or _age(file) <= _REMOVED_AFTER:
                continue
            # a wrong address, or a proxy in place of the bucket lists nothing
            if not digests and not marks:
                raise StageFailure(
                    Reason.STORE_UNAVAILABLE,
                    f"{self._objects.shown} has files but no artefact, so which of them are needed is"
                    " unknown",
                    remedy="check the address, which ends with PATH/NAMESPACE, and any proxy before the"
                    " bucket; to remove all artefacts, delete the files with the provider's tool",
                )
            yield Leftover(file.name, file.size, file.modified)

    @override
    def remove(self, leftover: Leftover) -> bool:
        """Delete an object, unless a publisher has stored it again."""
        present = self._objects.info(leftover.name)
        if present is not None and _age(present) <= _REMOVED_AFTER:
            return False
        self._objects.delete(leftover.name)
        return self._objects.info(leftover.name) is None

    @override
    def artifacts(self, kind: ArtifactKind) -> Iterator[Listed]:
        """Yield what has a manifest: the only objects below the kind's folder."""
        for info in self._objects.list_objects(kind.folder):
            key, _, name = info.name.removeprefix(f"{kind.folder}/").partition("/")
            if name == MANIFEST_NAME and not _is_mark(info):
                yield Listed(key, info.modified, _etag(info))

    @override
    def renew(self, artifact: Artifact) -> None:
        """Put the manifest again, on condition that it is still the same."""
        for _ in range(_PUT_TRIES):
            present = self._objects.info(artifact.manifest)
            if present is None or _is_mark(present) or _age(present) <= _RENEWED_AFTER:
                return
            text = self.get(artifact.manifest, LARGEST_MANIFEST)
            if text is None:
                return
            try:
                artifact.parse(text)
            except StageFailure:
                return  # a damaged one is no use
            if self._objects.put_if(artifact.manifest, _encode_manifest(json.loads(text)), present):
                return
        raise unavailable(f"others keep replacing {artifact.manifest}")

    @override
    def list_stored(self, kinds: Sequence[ArtifactKind]) -> Iterator[Stored]:
        """Yield the artefacts; of a damaged one, only its manifest."""
        sizes = {info.name: info.size for info in self._objects.list_objects(_FILES)}
        for kind in kinds:
            for listed in self.artifacts(kind):
                artifact = Artifact(kind, listed.key)
                text = self.get(artifact.manifest, LARGEST_MANIFEST)
                if text is None:
                    continue
                try:
                    named = [_name(file) for file in artifact.parse(text).files]
                except StageFailure:
                    named = []
                files = {name: sizes.get(name, 0) for name in named}
                files |= {artifact.manifest: len(text)}
                yield Stored(artifact, listed.used, listed.version, files)

    @override
    def discard(self, unused: Sequence[Stored]) -> list[Stored]:
        """Put marks in place of their manifests; the files become leftovers."""
        return [stored for stored in unused if self._is_marked(stored)]

    @override
    def records(self, folder: str) -> Iterator[Leftover]:
        for info in self._objects.list_objects(folder):
            yield Leftover(info.name, info.size, info.modified)

    @override
    def remove_record(self, record: Leftover) -> bool:
        present = self._objects.info(record.name)
        if present is None:
            return True
        if not _is_same_time(present.modified, record.modified):
            return False
        self._objects.delete(record.name)
        return True

    @override
    def space(self) -> None:
        """Return None, as a bucket has no limit."""

    def _is_marked(self, unused: Stored) -> bool:
        """Put a mark in place of a manifest unless it was written again; return whether it is there."""
        name = unused.artifact.manifest
        present = self._objects.info(name)
        if present is None or not _is_same_time(present.modified, unused.used):
            return False
        # a server may report an earlier time with later content
        if _etag(present) != unused.version:
            return False
        return self._objects.put_if(name, _REMOVED, present)

    def _put_file(self, name: str, source: Path) -> ArtifactFile:
        local = file_sha256(source)
        file = ArtifactFile(path=name, sha256=local.sha256, size_bytes=local.size_bytes)
        if self._is_stored(file):
            _log.info("%s is in the store already", name)
            return file
        progress = TransferProgress(_log, f"storing {name}", file.size_bytes)
        self._objects.put_file(_name(file), source, file.size_bytes, progress)
        return file

    def _restore(self, listed: tuple[ArtifactFile, ...], publication: Publication) -> None:
        """Put files that were removed as leftovers while they were stored again."""
        for file in listed:
            if self._objects.info(_name(file)) is None:
                self._put_file(file.path, publication.files[file.path])

    def _is_stored(self, file: ArtifactFile) -> bool:
        present = self._objects.info(_name(file))
        if present is None or present.size != file.size_bytes or _age(present) > _REUSED_WITHIN:
            return False
        stored = self._objects.receive(_name(file), file.size_bytes)
        return stored is not None and stored.sha256 == file.sha256


class _ObjectRanges(io.RawIOBase):
    """An object as a file, without a copy on the pod's disk."""

    def __init__(self, objects: Objects, info: ObjectInfo) -> None:
        self._objects = objects
        self._name = info.name
        self._size = info.size
        self._at = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer)
        end = min(self._at + len(view), self._size)
        if self._at >= end:
            return 0
        content = self._objects.get_range(self._name, self._at, end)
        view[: len(content)] = content
        self._at += len(content)
        return len(content)


def _name(file: ArtifactFile) -> str:
    return f"{_FILES}/{file.sha256}"


def _encode_manifest(manifest: dict[str, Any]) -> bytes:
    """Return a manifest as content that no object had before."""
    return json.dumps(manifest | {"written": secrets.token_hex(8)}, separators=(",", ":")).encode()


def _is_mark(info: ObjectInfo | None) -> bool:
    return info is not None and info.size == len(_REMOVED) and info.name.endswith(MANIFEST_NAME)


def _etag(info: ObjectInfo) -> str:
    """Return what tells versions of an object apart; Azure's lists omit the quotes."""
    return (info.version.get("e_tag") or "").strip('"')


def _is_same_time(one: datetime, other: datetime) -> bool:
    """Return whether two times of an object are the same; lists have fractions of a second."""
    return int(one.timestamp()) == int(other.timestamp())


def _age(info: ObjectInfo) -> timedelta:
    return datetime.now(UTC) - info.modified
