"""Progress output: a line for each step, with its duration."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from driver.errors import ClusterError


def say(text: str) -> None:
    """Print one line to standard error; standard output is for results, such as those of `env`."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print a step's title at its start, and its duration at its end."""
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
            raise ClusterError(f"timed out after {seconds:.0f} s waiting for {what}; {remedy}")
        time.sleep(0.2)
