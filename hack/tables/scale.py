"""What the control plane costs at thousands of models, from the last whole run of `make bench-scale`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.scale import report
from bench.scale.results import Results, read

MEASURED: Final = Path(__file__).resolve().parents[2] / "bench/results/scale.json"


def figures() -> str:
    """Return the machine and all runs."""
    return _show(lambda results: f"{report.conditions(results)}\n\n{report.figures(results)}")


def targets() -> str:
    """Return which targets are met."""
    return _show(report.targets)


def _show(describe: Callable[[Results], str]) -> str:
    if not MEASURED.exists():
        return "Not measured since the last change of the benchmark."
    return describe(read(json.loads(MEASURED.read_text())))
