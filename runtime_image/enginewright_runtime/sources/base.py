"""What every place that holds models has: bounded lists of files, paths in them, failures."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from enginewright.contract.reasons import Reason

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.sources.quota import DiskQuota

# of a folder; more are a data lake, not a model or its calibration data
MOST_FILES: Final = 100_000


class Missing(Exception):  # noqa: N818 - the caller knows what it means
    """There is no such file; the message says where it was looked for."""


@dataclass(frozen=True)
class Entry:
    """One file of a folder."""

    path: str  # relative to the folder, with /
    size: int | None = None  # bytes; None: not known


class ModelSource(ABC):
    """An address: a file with what lies beside it, or a folder of files."""

    shown: str  # the address for messages, without anything secret

    @property
    def pin(self) -> str | None:
        """Return what a moving name resolved to, once `find` was called: a commit, a digest."""
        return None

    @abstractmethod
    def find(self) -> str | None:
        """Return the name of the file at the address, or None when it is a folder.

        Raises:
            StageFailure: SourceUnreachable.
        """

    def files(self, *, deep: bool) -> list[Entry]:
        """Return the files of the folder; with `deep`, of the folders in it too.

        Raises:
            StageFailure: SourceUnreachable, also for more than `MOST_FILES`.
        """
        found = list(islice(self._entries(deep=deep), MOST_FILES + 1))
        if len(found) > MOST_FILES:
            raise unreachable(
                f"{self.shown} has more than {MOST_FILES} files",
                "name the file, or a smaller folder",
            )
        return sorted(found, key=lambda entry: entry.path)

    @abstractmethod
    def _entries(self, *, deep: bool) -> Iterable[Entry]:
        """Return the files in any order; those past `MOST_FILES` are not read."""

    @abstractmethod
    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        """Copy a file to `target`; `path` is relative to the folder, or to the folder of the file.

        Raises:
            Missing: there is none.
            StageFailure: SourceUnreachable, ModelTooLarge or StorageFull when it exceeds the quota,
                DigestMismatch when it is not what the source lists.
        """


def unreachable(message: str, remedy: str | None = None) -> StageFailure:
    """Return the failure of a source that cannot be read."""
    return StageFailure(Reason.SOURCE_UNREACHABLE, message, remedy=remedy)


def local_files(folder: Path, *, deep: bool) -> Iterator[Entry]:
    """Yield the files of a folder of this machine; links to folders are not entered."""
    if deep:
        paths = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    else:
        paths = folder.iterdir()
    for path in paths:
        if path.is_file():
            yield Entry(path.relative_to(folder).as_posix(), path.stat().st_size)


def parent_of(path: str) -> str:
    """Return the folder of a relative path; "" for the top."""
    parent = PurePosixPath(path).parent.as_posix()
    return "" if parent == "." else parent


def joined(folder: str, path: str) -> str:
    """Return the path of what lies in a folder, "" being the top."""
    return f"{folder}/{path}" if folder else path


def unsafe(path: str) -> str | None:
    """Return why a name from outside is no path inside a folder, as text after "it"; None: it is.

    Names in archives and manifests are the sender's choice: nothing may be written outside the
    folder, and every name must be one that logs, JSON and other systems can hold.
    """
    parts = PurePosixPath(path).parts
    if not parts or path.endswith("/"):
        return "is not a file name"
    if path.startswith("/") or "\\" in path or (len(path) > 1 and path[1] == ":"):
        return "is an absolute path or has a backslash"
    if ".." in parts:
        return "leads out of the folder"
    if not path.isprintable():  # control characters, and bytes that are no UTF-8
        return "has characters that cannot be printed"
    if any(len(part.encode()) > 255 for part in parts) or len(parts) > 32:
        return "is too long"
    return None
