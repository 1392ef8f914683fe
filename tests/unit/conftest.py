"""The unit layer is pure: tests/support/purity.py refuses what starts something, and nothing waits: time is virtual."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.support import purity
from tests.support.process_state import process_state  # noqa: F401 - a fixture
from tests.support.virtual_time import VirtualLoop

purity.install()


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    with purity.guarded():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with purity.guarded():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    with purity.guarded():
        yield
