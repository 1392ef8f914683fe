"""Layers: tests are marked by folder, limited by layer, and run cheapest layer first."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import thorough
from tests.support.budgets import LIMITS, Budgets, layer_of
from tests.support.effort import examples

# an example's duration depends on the machine's load
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("tests.support.reached"):  # which makes all code slower
        config.pluginmanager.register(Budgets())


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order, reasons = list(LIMITS), thorough.find_left_out([item.nodeid for item in items])
    for item in items:
        layer = layer_of(item.nodeid)
        item.add_marker(getattr(pytest.mark, layer))
        if item.nodeid in reasons:
            item.add_marker(pytest.mark.thorough(reasons[item.nodeid]))
        if _shares(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMITS[layer].seconds))
    items.sort(key=lambda item: order.index(layer_of(item.nodeid)))


@pytest.fixture(autouse=True)
def logging_of_its_own() -> Iterator[None]:
    """Take back what a program's main function sets up: its stream is closed with the test, and each line would fail."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        if handler not in before and type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.setLevel(level)


def _shares(item: pytest.Item) -> bool:
    """Return whether a test uses what other tests of its file use too, and should run in their process."""
    assert isinstance(item, pytest.Function)
    fixtures = item._fixtureinfo.name2fixturedefs
    return "servers" in fixtures or any(
        fixture[-1].scope == "module" for fixture in fixtures.values()
    )


def pytest_make_parametrize_id(val: object) -> str | None:
    """Use no bytes in test ids: archives contain the time, and all processes need the same ids."""
    return "bytes" if isinstance(val, bytes) else None
