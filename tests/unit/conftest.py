"""The unit layer is pure: tests/support/purity.py refuses what starts something, and nothing waits: time is virtual."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.support import purity
from tests.support.process_state import process_state  # noqa: F401 - a fixture
from tests.support.virtual_time import VirtualLoop

purity.install()


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loop of virtual time, or where threads take part, and a test asks for it, that of real time."""
    marker = item.get_closest_marker("asyncio")
    is_real = marker is not None and "real" in marker.kwargs.get("loop_factories", ())
    return {"real": asyncio.new_event_loop} if is_real else {"virtual": VirtualLoop}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    with purity.guard_purity():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with purity.guard_purity():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    with purity.guard_purity():
        yield
