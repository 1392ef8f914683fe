"""One file that a node's cache gets while it is written: read behind its writer."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewright_runtime.core.digests import CHUNK

_FIRST_SECONDS: Final = 0.5  # of sending, after which its rate counts
_BUFFERED_SECONDS: Final = 0.05  # between looks for what the writer has buffered


@dataclass
class SendingTime:
    """How long a pod may still send, which at most delays its start by as much."""

    seconds: float


class GivenUp(Exception):  # noqa: N818 - read as a sentence
    """The file is not sent any more; the message says why."""


class Offer:
    """A file of `size` bytes, which another thread writes to `source`; `path` is its URL's."""

    def __init__(self, path: str, size: int, source: Path, budget: SendingTime) -> None:
        self.path = path
        self.size = size
        self.source = source
        self._budget = budget
        self._written = 0
        self._is_whole = False
        self._why_not = ""  # why it is given up
        self._changed = threading.Condition()

    def count_written(self, size: int) -> None:
        """Count what was written; a part that is written again counts again."""
        with self._changed:
            self._written += size
            self._changed.notify()

    def is_whole(self) -> None:
        """Note that the file is complete, verified and closed."""
        with self._changed:
            self._is_whole = True
            self._changed.notify()

    def give_up(self, why: str) -> None:
        """Send nothing more of it."""
        with self._changed:
            self._why_not = why
            self._changed.notify()

    def chunks(self) -> Iterator[bytes]:
        """Yield the content as it is written; a request for the next chunk means that the last one is sent.

        Raises GivenUp, also if it would take longer than the budget, and the file's OSError.
        """
        sent, sending = 0, 0.0
        with self.source.open("rb") as reader:
            while sent < self.size:
                was_whole = self._wait(sent)
                if not is_worthwhile(sent, sending, self.size - sent, self._budget.seconds):
                    raise GivenUp(f"it takes {sent / sending / (1 << 20):.0f} MiB/s")
                if chunk := reader.read(CHUNK):
                    began = time.monotonic()
                    yield chunk
                    took = time.monotonic() - began
                    sending += took
                    self._budget.seconds -= took
                    sent += len(chunk)
                elif was_whole:
                    raise GivenUp("the file is shorter than its manifest says")
                else:
                    self._wait_for_buffers()

    def _wait(self, sent: int) -> bool:
        """Wait until more than `sent` is written; return whether that is in the file, not only in buffers."""
        with self._changed:
            self._changed.wait_for(lambda: self._written > sent or self._is_whole or self._why_not)
            if self._why_not:
                raise GivenUp(self._why_not)
            return self._is_whole

    def _wait_for_buffers(self) -> None:
        with self._changed:
            if not self._is_whole:
                self._changed.wait(_BUFFERED_SECONDS)


def is_worthwhile(sent: int, seconds: float, more: int, left: float) -> bool:
    """Return whether a receiver of `sent` bytes in `seconds` receives `more` in the seconds that are left."""
    return seconds < _FIRST_SECONDS or more * seconds <= left * sent
