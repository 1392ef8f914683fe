"""Interrupts: a flag that a signal sets and everything in progress checks."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

# those that exist here: Windows has no SIGHUP
_SIGNALS: Final = tuple(
    each for each in signal.Signals if each.name in {"SIGINT", "SIGTERM", "SIGHUP"}
)


class Stopped(Exception):  # noqa: N818 - not an error
    """An interrupt has ended what was in progress."""


class Stop:
    """A flag that a signal handler sets once.

    Not a threading.Event: its lock is not reentrant, so a second signal that arrives while the handler
    of the first one holds it would deadlock.
    """

    def __init__(self, outer: "Stop | None" = None) -> None:
        """Create a flag that is also set when `outer` is."""
        self._outer = outer
        self._is_set = False

    def set(self) -> None:
        """Request everything to end."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether that was requested."""
        return self._is_set or (self._outer is not None and self._outer.is_set())


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Yield the flag that the first SIGINT, SIGTERM or SIGHUP sets."""
    stop = Stop()

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.set()

    before = {each: signal.signal(each, interrupt) for each in _SIGNALS}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
