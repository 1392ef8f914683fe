"""The share of requests that fail, from the server's own counters: 5xx but those of load. Pure."""

import re
from collections import deque
from collections.abc import Mapping
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.status_codes import select_errors, select_run

from enginewright_serving.sidecar.checks import CheckResult

_ANSWERS: Final = re.compile(
    rb'^enginewright_requests_total\{[^}]*code="(\d{3})"[^}]*\} ([0-9.eE+]+)', re.MULTILINE
)

_WINDOW_SECONDS: Final = 60.0
_LEAST: Final = 20  # requests
_SHARE: Final = 0.05  # of the requests that were run
_REFUSALS: Final = frozenset(range(400, 499))  # not 499: the client disconnected
_MANY_REFUSALS: Final = 0.5  # as in the alert EnginewrightRequestsRefused
_MUCH_LOAD: Final = 0.05  # as in the alert EnginewrightOverloaded


def response_counts(exposition: bytes | bytearray) -> dict[int, float] | None:
    """Return responses by status code from the server's metrics, or None if they are not counted."""
    return {int(code): float(count) for code, count in _ANSWERS.findall(exposition)} or None


class ErrorShare:
    """Responses of the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[int, float]]] = deque()

    def add(self, counts: Mapping[int, float], now: float) -> None:
        """Record the counters at `now`."""
        if self._seen:
            last = self._seen[-1][1]
            if any(counts.get(code, 0) < count for code, count in last.items()):
                self._seen.clear()  # the server's counters were reset
        self._seen.append((now, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW_SECONDS:
            self._seen.popleft()

    def outcome(self) -> CheckResult:
        """Return the check's result for the responses of the window."""
        if not self._seen:
            return CheckResult.as_unknown("the server has not reported its responses yet")
        before, after = self._seen[0][1], self._seen[-1][1]
        answered = {code: count - before.get(code, 0) for code, count in after.items()}
        run = select_run(answered)
        total, answers = sum(run.values()), sum(answered.values())
        load = ""
        if answers >= _LEAST and answers - total > _MUCH_LOAD * answers:
            load = f"; more than {_MUCH_LOAD:.0%} are not run, for load (503, 504)"
        if total < _LEAST:
            return CheckResult.as_unknown(f"too few requests{load}")
        errors = select_errors(answered)
        if sum(errors.values()) > _SHARE * total:
            codes = ", ".join(str(code) for code, count in sorted(errors.items()) if count)
            return CheckResult.as_failed(
                Reason.TOO_MANY_ERRORS,
                f"more than {_SHARE:.0%} of the requests fail with {codes}{load}",
            )
        refused = sum(count for code, count in run.items() if code in _REFUSALS)
        reported = f"at most {_SHARE:.0%} of the requests fail"
        if refused > _MANY_REFUSALS * total:
            reported += "; more than half are refused as invalid (4xx)"
        return CheckResult.as_ok(reported + load)
