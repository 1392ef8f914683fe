"""Whether the pod may receive traffic. Pure.

To be admitted, a pod must pass all checks. Once admitted, only wrong outputs make it unready immediately, since
losing a model's last ready pod is worse than most failed checks; a broken promise does so when the operator, which
sees the other pods, releases it. It does so with an annotation of the pod, which the kubelet writes into a downward
API file within seconds. Unlike a request to an open port, this needs write access to pods.
"""

from collections.abc import Mapping
from typing import Final

from enginewright_contract.task import Policy
from enginewright_contract.verdict import RELEASE_SECONDS, Check, CheckVerdict, runs_as_allowed

_OF_EXECUTION: Final = (Check.PROVIDER, Check.PLACEMENT, Check.DISTRIBUTION, Check.VERSIONS)
_SKEW: Final = 60.0  # seconds by which the clocks of operator and node may differ


class Gate:
    """Decides the response of `/readyz`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.admitted = False
        self._wrong = False  # reset only by a golden inference that agrees, not by expiry
        self._broken = False  # likewise

    def restart(self) -> None:
        """Reset: the admitted process has ended."""
        self.admitted = self._wrong = self._broken = False

    def decide(
        self, checks: Mapping[Check, CheckVerdict], *, foreign: bool, released: bool
    ) -> bool:
        """Return whether the pod is ready; `foreign`: the server has no `/execution`; `released`: by the operator."""
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
            allowed = runs_as_allowed(
                self._policy, checks[Check.PLACEMENT].state, checks[Check.PROVIDER].reason
            )
            if check is Check.PROVIDER and state == "failed" and allowed:
                continue
            return False
        return True


def seconds_left(annotation: str, now: float) -> float:
    """Return for how many seconds from `now` (Unix time) the annotation is valid, else 0.

    One that expires later than the operator sets it is invalid: a clock is wrong, or another client
    wrote it.
    """
    digits = annotation.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12):
        return 0.0
    left = int(digits) - now
    return left if 0 < left <= RELEASE_SECONDS + _SKEW else 0.0
