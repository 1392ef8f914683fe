"""Which tests reach which functions, for hack/mutants: a plugin of pytest (`-p tests.support.reached`).

REACHED names a file for what each test reached, or RUN one with the tests that are to run, in order.
"""

import builtins
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_functions: set[str] = builtins.__dict__.setdefault("reached_functions", set())
_reached: dict[str, list[str]] = {}  # by test
_seconds: dict[str, float] = defaultdict(float)
_failed: set[str] = set()
_with_processes: set[str] = set()  # files of tests whose processes may reach anything
_running: list[str] = []  # no test, or one


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork"):
        _with_processes.update(test.partition("::")[0] for test in _running)


def pytest_configure() -> None:
    if "REACHED" in os.environ:
        sys.addaudithook(_audit)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "RUN" in os.environ:
        by_name = {item.nodeid: item for item in items}
        selected = json.loads(Path(os.environ["RUN"]).read_text())
        items[:] = [by_name[name] for name in selected if name in by_name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _functions.clear()
    _running.append(item.nodeid)
    result = yield
    _running.clear()
    _reached[item.nodeid] = sorted(_functions)
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    if "REACHED" in os.environ:
        lines = [
            {
                "test": test,
                "seconds": _seconds[test],
                "failed": test in _failed,
                "functions": functions,
                "processes": test.partition("::")[0] in _with_processes,
            }
            for test, functions in _reached.items()
        ]
        Path(os.environ["REACHED"]).write_text(json.dumps(lines))
