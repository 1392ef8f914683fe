"""What preflight says of real models, beside the bare tools, from the last whole run of `make bench-verdicts`."""

import json
from pathlib import Path
from typing import Final

from bench.verdicts import report
from bench.verdicts.results import Results, read

MEASURED: Final = Path(__file__).resolve().parents[2] / "bench/results/verdicts.json"
_NOT_MEASURED: Final = "Not measured since the last change of the benchmark."


def verdicts() -> str:
    """Return the versions, how often tools and preflight agree, and all models."""
    results = _read()
    if results is None:
        return _NOT_MEASURED
    return "\n\n".join(
        (report.conditions(results), report.tallies(results), report.verdicts(results))
    )


def disagreements() -> str:
    """Return where they disagree, and who is right."""
    results = _read()
    return _NOT_MEASURED if results is None else report.disagreements(results)


def _read() -> Results | None:
    return read(json.loads(MEASURED.read_text())) if MEASURED.exists() else None
