"""Models on a volume of the cluster, mounted read-only: pvc://CLAIM/PATH."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from enginewright.contract.report import name_nodes

from enginewright_runtime.core import digests
from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.disk import is_full
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import TransferProgress
from enginewright_runtime.sources.base import (
    MOST_FILES,
    Entry,
    Missing,
    too_many_files,
    unreachable,
)
from enginewright_runtime.sources.quota import DiskQuota

_log: Final = logging.getLogger(__name__)


class ClaimSource:
    """A file of the volume, or a folder.

    Symbolic links are followed as long as they end inside the volume: a Hugging Face cache is made
    of them. What is copied are plain files, since onnx and ONNX Runtime refuse linked weights.
    """

    pin = None  # a volume has no versions

    def __init__(self, mount: Path, claim: str, path: str) -> None:
        self._mount = mount
        self._claim = claim
        self._path = path.strip("/")
        self.shown = f"pvc://{claim}/{self._path}"

    def find(self) -> str | None:
        """Return the name of the file as the address has it: external data lies beside that."""
        path = self._mount / self._path
        resolved = self._inside(path)
        if resolved.is_dir():
            return None
        if not resolved.is_file():
            raise unreachable(
                f"claim {self._claim} has no file {self._path!r}{self._neighbours(resolved)}"
            )
        return path.name

    def files(self, *, deep: bool) -> list[Entry]:
        """Return the files of the folder; links to folders are not entered."""
        folder = self._inside(self._mount / self._path)
        found: list[Entry] = []
        try:
            for path in _walk(folder, deep=deep):
                found.append(Entry(path.relative_to(folder).as_posix(), path.stat().st_size))
                if len(found) > MOST_FILES:
                    raise too_many_files(self.shown)
        except OSError as error:
            raise self._unreadable(folder, error) from error
        return sorted(found, key=lambda entry: entry.path)

    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        """Copy a file of the folder, or of the folder of the file."""
        named = self._mount / self._path
        folder = named if self._inside(named).is_dir() else named.parent
        resolved = self._inside(folder / path)
        if not resolved.is_file():
            raise Missing(f"claim {self._claim} has no file {path!r} there")
        return self._copy(resolved, target, quota)

    def _inside(self, path: Path) -> Path:
        mount = self._mount.resolve()
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError) as error:
            raise self._unreadable(path, error) from error
        if not resolved.is_relative_to(mount):
            raise unreachable(
                f"{str(path.relative_to(self._mount))!r} leads out of claim {self._claim}",
                "write a path inside the volume, without .. and links that leave it",
            )
        return resolved

    def _neighbours(self, path: Path) -> str:
        """Say what there is instead: most often the path is written as another mount has it."""
        folder = next((parent for parent in path.parents if parent.is_dir()), None)
        if folder is None or not folder.is_relative_to(self._mount.resolve()):
            return ""
        try:
            names = sorted(entry.name for entry in folder.iterdir())
        except OSError:
            return ""
        where = "/" + str(folder.relative_to(self._mount.resolve())).removeprefix(".")
        return f"; {where} holds {name_nodes(names) or 'nothing'}"

    def _copy(self, path: Path, target: Path, quota: DiskQuota) -> Copied:
        progress = TransferProgress(_log, f"copying {path.name}", None)

        def add(size: int) -> None:
            quota.add(path.name, size)
            progress.add(size)

        try:
            size = path.stat().st_size
            quota.check(path.name, size)
            progress.expect(size)
            with path.open("rb") as reader, target.open("wb") as writer:
                return digests.copy(reader, writer, add)
        except OSError as error:
            if is_full(error):
                raise quota.full(path.name) from error
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: Path, error: Exception) -> StageFailure:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        return unreachable(
            f"cannot copy {path.name!r} from claim {self._claim}: {cause}",
            "make the file readable for user 65532, and the work folder large enough",
        )


def _walk(folder: Path, *, deep: bool) -> Iterator[Path]:
    if not deep:
        yield from (path for path in folder.iterdir() if path.is_file())
        return
    for root, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(root) / name).is_file())
