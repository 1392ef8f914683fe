"""Which lies about outputs are found, from the last whole run of `make bench-truth`."""

import json
from pathlib import Path
from typing import Final

from bench.truth import report
from bench.truth.results import read

MEASURED: Final = Path(__file__).resolve().parents[2] / "bench/results/truth.json"
_NOT_MEASURED: Final = "Not measured since the last change of the benchmark."


def lies() -> str:
    """Return the plot, the comparators, the kinds of lies, and what must be found."""
    if not MEASURED.exists():
        return _NOT_MEASURED
    results = read(json.loads(MEASURED.read_text()))
    return "\n\n".join(
        (
            "![Lies that comparators find, and their false alarms](../truth-power.svg)",
            report.conditions(results),
            report.power(results),
            "Those that ours finds, by kind, of all sizes:",
            report.kinds(results),
            "What must hold:",
            report.outcomes(results),
            "The models:",
            report.models(results),
        )
    )
