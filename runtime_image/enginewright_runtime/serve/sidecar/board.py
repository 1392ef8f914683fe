"""What every check last found, and for how long that counts. Pure.

Nothing is ok by default: a check that has not run, or not lately, is unknown.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final, Self

from enginewright.contract.reasons import Reason
from enginewright.contract.verdict import Check, CheckState, CheckVerdict

_NOT_YET: Final = "not checked yet"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a check found."""

    state: CheckState
    reason: Reason | None = None
    message: str = ""

    @classmethod
    def ok(cls, message: str = "") -> Self:
        """Return that it is as it should be."""
        return cls("ok", None, message)

    @classmethod
    def failed(cls, reason: Reason, message: str) -> Self:
        """Return that it is not, and why."""
        return cls("failed", reason, message)

    @classmethod
    def unknown(cls, message: str, reason: Reason | None = None) -> Self:
        """Return that it cannot be told, and why; `reason`: where it stays so."""
        return cls("unknown", reason, message)


@dataclass(slots=True)
class _Entry:
    outcome: Outcome
    until: float  # it counts up to here


class Board:
    """The outcomes by check."""

    def __init__(self) -> None:
        self._entries: dict[Check, _Entry] = {}
        self._missed: dict[Check, str] = {}  # why the last run found nothing
        self.failures: Counter[Check] = Counter(dict.fromkeys(Check, 0))

    def record(self, check: Check, outcome: Outcome, until: float) -> None:
        """Take in what a check found, which counts until the time `until`."""
        self._entries[check] = _Entry(outcome, until)
        self._missed.pop(check, None)
        if outcome.state == "failed":
            self.failures[check] += 1

    def miss(self, check: Check, why: str) -> None:
        """Say why a check found nothing; what it found before counts on until it is too old."""
        self._missed[check] = why

    def forget(self, why: str) -> None:
        """Drop all findings: they were about a process that has gone."""
        self._entries.clear()
        self._missed = dict.fromkeys(Check, why)

    def verdict(self, check: Check, now: float) -> CheckVerdict:
        """Return what is known of `check`."""
        entry = self._entries.get(check)
        if entry is None or now > entry.until:
            why = self._missed.get(check, _NOT_YET if entry is None else "not checked lately")
            return CheckVerdict(check=check, message=why)
        found = entry.outcome
        return CheckVerdict(
            check=check, state=found.state, reason=found.reason, message=found.message
        )

    def verdicts(self, now: float) -> tuple[CheckVerdict, ...]:
        """Return what is known of every check, in the contract's order."""
        return tuple(self.verdict(check, now) for check in Check)
