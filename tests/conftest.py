"""Layers: tests are marked by folder, limited in time by layer, and run cheapest layer first."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# an example's duration depends on the machine's load
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

LIMITS = {  # layer -> timeout (s) of one test, and budget (s) of the layer, summed over processes
    "unit": (120, 150),
    "integration": (120, 1200),
    "apiserver": (240, 420),
    "cluster": (400, 240),
    "e2e": (600, 1200),
    "gpu": (300, 300),
}
_ROOT = Path(__file__).parent
_spent: dict[str, float] = defaultdict(float)


def _layer(item: pytest.Item) -> str:
    return item.path.relative_to(_ROOT).parts[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = list(LIMITS)
    for item in items:
        layer = _layer(item)
        item.add_marker(getattr(pytest.mark, layer))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMITS[layer][0]))
    items.sort(key=lambda item: order.index(_layer(item)))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Use no bytes in test ids: archives contain the time, and all processes need the same ids."""
    return "bytes" if isinstance(val, bytes) else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # also called in the controlling process, whichever process ran the test
    _spent[Path(report.nodeid).parts[1]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("seconds per layer")
    for layer, seconds in _spent.items():
        budget = LIMITS[layer][1]
        over = "" if seconds <= budget else "  OVER ITS BUDGET: make it faster"
        terminalreporter.write_line(f"{layer:10} {seconds:7.1f} of {budget}{over}")
