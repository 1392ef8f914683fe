"""Fetches files from a source to the work folder.

Of a folder or archive, exactly one file must have the suffix if one is requested: a guess could serve the wrong one.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.report import name_nodes
from typing_extensions import override

from enginewright_runtime.core.digests import Copied, file_sha256
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import CALIBRATION_DATA
from enginewright_runtime.core.logs import format_bytes, format_count
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.sources import archive
from enginewright_runtime.sources.base import (
    Entry,
    Missing,
    ModelSource,
    join_path,
    local_files,
    parent_of,
    unsafe,
)
from enginewright_runtime.sources.formats import MODEL_SUFFIX, name_format
from enginewright_runtime.sources.quota import DiskQuota

_log: Final = logging.getLogger(__name__)
_NPZ: Final = ".npz"


@dataclass(frozen=True)
class FetchedFile:
    """A fetched file, and the location of its siblings."""

    file: Copied
    siblings: ModelSource  # has the files beside it
    folder: str  # of the file in `siblings`, relative
    archive: Copied | None = None  # that contained it


@contextmanager
def fetch_one(
    source: ModelSource, suffix: str, target: Path, quota: DiskQuota
) -> Iterator[FetchedFile]:
    """Fetch the file at an address, or the only one with that suffix in its folder or archive.

    The other files of an archive stay on the disk until the context ends. Raises StageFailure: SourceUnreachable,
    ModelTooLarge, or InvalidModel for an archive that cannot be unpacked or does not contain exactly one.
    """
    name = source.find()
    if name is None:
        path = _only(source, suffix)
        yield FetchedFile(_copy(source, path, target, quota), source, parent_of(path))
        return
    copied = _copy(source, name, target, quota)
    if suffix == _NPZ or archive.kind_of(target) is None:  # an .npz is a zip in itself
        yield FetchedFile(copied, source, "")
        return
    with _unpack(source, target, quota) as unpacked:
        path = _only(unpacked, suffix, Reason.INVALID_MODEL)
        inner = _copy(unpacked, path, target, quota)
        yield FetchedFile(inner, unpacked, parent_of(path), copied)


def fetch_sibling(fetched: FetchedFile, location: str, target: Path, quota: DiskQuota) -> Copied:
    """Fetch a file by its path relative to the folder of `fetched`; raises Missing, or as `fetch_one`."""
    return fetched.siblings.copy(join_path(fetched.folder, location), target, quota)


def fetch_all(source: ModelSource, folder: Path, quota: DiskQuota) -> list[tuple[str, Copied]]:
    """Fetch a file, or all but the hidden files of a folder or archive; return their paths, sorted, and digests.

    A single .npz is renamed to data.npz. Raises StageFailure: SourceUnreachable, ModelTooLarge, CalibrationInvalid.
    """
    name = source.find()
    if name is None:
        return _fetch_files(source, folder, quota)
    target = folder / _check_name(source, PurePosixPath(name).name)
    copied = _copy(source, name, target, quota)
    if target.suffix.lower() != _NPZ and archive.kind_of(target) is not None:
        with _unpack(source, target, quota, Reason.CALIBRATION_INVALID) as unpacked:
            return _fetch_files(unpacked, folder, quota)
    return _rename_data([(target.name, copied)], folder)


def _fetch_files(source: ModelSource, folder: Path, quota: DiskQuota) -> list[tuple[str, Copied]]:
    entries = [entry for entry in source.files(deep=True) if not _is_hidden(entry)]
    if not entries:
        raise StageFailure(Reason.CALIBRATION_INVALID, f"{source.shown} has no files")
    _log.info("%s holds %s", source.shown, format_count(len(entries), "file"))
    fetched = []
    for entry in entries:
        target = folder / _check_name(source, entry.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        fetched.append((entry.path, _copy(source, entry.path, target, quota)))
    return _rename_data(fetched, folder)


def _rename_data(fetched: list[tuple[str, Copied]], folder: Path) -> list[tuple[str, Copied]]:
    if len(fetched) != 1 or not fetched[0][0].lower().endswith(_NPZ):
        return fetched
    (folder / fetched[0][0]).rename(folder / CALIBRATION_DATA)
    return [(CALIBRATION_DATA, fetched[0][1])]


class _UnpackedSource(ModelSource):
    """The content of an archive; files are moved, because two copies may not fit on the disk."""

    def __init__(self, folder: Path, shown: str) -> None:
        self._folder = folder
        self.shown = shown

    @override
    def find(self) -> str | None:
        return None

    @override
    def _entries(self, *, deep: bool) -> Iterator[Entry]:
        return local_files(self._folder, deep=deep)

    @override
    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        del quota  # counted while unpacking
        origin = self._folder / path
        if not origin.is_file():
            raise Missing(f"{self.shown} has no file {path!r} there")
        copied = file_sha256(origin)
        origin.replace(target)
        return copied


@contextmanager
def _unpack(
    source: ModelSource, packed: Path, quota: DiskQuota, reason: Reason = Reason.INVALID_MODEL
) -> Iterator[_UnpackedSource]:
    """Unpack an archive and remove it; the content is deleted when the context ends."""
    with tempfile.TemporaryDirectory(prefix="unpacked-", dir=packed.parent.parent) as folder:
        size = packed.stat().st_size
        try:
            archive.unpack(packed, Path(folder), quota)
        except archive.ArchiveError as error:
            raise StageFailure(reason, f"the archive {source.shown} {error}") from None
        packed.unlink()
        quota.release(size)
        _log.info("unpacked %s of %s", format_bytes(size), source.shown)
        yield _UnpackedSource(Path(folder), f"the archive {source.shown}")


def _only(source: ModelSource, suffix: str, reason: Reason = Reason.SOURCE_UNREACHABLE) -> str:
    names: list[str] = []
    paths: list[str] = []
    for deep in (False, True):
        paths = [entry.path for entry in source.files(deep=deep) if not _is_hidden(entry)]
        names = [path for path in paths if path.lower().endswith(suffix)]
        if names:
            break
    if len(names) == 1:
        return names[0]
    remedy = "name the file" if names else f"name a folder or archive with one {suffix} file"
    form = name_format(paths) if suffix == MODEL_SUFFIX and not names else None
    if form is not None:  # no further try finds anything else
        reason, remedy = Reason.INVALID_MODEL, "export the model to ONNX, and give the .onnx file"
    what = f", and is {form}" if form else f": {name_nodes(names) or 'none'}"
    raise StageFailure(
        reason, f"{source.shown} has {len(names)} {suffix} files{what}", remedy=remedy
    )


def _copy(source: ModelSource, path: str, target: Path, quota: DiskQuota) -> Copied:
    try:
        return source.copy(path, target, quota)
    except Missing as missing:
        raise unreachable(str(missing)) from None


def _check_name(source: ModelSource, path: str) -> str:
    if cause := unsafe(path):
        raise unreachable(f"{source.shown} has a file {path!r}, whose name {cause}")
    return path


def _is_hidden(entry: Entry) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(entry.path).parts)


def empty_folder(folder: Path) -> Path:
    """Return the folder, cleared of files from an earlier attempt."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
