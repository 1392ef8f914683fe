"""The interface of sources: bounded listings, copies of files, path checks, failures."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.sources.quota import DiskQuota

# in a folder; a model or its calibration data has fewer
MOST_FILES: Final = 100_000


class Missing(Exception):  # noqa: N818 - callers decide whether it is an error
    """A file does not exist; the message names its location."""


@dataclass(frozen=True)
class Entry:
    """One file of a folder."""

    path: str  # relative to the folder, with /
    size: int | None = None  # bytes, if listed
    validator: str | None = None  # as `ModelSource.head` returns it, if listed


class ModelSource(ABC):
    """The files at an address: a file with its siblings, or a folder."""

    shown: str  # the address for messages, without secrets

    @property
    def pin(self) -> str | None:
        """Return the commit or digest that a tag or branch resolved to, after `find` was called."""
        return None

    def current_pin(self) -> str | None:
        """Return what `pin` would be now, by one request for metadata, if the server reports it."""
        return None

    def head(self, path: str) -> str | None:
        """Return the validator of a file's content now, by one request after `find`, if it has a reliable one."""
        del path
        return None

    @abstractmethod
    def find(self) -> str | None:
        """Return the name of the file at the address, or None for a folder; raises StageFailure: SourceUnreachable."""

    def files(self, *, deep: bool) -> list[Entry]:
        """Return the files of the folder, with `deep` of its subfolders too; raises StageFailure: SourceUnreachable."""
        entries = list(islice(self._entries(deep=deep), MOST_FILES + 1))
        if len(entries) > MOST_FILES:
            raise unreachable(
                f"{self.shown} has more than {MOST_FILES} files",
                "name the file, or a smaller folder",
            )
        return sorted(entries, key=lambda entry: entry.path)

    @abstractmethod
    def _entries(self, *, deep: bool) -> Iterable[Entry]:
        """Return the files in any order; at most `MOST_FILES` + 1 are consumed."""

    @abstractmethod
    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        """Copy a file to `target`; `path` is relative to the folder, or to the folder of the file.

        Raises Missing, or StageFailure: SourceUnreachable; ModelTooLarge, StorageFull; DigestMismatch if its digest is
        not the listed one.
        """


def local_files(folder: Path, *, deep: bool) -> Iterator[Entry]:
    """Yield the files of a local folder; symbolic links to folders are not followed."""
    if deep:
        paths = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    else:
        paths = folder.iterdir()
    for path in paths:
        if path.is_file():
            yield Entry(path.relative_to(folder).as_posix(), path.stat().st_size)


def parent_of(path: str) -> str:
    """Return the folder of a relative path, "" for the root."""
    parent = PurePosixPath(path).parent.as_posix()
    return "" if parent == "." else parent


def join_path(folder: str, path: str) -> str:
    """Return the path of an entry of a folder, "" for the root."""
    return f"{folder}/{path}" if folder else path


def unsafe(path: str) -> str | None:
    """Return why an untrusted name must not be used as a path, as text after "it", if it must not.

    Nothing may be written outside the folder, and every name must be representable in logs, JSON and other systems.
    """
    parts = PurePosixPath(path).parts
    if not parts or path.endswith("/"):
        return "is not a file name"
    if path.startswith("/") or "\\" in path or (len(path) > 1 and path[1] == ":"):
        return "is an absolute path or has a backslash"
    if ".." in parts:
        return "leads out of the folder"
    if not path.isprintable():  # control characters, and bytes that are not UTF-8
        return "has characters that cannot be printed"
    if any(len(part.encode()) > 255 for part in parts) or len(parts) > 32:
        return "is too long"
    return None
