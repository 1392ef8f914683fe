"""What the tests of `make test` may cost: one above its layer's limit fails, as does a run that is above a layer's.

The limits are in CPU seconds, so a test does not fail because the machine does something else at the same time;
they are those of a reference processor, and grow on a slower one.
"""

from collections import defaultdict
from collections.abc import Generator
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pytest

from tests.support import effort
from tests.support.cpu import measure_cpu, measure_slowness


class Limits(NamedTuple):
    """What a layer's tests may take."""

    seconds: int  # on a clock, of one test: after them it hangs
    test: float  # CPU seconds of one test, without the fixtures that it shares
    layer: float  # CPU seconds of all


LIMITS: Final = {
    "unit": Limits(120, 4, 360),
    "integration": Limits(300, 20, 1800),
    "apiserver": Limits(400, 60, 420),
    "cluster": Limits(600, 60, 240),
    "e2e": Limits(900, 60, 600),
    "gpu": Limits(300, 300, 3000),
}


_SHOWN: Final = 25  # tests that took most


def layer_of(nodeid: str) -> str:
    """Return the layer of a test: its folder in tests/."""
    return nodeid.split("/")[1]


class Budgets:
    """The plugin; each process measures its tests, and the one that controls them adds up."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = defaultdict(float)  # by layer
        self._tests: dict[str, float] = defaultdict(float)  # the same by test
        self._before = 0.0  # what the phase of a test that runs was preceded by
        self._shared = 0.0  # of the test that runs: fixtures that others use too
        self._test = 0.0  # of the test that runs: everything else
        self._within = False  # whether a fixture that others use too is being set up

    def pytest_runtest_logstart(self) -> None:
        self._before, self._shared, self._test = measure_cpu(), 0.0, 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function" or self._within:
            return (yield)
        before, self._within = measure_cpu(), True
        try:
            return (yield)
        finally:
            self._within = False
            self._shared += measure_cpu() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = measure_cpu()
        took, self._before = now - self._before, now
        if item.get_closest_marker("thorough"):
            return report
        report.cpu = took  # type: ignore[attr-defined] # it travels to the controlling process
        if call.when != "teardown":
            self._test += took
        own, limit = self._test - self._shared, LIMITS[layer_of(item.nodeid)].test
        if (
            call.when == "call"
            and report.passed
            and not effort.THOROUGH
            and own > limit  # before the processor is measured
            and own > limit * measure_slowness()
        ):
            report.outcome = "failed"
            report.longrepr = (
                f"it took {own:.1f} CPU seconds, and a test of its layer may take"
                f" {limit} x {measure_slowness():.2f} on this processor:"
                " make it cheaper, or have it run in `make test-all` only"
                " (tests/support/thorough.py)"
            )
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # also called in the controlling process, whichever process ran the test; crashes have taken nothing
        cpu = getattr(report, "cpu", 0.0)
        self._spent[layer_of(report.nodeid)] += cpu
        self._tests[report.nodeid] += cpu

    def _over(self) -> list[str]:
        """Return the layers above their limits."""
        if effort.THOROUGH:
            return []
        return [layer for layer, seconds in self._spent.items() if seconds > _limit_of(layer)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds by layer")
        for layer, seconds in self._spent.items():
            over = "  ABOVE ITS LIMIT: make it cheaper" if layer in self._over() else ""
            terminalreporter.write_line(f"{layer:12}{seconds:7.1f} of {_limit_of(layer):.0f}{over}")
        dearest = sorted(self._tests.items(), key=itemgetter(1), reverse=True)
        for test, seconds in dearest[:_SHOWN]:
            terminalreporter.write_line(f"{seconds:7.1f} {test}")


def _limit_of(layer: str) -> float:
    """Return the CPU seconds that a layer's tests may take on this processor."""
    return LIMITS[layer].layer * measure_slowness()
