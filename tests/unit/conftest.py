"""The unit layer is pure: tests/support/purity.py refuses what starts something."""

from collections.abc import Iterator

import pytest

from tests.support import purity
from tests.support.process_state import process_state  # noqa: F401

purity.install()


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
