"""Whether the operator lets this pod become unready for a broken promise, by the pod's annotation. Pure.

The kubelet writes the annotation into a file of the downward API, within seconds. Only who may
write pods can write it, unlike a request to an open port.
"""

from typing import Final

from enginewright.contract.verdict import RELEASE_SECONDS

_SKEW: Final = 60.0  # seconds by which the clocks of operator and node may differ


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
