"""Models on a volume of the cluster, mounted read-only: pvc://CLAIM/PATH."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from enginewright_contract.report import name_nodes
from typing_extensions import override

from enginewright_runtime.core.digests import CHUNK, Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.remote.retry import Unavailable
from enginewright_runtime.sources.base import Entry, Missing, ModelSource, local_files
from enginewright_runtime.sources.quota import DiskQuota
from enginewright_runtime.sources.transfer import Transfer, transfer_file


class ClaimSource(ModelSource):
    """A file of the volume, or a folder, as plain files; links are followed inside the volume."""

    def __init__(self, mount: Path, claim: str, path: str) -> None:
        self._mount = mount
        self._claim = claim
        self._path = path.strip("/")
        self.shown = f"pvc://{claim}/{self._path}"

    @override
    def find(self) -> str | None:
        """Return the file's name in the address, not its link's target: siblings are beside it."""
        path = self._mount / self._path
        resolved = self._inside(path)
        if resolved.is_dir():
            return None
        if not resolved.is_file():
            raise unreachable(
                f"claim {self._claim} has no file {self._path!r}{self._existing_entries(resolved)}"
            )
        return path.name

    @override
    def _entries(self, *, deep: bool) -> Iterator[Entry]:
        folder = self._inside(self._mount / self._path)
        try:
            yield from local_files(folder, deep=deep)
        except OSError as error:
            raise self._unreadable(folder, error) from error

    @override
    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        named = self._mount / self._path
        folder = named if self._inside(named).is_dir() else named.parent
        resolved = self._inside(folder / path)
        if not resolved.is_file():
            raise Missing(f"claim {self._claim} has no file {path!r} there")

        async def attempt(transfer: Transfer) -> None:
            transfer.start_over()
            try:
                with resolved.open("rb") as reader:
                    before = os.fstat(reader.fileno())
                    transfer.expect(before.st_size)
                    while chunk := reader.read(min(CHUNK, before.st_size - transfer.size)):
                        transfer.receive(chunk)
                    after = os.fstat(reader.fileno())
            except OSError as error:
                raise self._unreadable(resolved, error) from error
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                transfer.start_over()  # parts of two versions cannot be combined
                raise Unavailable(
                    f"it changed while it was copied, from {before.st_size} to {after.st_size} bytes",
                    remedy="wait until it is written, or write it under another name and rename it",
                )

        shown = f"{path!r} of {self.shown}"
        return asyncio.run(transfer_file(shown, resolved.name, target, quota, attempt))

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

    def _existing_entries(self, path: Path) -> str:
        """Return what exists instead: paths are often written as in a different mount."""
        folder = next((parent for parent in path.parents if parent.is_dir()), None)
        if folder is None or not folder.is_relative_to(self._mount.resolve()):
            return ""
        try:
            names = sorted(entry.name for entry in folder.iterdir())
        except OSError:
            return ""
        where = "/" + str(folder.relative_to(self._mount.resolve())).removeprefix(".")
        return f"; {where} holds {name_nodes(names) or 'nothing'}"

    def _unreadable(self, path: Path, error: Exception) -> StageFailure:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        return unreachable(
            f"cannot copy {path.name!r} from claim {self._claim}: {cause}",
            "make the file readable for user 65532",
        )
