"""Lines that say what takes time and how long it took, and polling that always ends."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import ClusterError


@contextmanager
def step(title: str, *, note: str = "") -> Iterator[None]:
    """Print TITLE with its seconds once it is done; NOTE is shown before, for long waits.

    On a terminal the running step is shown and then overwritten; elsewhere only whole lines are
    written. Progress goes to stderr: stdout is for answers.
    """
    terminal = sys.stderr.isatty()
    if terminal:
        print(f"  {title} {note}...", end="", file=sys.stderr, flush=True)
    elif note:
        print(f"  {title} {note}", file=sys.stderr, flush=True)
    started = time.monotonic()
    mark = "failed"
    try:
        yield
        mark = "ok"
    finally:
        clear = "\r\033[K" if terminal else ""
        seconds = time.monotonic() - started
        print(f"{clear}  {title:<44} {mark} {seconds:6.1f} s", file=sys.stderr, flush=True)


def wait_until(
    ready: Callable[[], bool],
    *,
    seconds: float,
    failure: Callable[[], ClusterError],
    interval: float = 0.1,
) -> None:
    """Poll until READY answers true; raise what FAILURE makes when the deadline has passed."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise failure()
        time.sleep(interval)
