"""Tells what is going on: a line for each step, with its seconds, so that nobody stares at nothing."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from driver.errors import ClusterError


def say(text: str) -> None:
    """Print one line to standard error; standard output belongs to `env` and `status`."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step that may take long, and its seconds when it is done."""
    say(f"… {title}")
    start = time.monotonic()
    yield
    say(f"✓ {title} ({time.monotonic() - start:.1f} s)")


def wait_until(what: str, check: Callable[[], bool], seconds: float, remedy: str) -> None:
    """Poll `check` until it is true.

    Raises:
        ClusterError: After `seconds`, naming `what` and the remedy.
    """
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} did not happen within {seconds:.0f} s; {remedy}")
        time.sleep(0.2)
