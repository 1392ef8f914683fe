"""A store on a mounted volume.

`prepared/<key>/` and `engines/<key>/` are created by renaming a complete, synced folder from `tmp/`, so
that readers see an artefact completely or not at all, even after a crash. A replaced artefact is first
renamed to `tmp/`: for that moment, or after a crash in it, there is none, and it is made again.
"""

import errno
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from enginewright_contract.collection import RENEWED_AFTER_SECONDS
from enginewright_contract.manifest import MANIFEST_NAME, ArtifactFile, Manifest
from enginewright_contract.reasons import Reason
from typing_extensions import override

from enginewright_runtime.core import digests
from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import TransferProgress
from enginewright_runtime.core.plain_files import open_plain
from enginewright_runtime.store import set_aside
from enginewright_runtime.store.artifacts import Artifact, ArtifactKind
from enginewright_runtime.store.medium import Leftover, Listed, Medium, Publication, Space, Stored

_log: Final = logging.getLogger(__name__)
_TMP: Final = "tmp"
_DEAD_AFTER_SECONDS: Final = 86400.0
_MOVE_TRIES: Final = 5  # of an artefact, each after another one was moved away
_OWN: Final = re.compile(r"(?:[0-9a-f]{64}|damaged)-[0-9a-f]{16}")  # names of folders in tmp/
_NOT_PERMITTED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class VolumeMedium(Medium):
    """A folder that Jobs and serving pods mount; its clients may see renamed folders for `settled_after` seconds."""

    def __init__(self, root: Path, settled_after: float = set_aside.SETTLED_AFTER_SECONDS) -> None:
        self._root = root
        self._settled_after = settled_after

    @override
    def get(self, name: str, largest: int) -> bytes | None:
        self._require()
        try:
            with open_plain(self._root / name) as reader:
                return reader.read(largest)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @override
    def put(self, name: str, content: bytes) -> None:
        self._require()
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @override
    def copy(
        self,
        artifact: Artifact,
        file: ArtifactFile,
        writer: BinaryIO | None,
        on_chunk: Callable[[int], None] | None = None,
    ) -> Copied | None:
        with self.open_file(artifact, file) as reader:
            try:
                return None if reader is None else digests.copy(reader, writer, on_chunk)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                return (
                    None  # another node has replaced the artefact, so the file that is open is gone
                )

    @override
    @contextmanager
    def open_file(self, artifact: Artifact, file: ArtifactFile) -> Iterator[BinaryIO | None]:
        try:
            reader = open_plain(self._root / artifact.folder / file.path)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        with reader:
            yield reader

    @override
    def publish(self, publication: Publication) -> tuple[Manifest, bool]:
        self._require()
        self._sweep()
        folder = self._root / _TMP / f"{publication.artifact.key}-{secrets.token_hex(8)}"
        try:
            manifest = _write_folder(folder, publication)
            return manifest, self._move_in(folder, publication, manifest)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @override
    def leftovers(self, named: Callable[[], frozenset[str]]) -> Iterator[Leftover]:
        """Yield folders of publishers that ended more than a day ago."""
        del named  # the files of an artefact are in its folder
        self._require()
        for entry in self._own_folders():
            written = _last_written(entry)
            if time.time() - written > _DEAD_AFTER_SECONDS:
                modified = datetime.fromtimestamp(written, UTC)
                yield Leftover(
                    f"{_TMP}/{entry.name}", sum(size for _, size in _files_in(entry)), modified
                )

    @override
    def remove(self, leftover: Leftover) -> bool:
        """Remove a folder that was not written to meanwhile, as a living publisher would."""
        folder = self._root / leftover.name
        if not (_is_folder(folder.parent) and _is_own(folder)):
            return False
        if datetime.fromtimestamp(_last_written(folder), UTC) != leftover.modified:
            return False
        if set_aside.is_set_aside(folder.name):
            return set_aside.finish(self._root, folder)
        shutil.rmtree(folder, ignore_errors=True)
        return not os.path.lexists(folder)

    @override
    def artifacts(self, kind: ArtifactKind) -> Iterator[Listed]:
        """Yield what has a manifest, with one look at the disk for each."""
        self._require()
        folder = self._root / kind.folder
        if not folder.is_dir():
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                if (written := set_aside.find_last_use(Path(entry.path))) is not None:
                    yield Listed(entry.name, written)

    @override
    def renew(self, artifact: Artifact) -> None:
        """Touch the manifest; without permission to, only the list of needed artefacts protects it."""
        path = self._root / artifact.manifest
        try:
            if time.time() - path.lstat().st_mtime > RENEWED_AFTER_SECONDS:
                os.utime(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            if error.errno not in _NOT_PERMITTED:
                raise
            _log.warning("%s is not marked as used: %s", artifact.folder, error.strerror)

    @override
    def list_stored(self, kinds: Sequence[ArtifactKind]) -> Iterator[Stored]:
        """Yield the artefacts; no link is followed."""
        for kind in kinds:
            if not _is_folder(self._root / kind.folder):
                continue
            for listed in self.artifacts(kind):
                artifact = Artifact(kind, listed.key)
                if _is_folder(self._root / artifact.folder):
                    yield Stored(
                        artifact, listed.used, listed.version, self._sizes(artifact.folder)
                    )

    @override
    def discard(self, unused: Sequence[Stored]) -> list[Stored]:
        tmp = self._root / _TMP
        if unused:
            tmp.mkdir(exist_ok=True)
        return set_aside.discard(self._root, tmp, unused, self._settled_after)

    @override
    def records(self, folder: str) -> Iterator[Leftover]:
        """Yield the files, also those that are being written."""
        self._require()
        if not _is_folder(self._root / folder):
            return
        for path, size in _files_in(self._root / folder):
            with suppress(FileNotFoundError):
                modified = datetime.fromtimestamp(path.lstat().st_mtime, UTC)
                yield Leftover(str(path.relative_to(self._root)), size, modified)

    @override
    def remove_record(self, record: Leftover) -> bool:
        path = self._root / record.name
        try:
            if datetime.fromtimestamp(path.lstat().st_mtime, UTC) != record.modified:
                return False
            path.unlink()
        except FileNotFoundError:
            return True
        except PermissionError:
            return False
        if path.parent.parent != self._root:
            with suppress(OSError):
                path.parent.rmdir()
        return True

    @override
    def space(self) -> Space | None:
        usage = shutil.disk_usage(self._root)
        return Space(usage.total, usage.free)

    def _sizes(self, folder: str) -> dict[str, int]:
        return {
            str(path.relative_to(self._root)): size for path, size in _files_in(self._root / folder)
        }

    def _require(self) -> None:
        if not self._root.is_dir():
            raise StageFailure(
                Reason.STORE_UNAVAILABLE, f"the store does not exist: {self._root} is not a folder"
            )

    def _own_folders(self) -> list[Path]:
        """Return the folders of publishers; what has another name, or is a link, is not theirs."""
        folder = self._root / _TMP
        if not _is_folder(folder):
            return []
        return [path for path in folder.iterdir() if _is_own(path)]

    def _move_in(self, folder: Path, publication: Publication, manifest: Manifest) -> bool:
        """Rename the complete folder to the artefact; return False if another one is there and stays."""
        target = self._root / publication.artifact.folder
        target.parent.mkdir(exist_ok=True)
        for _ in range(_MOVE_TRIES):
            try:
                folder.rename(target)
            except OSError as error:
                if error.errno not in set_aside.TAKEN:
                    raise
                if publication.stays(manifest):
                    return False
                self._move_away(target)
            else:
                digests.sync_folder(target.parent)
                return True
        raise StageFailure(
            Reason.STORE_UNAVAILABLE,
            f"other publishers keep replacing {publication.artifact.folder}",
        )

    def _move_away(self, target: Path) -> None:
        """Remove a damaged or replaced artefact; another process may do so at the same time."""
        trash = self._root / _TMP / f"damaged-{secrets.token_hex(8)}"
        try:
            target.rename(trash)
        except FileNotFoundError:
            return
        shutil.rmtree(trash, ignore_errors=True)

    def _sweep(self) -> None:
        (self._root / _TMP).mkdir(exist_ok=True)
        for leftover in self.leftovers(frozenset):
            self.remove(leftover)


def _write_folder(folder: Path, publication: Publication) -> Manifest:
    """Copy the files to a new folder, the manifest last, all of it durable."""
    listed = []
    for name, source in publication.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as reader, target.open("xb") as writer:
            progress = TransferProgress(_log, f"storing {name}", source.stat().st_size)
            copied = digests.copy(reader, writer, progress.add)
            _sync(writer)
        listed.append(ArtifactFile(path=name, sha256=copied.sha256, size_bytes=copied.size_bytes))
    manifest = publication.describe(tuple(listed))
    with (folder / MANIFEST_NAME).open("xb") as writer:
        writer.write(manifest.to_json().encode())
        _sync(writer)
    for path in sorted({folder / name for name in publication.files}, reverse=True):
        digests.sync_folder(path.parent)
    digests.sync_folder(folder)
    return manifest


def _sync(writer: BinaryIO) -> None:
    writer.flush()
    os.fsync(writer.fileno())


def _is_own(path: Path) -> bool:
    name = path.name
    is_ours = _OWN.fullmatch(name) is not None or set_aside.is_set_aside(name)
    return is_ours and _is_folder(path)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _files_in(folder: Path) -> Iterator[tuple[Path, int]]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            with suppress(FileNotFoundError):
                yield path, path.lstat().st_size


def _last_written(folder: Path) -> float:
    try:
        times = [folder.lstat().st_mtime]
        times += [path.lstat().st_mtime for path in folder.rglob("*")]
    except FileNotFoundError:
        return time.time()
    return max(times)
