"""A store on a mounted volume.

`prepared/<key>/` and `engines/<key>/` are created by renaming a complete, synced folder from `tmp/`, so
that readers see an artefact completely or not at all, even after a crash. Of several publishers of
one key the first wins, and the others are informed.
"""

import errno
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from enginewright.contract.manifest import MANIFEST_NAME, ArtifactFile, Manifest
from enginewright.contract.reasons import Reason
from typing_extensions import override

from enginewright_runtime.core import digests
from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import TransferProgress
from enginewright_runtime.store.artifacts import Artifact, ArtifactKind
from enginewright_runtime.store.medium import Leftover, Listed, Medium, Publication
from enginewright_runtime.store.plain_files import open_plain

_log: Final = logging.getLogger(__name__)
_TMP: Final = "tmp"
_DEAD_AFTER_SECONDS: Final = 86400.0
_OWN: Final = re.compile(r"(?:[0-9a-f]{64}|damaged)-[0-9a-f]{16}")  # names of folders in tmp/
_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


class VolumeMedium(Medium):
    """A folder that Jobs and serving pods mount."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @override
    def get(self, name: str, largest: int) -> bytes | None:
        """Return the beginning of a file."""
        self._require()
        try:
            with open_plain(self._root / name) as reader:
                return reader.read(largest)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @override
    def put(self, name: str, content: bytes) -> None:
        """Write a file beside, and rename it."""
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
        """Copy all of the file, whatever its size."""
        with self.opened(artifact, file) as reader:
            return None if reader is None else digests.copy(reader, writer, on_chunk)

    @override
    @contextmanager
    def opened(self, artifact: Artifact, file: ArtifactFile) -> Iterator[BinaryIO | None]:
        """Open a file."""
        try:
            reader = open_plain(self._root / artifact.folder / file.path)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        with reader:
            yield reader

    @override
    def publish(self, publication: Publication) -> tuple[Manifest, bool]:
        """Copy the files to `tmp/`, and rename the folder."""
        self._require()
        self._sweep()
        folder = self._root / _TMP / f"{publication.artifact.key}-{secrets.token_hex(8)}"
        try:
            manifest = _write(folder, publication.files, publication.describe)
            return manifest, self._move_in(folder, publication)
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
                yield Leftover(f"{_TMP}/{entry.name}", _size(entry), modified)

    @override
    def remove(self, leftover: Leftover) -> bool:
        """Remove a folder; one whose publisher is still alive would have been written to."""
        folder = self._root / leftover.name
        if not (_is_folder(folder.parent) and _is_own(folder)):
            return False
        if datetime.fromtimestamp(_last_written(folder), UTC) != leftover.modified:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return not os.path.lexists(folder)

    @override
    def artifacts(self, kind: ArtifactKind) -> Iterator[Listed]:
        """Yield what has a manifest; one look at the disk for each."""
        self._require()
        folder = self._root / kind.folder
        if not folder.is_dir():
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    written = os.lstat(Path(entry.path) / MANIFEST_NAME).st_mtime
                except (FileNotFoundError, NotADirectoryError):
                    continue
                yield Listed(entry.name, datetime.fromtimestamp(written, UTC))

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
        return [each for each in folder.iterdir() if _is_own(each)]

    def _move_in(self, folder: Path, publication: Publication) -> bool:
        """Rename the complete folder to the artefact; False: another publisher was first."""
        target = self._root / publication.artifact.folder
        target.parent.mkdir(exist_ok=True)
        for attempt in (1, 2):
            try:
                folder.rename(target)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                if attempt == 2 or publication.is_intact():
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

    def _sweep(self) -> None:
        """Remove leftovers of publishers that ended more than a day ago."""
        (self._root / _TMP).mkdir(exist_ok=True)
        for each in self.leftovers(frozenset):
            self.remove(each)


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


def _sync(writer: BinaryIO) -> None:
    writer.flush()
    os.fsync(writer.fileno())


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder itself, not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _is_own(path: Path) -> bool:
    return _OWN.fullmatch(path.name) is not None and _is_folder(path)


def _size(folder: Path) -> int:
    """Return the bytes in a folder, as far as they are still there."""
    sizes = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            sizes += path.lstat().st_size
    return sizes


def _last_written(folder: Path) -> float:
    """Return the last modification time in a folder; now, if it was just removed."""
    try:
        times = [folder.lstat().st_mtime]
        times += [path.lstat().st_mtime for path in folder.rglob("*")]
    except FileNotFoundError:
        return time.time()
    return max(times)
