"""How the operator has serving pods send copies of their requests to a canary: an annotation of theirs.

The kubelet writes it into a downward API file, so only who may write pods can direct requests elsewhere.
It expires, so that it ends when the operator does. It names the canary's revision, so that a pod that
gets the address later gets no requests, and addresses without ports, since every server has the same.

Copies are in no client's figures, so a server takes only those for copies that have the model's token, which the order
and the task of its server have. It is derived from the model's UID, which is in no answer of a server, so the operator
needs no access to Secrets. Users who may read the pods may read the token; it is no token of a client.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

SHADOW_ANNOTATION: Final = "enginewright.dev/shadow"
SHADOW_SECONDS: Final = 120  # from now when written; a pod ignores a later time
MOST_ADDRESSES: Final = 16

_SKEW: Final = 60.0  # seconds by which the clocks of operator and node may differ
_REVISION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SHARE: Final = re.compile(r"[0-9](\.[0-9]{1,12})?(e-[0-9]{1,2})?")
_TOKEN: Final = re.compile(r"[0-9a-f]{64}")
_LEAST_FIELDS: Final = 5


@dataclass(frozen=True)
class ShadowOrder:
    """Which share of its requests a pod also sends to which pods of a canary, and until when."""

    share: float  # above 0, at most 1
    until: int  # Unix time
    revision: str  # of the canary
    token: str  # by which its servers know copies
    addresses: tuple[str, ...]  # IP addresses of its pods

    def annotation(self) -> str:
        """Return the value of the annotation: share, end, revision, token and addresses."""
        return " ".join(
            (f"{self.share:g}", str(self.until), self.revision, self.token, *self.addresses)
        )


def shadow_token(model_uid: str) -> str:
    """Return the token of copies between the pods of one model."""
    return hashlib.sha256(f"copies of requests to {model_uid}".encode()).hexdigest()


def read_order(annotation: str) -> ShadowOrder | None:
    """Return the order in an annotation, expired or not, or None if it is invalid, as with host names or ports."""
    fields = annotation.split()
    if len(fields) < _LEAST_FIELDS:
        return None
    share, until, revision, token, *addresses = fields
    if not (
        _SHARE.fullmatch(share)
        and until.isascii()
        and until.isdigit()
        and len(until) <= 12
        and _REVISION.fullmatch(revision)
        and _TOKEN.fullmatch(token)
        and len(addresses) <= MOST_ADDRESSES
        and all(map(_is_address, addresses))
    ):
        return None
    order = ShadowOrder(float(share), int(until), revision, token, tuple(addresses))
    return order if 0 < order.share <= 1 else None


def is_current(order: ShadowOrder, now: float) -> bool:
    """Return whether an order applies at Unix time `now`; one that expires too late was not written by the operator."""
    return 0 < order.until - now <= SHADOW_SECONDS + _SKEW


def shadow_order(
    share: float,
    now: float,
    revision: str,
    addresses: Sequence[str],
    current: ShadowOrder | None,
    *,
    token: str,
) -> ShadowOrder:
    """Return the order to have: `current`, if it is the same and does not end soon, else a new one."""
    chosen = tuple(sorted(addresses)[:MOST_ADDRESSES])
    until = math.ceil(now) + SHADOW_SECONDS
    new = ShadowOrder(float(f"{share:g}"), until, revision, token, chosen)
    if (
        current is not None
        and replace(current, until=until) == new
        and now + SHADOW_SECONDS / 2 < current.until <= until
    ):
        return current
    return new


def _is_address(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return not (address.is_multicast or address.is_unspecified or address.is_link_local)
