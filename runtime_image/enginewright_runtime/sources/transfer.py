"""Writes a download to the disk, and resumes it after the connection is interrupted."""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Final

from enginewright_contract.reasons import Reason

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.disk import is_full
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import TransferProgress, format_bytes
from enginewright_runtime.remote.retry import Unavailable, with_retries
from enginewright_runtime.sources.quota import DiskQuota

_log: Final = logging.getLogger(__name__)


class Transfer:
    """The part of a file received so far, with its running digest."""

    def __init__(self, name: str, writer: BinaryIO, quota: DiskQuota) -> None:
        self.name = name
        self.size = 0  # bytes received
        self.validator: str | None = None  # identifies the content in conditional requests
        self.version: str | None = None  # the same for users
        self.head_validator: str | None = None  # the same for `ModelSource.head`
        self._total: int | None = None
        self._writer = writer
        self._quota = quota
        self._digest = hashlib.sha256()
        self._progress = TransferProgress(_log, f"fetching {name}", None)

    def resumes(self) -> bool:
        """Return whether a range can be requested; start over if not."""
        if self.size and self.validator:
            return True
        self.start_over()
        return False

    def start_over(self) -> None:
        """Discard what was received."""
        self._writer.seek(0)
        self._writer.truncate()
        self._quota.release(self.size)
        self.size = 0
        self._digest = hashlib.sha256()
        self._progress.restart()

    def expect(self, more: int | None) -> None:
        """Set the number of bytes still to come, if known; raises as `DiskQuota.check`."""
        self._total = None if more is None else self.size + more
        if more is not None:
            self._progress.expect(self.size + more)
            self._quota.check(self.name, more)

    def receive(self, chunk: bytes | memoryview) -> None:
        """Write a received chunk; raises StageFailure: ModelTooLarge, StorageFull, or InternalError for other errors."""
        self._quota.add(self.name, len(chunk))
        try:
            self._writer.write(chunk)
            self._writer.flush()
        except OSError as error:
            if is_full(error):
                raise self._quota.full(self.name) from error
            raise StageFailure(
                Reason.INTERNAL_ERROR,
                f"cannot write {self.name} to the work folder: {error.strerror}",
                remedy="check the disk of the pod's node",
            ) from error
        self._digest.update(chunk)
        self.size += len(chunk)
        self._progress.add(len(chunk))

    def end(self) -> Copied:
        """Return digest, size and version of the complete file; raises Unavailable if it is truncated."""
        if self._total is not None and self.size != self._total:
            raise Unavailable(
                f"{self.name} ended after {format_bytes(self.size)} of {format_bytes(self._total)}"
            )
        return Copied(self._digest.hexdigest(), self.size, self.version, self.head_validator)


async def transfer_file(
    what: str,
    name: str,
    target: Path,
    quota: DiskQuota,
    attempt: Callable[[Transfer], Awaitable[None]],
) -> Copied:
    """Transfer a file to `target`, with retries; raises StageFailure: SourceUnreachable, or as `Transfer.receive`.

    Progress lines show `name`, failures the address `what`. `attempt` receives all or a part, and raises `Unavailable`
    if it is interrupted.
    """
    try:
        with target.open("wb") as writer:
            transfer = Transfer(name, writer, quota)

            async def once() -> Copied:
                await attempt(transfer)
                return transfer.end()

            return await with_retries(f"fetch {what}", once, lambda: transfer.size)
    except OSError as error:
        # closing the file tries again to write the buffer
        if isinstance(error.__context__, StageFailure):
            raise error.__context__ from None
        raise
