"""The server has one core and the load generator another."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SERVER: Final = 0
LOAD: Final = 1


def used() -> list[int]:
    """Return the numbers of the cores that server and load generator have: two, or only one."""
    return sorted(os.sched_getaffinity(0))[:2]


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Let processes that are started meanwhile run on one core: the same one if there is only one."""
    before = os.sched_getaffinity(0)
    cores = used()
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
