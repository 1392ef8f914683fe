"""Whether the model still runs. Pure: the clock is given.

A failed request alone proves nothing, since its input may be invalid. So after failures a golden
sample, which ran before, is run again and decides; any run that succeeds ends the problem.
"""

from dataclasses import dataclass
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.session.device_errors import lost_device

from enginewright_serving.server.settings import ServerSettings

_NEVER: Final = float("-inf")
_FAILED_RUNS: Final = 3  # consecutive failed requests after which a golden sample is run


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """Why the pod should receive no requests, or the process should be restarted."""

    message: str  # does not change while the problem lasts
    reason: Reason | None = None


class RunHealth:
    """Derives health from runs that succeed or fail; times are of any clock, in seconds."""

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
        """A request's run has failed."""
        self._failures += 1

    def reported(self, xid: int) -> None:
        """The driver has reported a critical error, possibly of another process."""
        self._xid = xid
        self._suspected = True

    def next_test(self, now: float) -> float | None:
        """Return the seconds until the golden sample must run; None: it need not."""
        wanted = self._suspected or self._problem or self._failures >= _FAILED_RUNS
        if not wanted:
            return None
        return max(0.0, self._tested + self._settings.retest_seconds - now)

    def tested(self, error: str | None, now: float) -> None:
        """The golden sample has been run; `error` is None if it succeeded."""
        self._tested = now
        self._suspected = False
        if error is None:  # the inputs of the failed requests were the cause
            self._xid = None
            self.succeeded()
            return
        found = self._named(error)
        if self._problem is None:
            self._since = now
        if self._problem is None or self._problem.reason is not found.reason:
            self._problem = found

    def why_not_ready(self) -> HealthProblem | None:
        """Return why the pod should receive no requests; None: it should."""
        return self._problem

    def why_not_live(self, now: float) -> HealthProblem | None:
        """Return why the process should be restarted; None: it should not."""
        if self._problem is None:
            return None
        settings = self._settings
        lost = self._problem.reason is Reason.DEVICE_LOST
        allowed_seconds = settings.device_lost_seconds if lost else settings.runs_fail_seconds
        return self._problem if now - self._since >= allowed_seconds else None

    def stuck(self, seconds: float) -> HealthProblem:
        """Return the problem of a run that has taken more than `seconds`."""
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
            f"every run fails, including that of a golden sample: {plain(error)}", Reason.RUNS_FAIL
        )
