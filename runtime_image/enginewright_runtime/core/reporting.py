"""The report of a failure, and the termination message by which it leaves the container."""

import logging
from typing import Final

from enginewright.contract.report import StageReport

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths

_log: Final = logging.getLogger(__name__)


def failed(stage: str, failure: StageFailure) -> StageReport:
    """Return the report of a failure."""
    return StageReport(
        stage=stage,
        ok=False,
        reason=failure.reason,
        message=failure.message,
        findings=failure.findings,
        facts={"nodes": list(failure.nodes)} if failure.nodes else {},
    )


def write_herald(paths: Paths, text: str) -> None:
    """Write the termination message; outside a pod there may be nobody who reads one."""
    try:
        paths.termination_log.write_text(text)
    except OSError as error:
        _log.warning("no termination message: %s", error.strerror)
