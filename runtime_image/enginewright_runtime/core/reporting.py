"""The report of a failure, and the termination message by which it leaves the container."""

import logging
from typing import Final

from enginewright.contract.report import StageReport

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths

_log: Final = logging.getLogger(__name__)


def failed(stage: str, failure: StageFailure) -> StageReport:
    """Return the report of a failure, with remedies for where `stage` runs."""
    return StageReport(
        stage=stage,
        ok=False,
        failure=failure.finding.of_container(stage),
        findings=tuple(each.of_container(stage) for each in failure.findings),
    )


def write_termination_message(paths: Paths, text: str) -> None:
    """Write the termination message; outside a pod there may be nobody who reads one."""
    try:
        paths.termination_log.write_text(text)
    except OSError as error:
        _log.warning("no termination message: %s", error.strerror)
