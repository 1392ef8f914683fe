"""Whether the model still runs. Pure: the clock is given.

A failed request alone proves nothing, since its input may be invalid. So after failures a golden sample, which ran
before, is rerun and decides; any run that succeeds ends the problem.
"""

from dataclasses import dataclass
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.session.device_errors import find_lost_device

_NEVER: Final = float("-inf")
_FAILED_RUNS: Final = 3  # consecutive failed requests after which a golden sample is run
_RETEST_SECONDS: Final = 1.0  # least interval between two such runs
_DEVICE_LOST_SECONDS: Final = 5.0  # not live after the device has been lost for this long
_RUNS_FAIL_SECONDS: Final = 30.0  # not live after runs have failed otherwise for this long


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """Why the pod should receive no requests, or the process should be restarted."""

    message: str  # does not change while the problem lasts
    reason: Reason | None = None


class RunHealth:
    """Derives health from runs that succeed or fail; times are of any clock, in seconds."""

    def __init__(self) -> None:
        self._failures = 0  # requests in a row
        self._since = 0.0  # of the first test that failed
        self._tested = _NEVER
        self._xid: int | None = None
        self._suspected = False  # the driver has reported an error of the device
        self._problem: HealthProblem | None = None

    def on_success(self) -> None:
        """A request's run has succeeded."""
        self._failures = 0
        self._problem = None

    def on_failure(self) -> None:
        """A request's run has failed."""
        self._failures += 1

    def on_xid(self, xid: int) -> None:
        """The driver has reported a critical error, possibly of another process."""
        self._xid = xid
        self._suspected = True

    def next_test(self, now: float) -> float | None:
        """Return the seconds until the golden sample must run, if it must."""
        if not (self._suspected or self._problem or self._failures >= _FAILED_RUNS):
            return None
        return max(0.0, self._tested + _RETEST_SECONDS - now)

    def on_test(self, error: str | None, now: float) -> None:
        """The golden sample has been run; `error` is None if it succeeded."""
        self._tested = now
        self._suspected = False
        if error is None:  # the inputs of the failed requests were the cause
            self._xid = None
            self.on_success()
            return
        problem = self._name(error)
        if self._problem is None:
            self._since = now
        if self._problem is None or self._problem.reason is not problem.reason:
            self._problem = problem

    def why_not_ready(self) -> HealthProblem | None:
        """Return why the pod should receive no requests, if so."""
        return self._problem

    def why_not_live(self, now: float) -> HealthProblem | None:
        """Return why the process should be restarted, if it should."""
        if self._problem is None:
            return None
        lost = self._problem.reason is Reason.DEVICE_LOST
        allowed_seconds = _DEVICE_LOST_SECONDS if lost else _RUNS_FAIL_SECONDS
        return self._problem if now - self._since >= allowed_seconds else None

    def describe_stuck(self, seconds: float) -> HealthProblem:
        """Return the problem of a run that has taken more than `seconds`."""
        message = f"one run of the model has taken more than {seconds:.3g} s"
        if self._xid is not None:
            return HealthProblem(f"{message} after Xid {self._xid}", Reason.DEVICE_LOST)
        return HealthProblem(message, Reason.RUNS_FAIL)

    def _name(self, error: str) -> HealthProblem:
        cause = find_lost_device(error)
        if self._xid is not None:
            cause = f"{cause or plain(error)} (Xid {self._xid})"
        if cause is not None:
            return HealthProblem(f"every run fails on the device: {cause}", Reason.DEVICE_LOST)
        return HealthProblem(
            f"every run fails, including that of a golden sample: {plain(error)}", Reason.RUNS_FAIL
        )
