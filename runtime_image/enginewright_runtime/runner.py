"""Runs one stage and reports: the message for the operator, the full report for users, the exit code for the Job."""

import logging
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

from enginewright_contract.reasons import Reason, exit_code
from enginewright_contract.report import StageReport

from enginewright_runtime.core.disk import disk_full, is_full
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.reporting import report_failure, write_termination_message
from enginewright_runtime.store import open_store

_log: Final = logging.getLogger(__name__)
_TERMINATED: Final = 128 + signal.SIGTERM


def end_on_sigterm() -> None:
    """Make SIGTERM, which PID 1 ignores by default, end the process with an exception, so that children are killed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))


def run_stage(stage: str, run: Callable[[], StageReport], paths: Paths, job: str | None) -> int:
    """Run a stage, report what it returns or raises, to the folder of `job` too, if given; return the exit code."""
    began = time.monotonic()
    report = _outcome(stage, run, paths)
    report = report.model_copy(update={"seconds": round(time.monotonic() - began, 3)})
    if report.ok:
        _log.info("%s", report.outcome)
    else:
        _log.error("%s: %s", report.reason, report.outcome)
    for finding in report.findings[0 if report.ok else 1 :]:
        _log.warning("%s: %s", finding.severity, finding.message)
    write_termination_message(paths, report.termination_message())
    if job is not None:
        _upload(paths, job, report)
    return int(exit_code(report.reason))


def _outcome(stage: str, run: Callable[[], StageReport], paths: Paths) -> StageReport:
    try:
        return run()
    except StageFailure as failure:
        return report_failure(stage, failure)
    except MemoryError:
        return report_failure(
            stage, StageFailure(Reason.OUT_OF_MEMORY, f"{stage} ran out of memory")
        )
    except Exception as error:  # noqa: BLE001 - the boundary: everything becomes a report
        if is_full(error):
            return report_failure(stage, disk_full(stage, None, shutil.disk_usage(paths.work).free))
        return report_failure(stage, _internal(stage, error))


def _internal(stage: str, error: Exception) -> StageFailure:
    _log.debug("internal error", exc_info=True)
    cause = " ".join(str(error).split())[:300]
    return StageFailure(
        Reason.INTERNAL_ERROR, f"{stage} failed unexpectedly with {type(error).__name__}: {cause}"
    )


def _upload(paths: Paths, job: str, report: StageReport) -> None:
    try:
        open_store(paths).put_report(job, report.stage, report.to_json())
    except StageFailure as failure:
        # the stage's own outcome must not be hidden by this
        _log.warning("the full report is not in the store: %s", failure.message)
