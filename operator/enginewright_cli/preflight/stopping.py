"""An interrupt: set by a signal, seen by everything under way."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

# of those that the system has: Windows has no SIGHUP
_SIGNALS: Final = tuple(
    each for each in signal.Signals if each.name in {"SIGINT", "SIGTERM", "SIGHUP"}
)


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """What was under way has been ended by an interrupt."""


class Stop:
    """Set once, by a signal's handler.

    No threading.Event: its lock is not reentrant, and a second signal that comes while the first one's
    handler holds it would wait for ever.
    """

    def __init__(self, outer: "Stop | None" = None) -> None:
        """Make one that is also set once `outer` is."""
        self._outer = outer
        self._is_set = False

    def set(self) -> None:
        """Ask everything to end."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether it was asked to."""
        return self._is_set or (self._outer is not None and self._outer.is_set())


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Give what is set by the first signal that asks this process to end."""
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
