"""What serving costs, from the last whole run of `make bench-serving`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.serving import report
from bench.serving.results import Results, read

MEASURED: Final = Path(__file__).resolve().parents[2] / "bench/results/serving.json"


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


def _show(part: Callable[[Results], str]) -> str:
    if not MEASURED.exists():  # only undisturbed runs are kept
        return "Not measured since the last change of the benchmark."
    return part(read(json.loads(MEASURED.read_text())))
