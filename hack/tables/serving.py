"""What serving costs, from the last whole run of `make bench-serving`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.serving import hostile_results, report
from bench.serving.results import Results, read

_RESULTS: Final = Path(__file__).resolve().parents[2] / "bench/results"
MEASURED: Final = _RESULTS / "serving.json"
BESIDE_HOSTILE: Final = _RESULTS / "hostile.json"
_NOT_MEASURED: Final = "Not measured since the last change of the benchmark."


def conditions() -> str:
    """Return the plot, and what the figures depend on: processor, versions, rounds."""
    plot = "![Requests per second of model servers](../serving.svg)"
    return _show(lambda measured: f"{plot}\n\n{report.conditions(measured)}")


def figures(model: str) -> str:
    """Return the servers that ran one of the benchmark's models."""
    return _show(lambda measured: report.figures(measured, model))


def targets() -> str:
    """Return what serving may cost, and what it did."""
    return _show(report.outcomes)


def hostile_clients() -> str:
    """Return who answers a steady client beside hostile ones."""
    if not BESIDE_HOSTILE.exists():
        return _NOT_MEASURED
    comparison = hostile_results.read(json.loads(BESIDE_HOSTILE.read_text()))
    parts = (
        hostile_results.describe_conditions(comparison),
        hostile_results.summarize(comparison),
        "By kind, p50 / p99 of the steady client's answers in ms:",
        hostile_results.detail(comparison),
    )
    return "\n\n".join(parts)


def _show(part: Callable[[Results], str]) -> str:
    if not MEASURED.exists():  # only undisturbed runs are kept
        return _NOT_MEASURED
    return part(read(json.loads(MEASURED.read_text())))
