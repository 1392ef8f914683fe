"""Artefacts on a mounted volume.

`prepared/<key>/` and `engines/<key>/` are created by renaming a complete, synced folder from `tmp/`, so
that readers see an artefact completely or not at all, even after a crash. Of several publishers of
one key the first wins, and the others are informed. Files are used only after their digest is checked.
"""

import errno
import hashlib
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from enginewright.contract.manifest import (
    LARGEST_MANIFEST,
    MANIFEST_NAME,
    MANIFEST_VERSION,
    ArtifactFile,
    Manifest,
)
from enginewright.contract.reasons import Reason
from pydantic import ValidationError

from enginewright_runtime.core import digests
from enginewright_runtime.core.disk import is_full
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import TransferProgress
from enginewright_runtime.store.compatibility import lacks_distributions

_log: Final = logging.getLogger(__name__)
_REPORTS: Final = "reports"
_CACHES: Final = "caches"  # may be lost: builders' timings
_TMP: Final = "tmp"
_DEAD_AFTER_SECONDS: Final = 86400.0
_LARGEST_CACHE: Final = 256 << 20
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_CAUSES: Final = {
    errno.EROFS: "it is read-only",
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
}


@dataclass(frozen=True)
class ArtifactKind:
    """A kind of artefact, with its folder and its terms in messages."""

    folder: str
    title: str
    again: str  # what happens if it is missing
    damaged: Reason
    is_engine: bool


PREPARED: Final = ArtifactKind(
    "prepared", "prepared model", "it is prepared again", Reason.ARTIFACT_CORRUPT, is_engine=False
)
ENGINE: Final = ArtifactKind(
    "engines", "engine", "it is rebuilt", Reason.ENGINE_CORRUPT, is_engine=True
)


class Store:
    """The artefacts of one kind in a store; safe for concurrent processes."""

    def __init__(self, root: Path, kind: ArtifactKind = PREPARED) -> None:
        self._root = root
        self._kind = kind

    def find(self, key: str) -> Manifest | None:
        """Return the manifest of an artefact without checking its files; None: it does not exist.

        Raises:
            StageFailure: StoreUnavailable; ArtifactCorrupt or, of an engine, EngineCorrupt for an
                invalid manifest, or one of an earlier version that lacks what verification needs.
        """
        with self._available():
            self._require_volume()
            path = self._artifact(key) / MANIFEST_NAME
            try:
                with _open_plain(path) as reader:
                    text = reader.read(LARGEST_MANIFEST)
            except (FileNotFoundError, NotADirectoryError):
                return None
        manifest = self._checked_manifest(text, key)
        self._refuse_earlier(manifest)
        return manifest

    def find_intact(self, key: str) -> Manifest | None:
        """Return the artefact's manifest if it exists and every file matches it, else None.

        Raises:
            StageFailure: StoreUnavailable.
        """
        try:
            manifest = self.find(key)
            if manifest is not None:
                self.verify(manifest)
        except StageFailure as failure:
            if failure.reason is not self._kind.damaged:
                raise
            _log.warning("%s", failure.message)
            return None
        return manifest

    def read(self, key: str, target: Path) -> Manifest:
        """Copy an artefact to `target`; verify each file while copying; the manifest comes last.

        Raises:
            StageFailure: ArtifactMissing; ArtifactCorrupt or EngineCorrupt, naming the file;
                StoreUnavailable; StorageFull.
        """
        return self._read(key, target, lambda manifest: manifest.files)

    def read_golden(self, key: str, target: Path) -> Manifest:
        """Copy only an artefact's manifest and golden samples to `target`; verify and raise as `read`."""

        def golden(manifest: Manifest) -> tuple[ArtifactFile, ...]:
            names = (manifest.golden_inputs, manifest.golden_outputs)
            return tuple(file for file in manifest.files if file.path in names)

        return self._read(key, target, golden)

    def _read(
        self, key: str, target: Path, chosen: Callable[[Manifest], tuple[ArtifactFile, ...]]
    ) -> Manifest:
        manifest = self.find(key)
        if manifest is None:
            raise StageFailure(
                Reason.ARTIFACT_MISSING,
                f"the store has no {self._kind.title} with key {key[:12]}",
                remedy=f"no action needed: {self._kind.again}",
            )
        with self._available(written="the folder of the pod"):
            target.mkdir(parents=True, exist_ok=True)
            (target / MANIFEST_NAME).unlink(missing_ok=True)
            for file in chosen(manifest):
                self._copy_out(key, file, target / file.path)
            (target / MANIFEST_NAME).write_text(manifest.to_json())
        return manifest

    def verify(self, manifest: Manifest) -> None:
        """Check every file of an artefact; raises as `read`."""
        with self._available():
            for file in manifest.files:
                self._copy_out(manifest.key, file, None)

    def publish(
        self,
        key: str,
        files: Mapping[str, Path],
        describe: Callable[[tuple[ArtifactFile, ...]], Manifest],
    ) -> tuple[Manifest, bool]:
        """Store an artefact unless an intact one with this key exists.

        Args:
            key: content address.
            files: what to store, by path inside the artefact.
            describe: returns the manifest for the copied files.

        Returns:
            The manifest in the store, and whether it existed already.

        Raises:
            StageFailure: StoreUnavailable, StorageFull.
        """
        if (present := self.find_intact(key)) is not None:
            return present, True
        with self._available():
            self._require_volume()
            self._sweep()
            folder = self._root / _TMP / f"{key}-{secrets.token_hex(8)}"
            try:
                manifest = _write(folder, files, describe)
                if self._move_in(folder, key):
                    return manifest, False
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        present = self.find(key)
        return (manifest, False) if present is None else (present, True)

    def put_report(self, job: str, stage: str, text: str) -> None:
        """Write a stage's full report to reports/<job>/<stage>.json.

        Raises:
            StageFailure: StoreUnavailable, StorageFull.
        """
        if not _is_name(job) or not _is_name(stage):
            raise StageFailure(Reason.INTERNAL_ERROR, f"{job}/{stage} cannot name a report")
        with self._available():
            self._require_volume()
            folder = self._root / _REPORTS / job
            folder.mkdir(parents=True, exist_ok=True)
            _replace(folder / f"{stage}.json", text.encode())

    def get_cache(self, name: str) -> bytes | None:
        """Return what was last stored under `name`; None: nothing, or it is damaged.

        Raises:
            StageFailure: StoreUnavailable.
        """
        with self._available():
            self._require_volume()
            try:
                with _open_plain(self._cache(name)) as reader:
                    content = reader.read(_LARGEST_CACHE)
            except (FileNotFoundError, NotADirectoryError):
                return None
        digest, cache = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return cache if hashlib.sha256(cache).digest() == digest else None

    def put_cache(self, name: str, content: bytes) -> None:
        """Store `content` under `name`, prefixed with its digest; replace an earlier one.

        Raises:
            StageFailure: StoreUnavailable, StorageFull.
        """
        path = self._cache(name)
        with self._available():
            self._require_volume()
            path.parent.mkdir(exist_ok=True)
            _replace(path, hashlib.sha256(content).digest() + content)

    def _cache(self, name: str) -> Path:
        if not _is_name(name):
            raise StageFailure(Reason.INTERNAL_ERROR, f"{name!r} cannot name a cache")
        return self._root / _CACHES / name

    def _artifact(self, key: str) -> Path:
        if not _is_name(key):
            raise StageFailure(Reason.INTERNAL_ERROR, f"{key!r} is not a key")
        return self._root / self._kind.folder / key

    def _require_volume(self) -> None:
        if not self._root.is_dir():
            raise StageFailure(
                Reason.STORE_UNAVAILABLE, f"the store does not exist: {self._root} is not a folder"
            )

    def _move_in(self, folder: Path, key: str) -> bool:
        """Rename the complete folder to the artefact; False: another publisher was first."""
        target = self._artifact(key)
        target.parent.mkdir(exist_ok=True)
        for attempt in (1, 2):
            try:
                folder.rename(target)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                if attempt == 2 or self.find_intact(key) is not None:
                    return False
                self._move_away(target)
            else:
                digests.sync_folder(target.parent)
                return True
        return False

    def _move_away(self, target: Path) -> None:
        """Remove a damaged artefact; another process may do so at the same time."""
        trash = self._root / _TMP / f"damaged-{secrets.token_hex(8)}"
        try:
            target.rename(trash)
        except FileNotFoundError:
            return
        shutil.rmtree(trash, ignore_errors=True)

    def _copy_out(self, key: str, file: ArtifactFile, target: Path | None) -> None:
        path = self._artifact(key) / file.path
        try:
            with _open_plain(path) as reader:
                if target is None:
                    copied = digests.copy(reader, None)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as writer:
                        progress = TransferProgress(_log, f"copying {file.path}", file.size_bytes)
                        copied = digests.copy(reader, writer, progress.add)
        except (FileNotFoundError, NotADirectoryError):
            raise self._corrupt(key, f"file {file.path} is missing") from None
        if (copied.size_bytes, copied.sha256) != (file.size_bytes, file.sha256):
            if target is not None:
                target.unlink(missing_ok=True)
            found = (
                f"{copied.size_bytes} bytes instead of {file.size_bytes}"
                if copied.size_bytes != file.size_bytes
                else f"sha256 {copied.sha256[:12]} instead of {file.sha256[:12]}"
            )
            raise self._corrupt(key, f"file {file.path} has {found}")

    def _sweep(self) -> None:
        """Remove leftovers of publishers that ended more than a day ago."""
        folder = self._root / _TMP
        folder.mkdir(exist_ok=True)
        for entry in folder.iterdir():
            if time.time() - _last_written(entry) > _DEAD_AFTER_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)

    def _checked_manifest(self, text: bytes, key: str) -> Manifest:
        try:
            manifest = Manifest.model_validate_json(text)
        except ValidationError as error:
            raise self._corrupt(key, f"{MANIFEST_NAME} cannot be read") from error
        if manifest.version > MANIFEST_VERSION:
            raise self._corrupt(
                key, f"{MANIFEST_NAME} was written by a newer version of Enginewright"
            )
        if manifest.key != key:
            raise self._corrupt(key, f"{MANIFEST_NAME} belongs to another key")
        if (manifest.engine is not None) != self._kind.is_engine:
            raise self._corrupt(key, f"{MANIFEST_NAME} describes something else")
        names = [file.path for file in manifest.files]
        if outside := [name for name in names if not _is_inside(name)]:
            raise self._corrupt(
                key, f"{MANIFEST_NAME} lists {outside[0]!r}, which is not inside the artefact"
            )
        needed = [manifest.model, manifest.golden_inputs, manifest.golden_outputs]
        if manifest.engine is not None:
            needed.append(manifest.engine.file)
        for name in needed:
            if name not in names:
                raise self._corrupt(key, f"{MANIFEST_NAME} does not list {name}")
        return manifest

    def _refuse_earlier(self, manifest: Manifest) -> None:
        """Refuse an artefact that new pods could not verify, so that it is rebuilt."""
        with suppress(OSError), _open_plain(self._artifact(manifest.key) / manifest.model) as model:
            if lacks_distributions(manifest, model):
                raise StageFailure(
                    self._kind.damaged,
                    f"{self._kind.title} {manifest.key[:12]} was built by an earlier version, which did"
                    " not record the distribution of random outputs",
                    remedy=f"no action needed: {self._kind.again}",
                )

    def _corrupt(self, key: str, what: str) -> StageFailure:
        return StageFailure(self._kind.damaged, f"{self._kind.title} {key[:12]} is damaged: {what}")

    @contextmanager
    def _available(self, written: str = "the store") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_full(error):
                raise StageFailure(
                    Reason.STORAGE_FULL, f"{written} is full: {error.strerror}"
                ) from error
            cause = _CAUSES.get(error.errno or 0, error.strerror or str(error))
            raise StageFailure(
                Reason.STORE_UNAVAILABLE, f"the store is unavailable: {cause}"
            ) from error


def _write(
    folder: Path,
    files: Mapping[str, Path],
    describe: Callable[[tuple[ArtifactFile, ...]], Manifest],
) -> Manifest:
    """Copy the files into `folder`, the manifest last, all of it durable."""
    listed = []
    for name, source in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as reader, target.open("xb") as writer:
            progress = TransferProgress(_log, f"storing {name}", source.stat().st_size)
            copied = digests.copy(reader, writer, progress.add)
            _sync(writer)
        listed.append(ArtifactFile(path=name, sha256=copied.sha256, size_bytes=copied.size_bytes))
    manifest = describe(tuple(listed))
    with (folder / MANIFEST_NAME).open("xb") as writer:
        writer.write(manifest.to_json().encode())
        _sync(writer)
    for path in sorted({folder / name for name in files}, reverse=True):
        digests.sync_folder(path.parent)
    digests.sync_folder(folder)
    return manifest


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _sync(writer: BinaryIO) -> None:
    writer.flush()
    os.fsync(writer.fileno())


def _open_plain(path: Path) -> BinaryIO:
    """Open a regular file of the store; a link counts as missing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(path)
    return os.fdopen(descriptor, "rb")


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return (
        not path.is_absolute()
        and ".." not in path.parts
        and str(path) == name
        and name not in {"", ".", MANIFEST_NAME}
    )


def _is_name(text: str) -> bool:
    return bool(text) and text not in {".", ".."} and "/" not in text and "\0" not in text


def _last_written(folder: Path) -> float:
    """Return the last modification time in a folder; now, if it was just removed."""
    try:
        times = [folder.lstat().st_mtime]
        times += [path.lstat().st_mtime for path in folder.rglob("*")]
    except FileNotFoundError:
        return time.time()
    return max(times)
