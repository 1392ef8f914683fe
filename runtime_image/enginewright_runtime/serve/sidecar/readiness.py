"""Whether the pod may have traffic. Pure.

Two rules, because taking a model's last pod away is worse than most of what a check can find: to be
admitted everything must be proven; once admitted only wrong answers end it at once, and a broken
promise does when the operator allows it, who sees the other pods.

It allows it by an annotation of the pod, which the kubelet writes into a file of the downward API,
within seconds. Only who may write pods can write it, unlike a request to an open port.
"""

from collections.abc import Mapping
from typing import Final, Literal

from enginewright.contract.verdict import RELEASE_SECONDS, Check, CheckVerdict

Policy = Literal["Forbid", "Budget", "Allow"]

_OF_EXECUTION: Final = (Check.PROVIDER, Check.PLACEMENT, Check.DISTRIBUTION, Check.VERSIONS)
_SKEW: Final = 60.0  # seconds by which the clocks of operator and node may differ


class Gate:
    """What `/readyz` answers."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.admitted = False
        self._wrong = False  # until a right answer has been seen, not until it was long ago
        self._broken = False  # likewise

    def restart(self) -> None:
        """Start over: the process that was admitted has gone."""
        self.admitted = self._wrong = self._broken = False

    def decide(
        self, checks: Mapping[Check, CheckVerdict], *, foreign: bool, released: bool
    ) -> bool:
        """Return whether the pod is ready.

        Args:
            checks: what is known now.
            foreign: the server has said that it has no `/execution`.
            released: the operator lets the pod go for a broken promise.
        """
        golden = checks[Check.GOLDEN].state
        if golden != "unknown":
            self._wrong = golden == "failed"
        promise = {checks[Check.PROVIDER].state, checks[Check.PLACEMENT].state}
        if "failed" in promise:
            self._broken = self._policy == "Forbid"
        elif promise == {"ok"}:
            self._broken = False
        if not self.admitted:
            self.admitted = self._admissible(checks, foreign=foreign)
        return self.admitted and not self._wrong and not (self._broken and released)

    def _admissible(self, checks: Mapping[Check, CheckVerdict], *, foreign: bool) -> bool:
        if checks[Check.SERVER].state != "ok" or checks[Check.GOLDEN].state != "ok":
            return False
        lenient = self._policy != "Forbid"
        for check in _OF_EXECUTION:
            state = checks[check].state
            if state == "ok" or (lenient and foreign and state == "unknown"):
                continue
            kept = checks[Check.PLACEMENT].state == "ok"
            if check is Check.PROVIDER and lenient and state == "failed" and kept:
                continue  # it serves elsewhere, and the policy allows as much as that is
            return False
        return True


def seconds_left(annotation: str, now: float) -> float:
    """Return for how many seconds from `now` (since 1970) the annotation holds; 0: it does not.

    One that claims to hold for longer than the operator writes it for is none: a clock is wrong,
    or somebody else wrote it.
    """
    digits = annotation.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12):
        return 0.0
    left = int(digits) - now
    return left if 0 < left <= RELEASE_SECONDS + _SKEW else 0.0
