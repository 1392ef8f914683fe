"""The report of a failure and the container's termination message."""

import logging
from typing import Final

from enginewright_contract.reasons import exit_code
from enginewright_contract.report import StageReport

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths

_log: Final = logging.getLogger(__name__)


def report_failure(stage: str, failure: StageFailure) -> StageReport:
    """Return the report of a failure, with the remedies for the container of `stage`."""
    return StageReport(
        stage=stage,
        ok=False,
        failure=failure.finding.of_container(stage),
        findings=tuple(finding.of_container(stage) for finding in failure.findings),
    )


def end_with(stage: str, failure: StageFailure, paths: Paths) -> int:
    """Log a failure that ends the container, and write it to the termination message; return the exit code."""
    report = report_failure(stage, failure)
    _log.error("%s: %s", report.reason, report.outcome)
    write_termination_message(paths, report.termination_message())
    return int(exit_code(failure.reason))


def write_termination_message(paths: Paths, text: str) -> None:
    """Write the termination message; outside a pod its file may not exist."""
    try:
        paths.termination_log.write_text(text)
    except OSError as error:
        _log.warning("cannot write the termination message: %s", error.strerror)
