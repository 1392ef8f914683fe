"""Interrupts: a flag that a signal sets and everything in progress checks, or that ends the calls beside a failed one."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import FrameType
from typing import Final

# those that exist here: Windows has no SIGHUP
_SIGNALS: Final = tuple(
    Signal for Signal in signal.Signals if Signal.name in {"SIGINT", "SIGTERM", "SIGHUP"}
)


class Stopped(Exception):  # noqa: N818 - not an error
    """An interrupt has ended what was in progress."""


class Stop:
    """A flag for signal handlers; a second signal would deadlock on the lock of a threading.Event."""

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
def stop_on_signals() -> Iterator[Stop]:
    """Yield the flag that the first SIGINT, SIGTERM or SIGHUP sets."""
    stop = Stop()

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.set()

    before = {signals: signal.signal(signals, interrupt) for signals in _SIGNALS}
    try:
        yield stop
    finally:
        for key, handler in before.items():
            signal.signal(key, handler)


def in_parallel(
    calls: Sequence[Callable[[], None]], at_once: int, abandon: Callable[[], None]
) -> None:
    """Make all calls in order, `at_once` at a time, and return when all have ended.

    `abandon` makes running calls end soon, with `Stopped`. Raises the first exception other than `Stopped`,
    else that.
    """
    if not calls:
        return
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        running = [pool.submit(call) for call in calls]
        done, waiting = wait(running, return_when=FIRST_EXCEPTION)
        if any(future.exception() for future in done):
            abandon()
            for future in waiting:
                future.cancel()
    raised = [
        error for future in running if not future.cancelled() and (error := future.exception())
    ]
    if raised:
        raise next(
            (exception for exception in raised if not isinstance(exception, Stopped)), raised[0]
        )
