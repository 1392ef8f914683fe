"""Whether runs of the model succeed at all. Pure: the clock is given.

A request that fails says little: its input may be at fault. So only an input that has run before
decides, a golden sample, which is run again after failures; and any run that succeeds, of whatever
request, ends the problem.
"""

from dataclasses import dataclass
from typing import Final

from enginewright.contract.reasons import Reason

from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.serve.server.settings import ServerSettings
from enginewright_runtime.session.device_errors import lost_device

_NEVER: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """Why the pod should have no requests, or the process should be restarted."""

    message: str  # does not change while the problem lasts
    reason: Reason | None = None


class RunHealth:
    """What follows from runs that succeed and fail; times are of any clock, in seconds."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._failures = 0  # requests in a row
        self._since = 0.0  # of the first test that failed
        self._tested = _NEVER
        self._xid: int | None = None
        self._suspected = False  # the driver has reported an error of the device
        self._problem: HealthProblem | None = None

    def succeeded(self) -> None:
        """A request's run has succeeded."""
        self._failures = 0
        self._problem = None

    def failed(self) -> None:
        """A request's run has failed, for whatever reason."""
        self._failures += 1

    def reported(self, xid: int) -> None:
        """The driver has reported a critical error, which may be another process's."""
        self._xid = xid
        self._suspected = True

    def next_test(self, now: float) -> float | None:
        """Return the seconds until the golden sample is to be run; None: no reason to."""
        wanted = self._suspected or self._problem or self._failures >= self._settings.failed_runs
        if not wanted:
            return None
        return max(0.0, self._tested + self._settings.retest_seconds - now)

    def tested(self, error: str | None, now: float) -> None:
        """Take in that the golden sample has been run; `error` is None when it succeeded."""
        self._tested = now
        self._suspected = False
        if error is None:  # the inputs of those requests were at fault
            self._xid = None
            self.succeeded()
            return
        found = self._named(error)
        if self._problem is None:
            self._since = now
        if self._problem is None or self._problem.reason is not found.reason:
            self._problem = found

    def why_not_ready(self) -> HealthProblem | None:
        """Return why no request should come here."""
        return self._problem

    def why_not_live(self, now: float) -> HealthProblem | None:
        """Return why only another process may help."""
        if self._problem is None:
            return None
        settings = self._settings
        lost = self._problem.reason is Reason.DEVICE_LOST
        allowed_seconds = settings.device_lost_seconds if lost else settings.runs_fail_seconds
        return self._problem if now - self._since >= allowed_seconds else None

    def stuck(self, seconds: float) -> HealthProblem:
        """Return the problem that a run has not ended within `seconds`."""
        message = f"one run of the model has taken more than {seconds:.3g} s"
        if self._xid is not None:
            return HealthProblem(f"{message} after Xid {self._xid}", Reason.DEVICE_LOST)
        return HealthProblem(message, Reason.RUNS_FAIL)

    def _named(self, error: str) -> HealthProblem:
        cause = lost_device(error)
        if self._xid is not None:
            cause = f"{cause or plain(error)} (Xid {self._xid})"
        if cause is not None:
            return HealthProblem(f"every run fails on the device: {cause}", Reason.DEVICE_LOST)
        return HealthProblem(
            f"every run fails, also of a golden sample: {plain(error)}", Reason.RUNS_FAIL
        )
