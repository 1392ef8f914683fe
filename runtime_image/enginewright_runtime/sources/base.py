"""The interface of a place that holds models."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

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


class ModelSource(Protocol):
    """An address: a file with what lies beside it, or a folder of files."""

    @property
    def shown(self) -> str:
        """Return the address for messages, without anything secret."""

    @property
    def pin(self) -> str | None:
        """Return what a moving name resolved to, once `find` was called: a commit, a digest."""

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

    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        """Copy a file to `target`; `path` is relative to the folder, or to the folder of the file.

        Raises:
            Missing: there is none.
            StageFailure: SourceUnreachable, or ModelTooLarge when it exceeds the quota.
        """


def unreachable(message: str, remedy: str | None = None) -> StageFailure:
    """Return the failure of a source that cannot be read."""
    return StageFailure(Reason.SOURCE_UNREACHABLE, message, remedy=remedy)


def too_many_files(shown: str) -> StageFailure:
    """Return the failure for a folder that holds more than one may."""
    return unreachable(
        f"{shown} has more than {MOST_FILES} files", "name the file, or a smaller folder"
    )


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
