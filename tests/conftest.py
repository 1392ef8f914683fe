"""Layers: each test is marked by its folder, bounded by its layer's limit, cheapest layer first."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# how long an example takes says how busy the machine is
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

LIMITS = {  # layer -> seconds that one test may take, and that the layer should take, of all processes
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
    """Name no test by packed bytes, which hold the time: two processes must find the same tests."""
    return "bytes" if isinstance(val, bytes) else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # told to the process that sums up, whichever process ran the test
    _spent[Path(report.nodeid).parts[1]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("seconds a layer")
    for layer, seconds in _spent.items():
        budget = LIMITS[layer][1]
        over = "" if seconds <= budget else "  OVER ITS BUDGET: make it quicker"
        terminalreporter.write_line(f"{layer:10} {seconds:7.1f} of {budget}{over}")
