"""A file on its way to the disk, which goes on where it stopped when its source breaks off."""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Final

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.logs import Progress, in_words
from enginewright_runtime.sources.patience import Unavailable, patiently
from enginewright_runtime.sources.room import Room

_log: Final = logging.getLogger(__name__)


class Transfer:
    """What is on the disk so far, with its digest taken on the way."""

    def __init__(self, name: str, writer: BinaryIO, room: Room) -> None:
        self.name = name
        self.size = 0  # bytes received
        self.validator: str | None = None  # by which the source knows its content again
        self.version: str | None = None  # the same for people
        self._total: int | None = None
        self._writer = writer
        self._room = room
        self._digest = hashlib.sha256()
        self._progress = Progress(_log, f"downloading {name}", None)

    def resumes(self) -> bool:
        """Tell whether a part can be asked for; when not, start over."""
        if self.size and self.validator:
            return True
        self.start_over()
        return False

    def start_over(self) -> None:
        """Forget what was received."""
        self._writer.seek(0)
        self._writer.truncate()
        self._room.give_back(self.size)
        self.size = 0
        self._digest = hashlib.sha256()
        self._progress.restart()

    def expect(self, more: int | None) -> None:
        """Set how many bytes are to come, once that is known.

        Raises:
            StageFailure: ModelTooLarge, when there is no room for them.
        """
        self._total = None if more is None else self.size + more
        if more is not None:
            self._progress.expect(self.size + more)
            self._room.check(self.name, more)

    def receive(self, chunk: bytes | memoryview) -> None:
        """Write what has come.

        Raises:
            StageFailure: ModelTooLarge, when there is no room for it.
        """
        self._room.take(self.name, len(chunk))
        try:
            self._writer.write(chunk)
            self._writer.flush()
        except OSError as error:
            raise self._room.full(self.name) from error
        self._digest.update(chunk)
        self.size += len(chunk)
        self._progress.add(len(chunk))

    def end(self) -> Copied:
        """Return what the whole file is.

        Raises:
            Unavailable: it ended early.
        """
        if self._total is not None and self.size != self._total:
            raise Unavailable(
                f"{self.name} ended after {in_words(self.size)} of {in_words(self._total)}"
            )
        return Copied(self._digest.hexdigest(), self.size, self.version)


async def carry(
    what: str,
    name: str,
    target: Path,
    room: Room,
    attempt: Callable[[Transfer], Awaitable[None]],
) -> Copied:
    """Bring a file to `target` with as many attempts as it takes.

    Args:
        what: its address, for the message of the failure.
        name: what progress lines call it.
        target: where it goes; its folder exists.
        room: what may be written.
        attempt: receives all or a part, and raises `Unavailable` where it breaks off.

    Raises:
        StageFailure: SourceUnreachable or ModelTooLarge.
    """
    with target.open("wb") as writer:
        transfer = Transfer(name, writer, room)

        async def once() -> Copied:
            await attempt(transfer)
            return transfer.end()

        return await patiently(f"download {what}", once, lambda: transfer.size)
