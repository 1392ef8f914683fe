"""The last result of every check and its expiry: a check that has not run recently is unknown. Pure."""

from collections import Counter
from dataclasses import dataclass
from typing import Final, Self

from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Check, CheckState, CheckVerdict

_NOT_YET: Final = "not checked yet"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one run of a check."""

    state: CheckState
    reason: Reason | None = None
    message: str = ""

    @classmethod
    def as_ok(cls, message: str = "") -> Self:
        """Return the result of a check that passed."""
        return cls("ok", None, message)

    @classmethod
    def as_failed(cls, reason: Reason, message: str) -> Self:
        """Return the result of a check that failed."""
        return cls("failed", reason, message)

    @classmethod
    def as_unknown(cls, message: str, reason: Reason | None = None) -> Self:
        """Return an unknown result, with a `reason` if it will remain unknown."""
        return cls("unknown", reason, message)


class CheckBoard:
    """The results by check."""

    def __init__(self) -> None:
        self._entries: dict[Check, tuple[CheckResult, float]] = {}  # and when each expires
        self._missed: dict[Check, str] = {}  # why the last run had no result
        self.failures: Counter[Check] = Counter(dict.fromkeys(Check, 0))

    def record(self, check: Check, outcome: CheckResult, until: float) -> None:
        """Record the result of a check, valid until the time `until`."""
        self._entries[check] = outcome, until
        self._missed.pop(check, None)
        if outcome.state == "failed":
            self.failures[check] += 1

    def miss(self, check: Check, why: str) -> None:
        """Record why a check had no result; the previous result is valid until it expires."""
        self._missed[check] = why

    def forget(self, why: str) -> None:
        """Discard all results: the process that they describe has ended."""
        self._entries.clear()
        self._missed = dict.fromkeys(Check, why)

    def verdict(self, check: Check, now: float) -> CheckVerdict:
        """Return the verdict of `check`."""
        entry = self._entries.get(check)
        if entry is None or now > entry[1]:
            why = self._missed.get(check, _NOT_YET if entry is None else "not checked recently")
            return CheckVerdict(check=check, message=why)
        outcome, _ = entry
        return CheckVerdict(
            check=check, state=outcome.state, reason=outcome.reason, message=outcome.message
        )

    def expires(self, now: float) -> float:
        """Return the time from `now` on at which the next result expires, infinite if none does."""
        valid = (until for _, until in self._entries.values() if until >= now)
        return min(valid, default=float("inf"))

    def verdicts(self, now: float) -> tuple[CheckVerdict, ...]:
        """Return the verdict of every check, in the contract's order."""
        return tuple(self.verdict(check, now) for check in Check)
