"""The server has one core, or the first ones for several runs at a time, and the load generator another."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SERVER: Final = 0
LOAD: Final = 1


def find_cores() -> list[int]:
    """Return the numbers of the one or two cores of server and load generator."""
    return sorted(os.sched_getaffinity(0))[:2]


@contextmanager
def pin(*places: int) -> Iterator[None]:
    """Let processes that start meanwhile run on these cores, or all on the only one."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[place % len(cores)] for place in places})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
