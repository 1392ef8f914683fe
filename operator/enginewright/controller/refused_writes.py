"""Writes that the API server has refused, and when each is tried again.

The wait doubles with each attempt, and is over as soon as something else is to be written or the object
itself has changed. Passes in between, for whatever reason, neither repeat the write nor lengthen the wait.
Quotas and policies are not watched: once one allows the write, it is made within `LONGEST_WAIT`.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from enginewright.kube.errors import KubeError

FIRST_WAIT: Final = timedelta(seconds=1)
LONGEST_WAIT: Final = timedelta(minutes=2)
_REMEMBERED: Final = 16384


class WriteKey(NamedTuple):
    """Names what was written."""

    verb: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class RefusedWrite:
    """The last attempt of a write."""

    content: str  # what was to be written, over what
    error: KubeError
    attempts: int
    due: datetime


class RefusedWrites:
    """Those of all controllers of a process."""

    def __init__(self) -> None:
        self._refused: OrderedDict[WriteKey, RefusedWrite] = OrderedDict()

    def find_waiting(
        self, key: WriteKey, content: Callable[[], str], now: datetime
    ) -> RefusedWrite | None:
        """Return the last attempt of the same write, until the next one is due."""
        refused = self._refused.get(key)
        if refused is None or not now < refused.due <= now + LONGEST_WAIT:  # the clock may be set
            return None
        return refused if refused.content == content() else None

    def record(self, key: WriteKey, content: str, error: KubeError, now: datetime) -> RefusedWrite:
        """Record a refused attempt."""
        before = self._refused.pop(key, None)
        attempts = before.attempts + 1 if before and before.content == content else 1
        wait = min(FIRST_WAIT * 2 ** min(attempts - 1, 10), LONGEST_WAIT)
        refused = self._refused[key] = RefusedWrite(content, error, attempts, now + wait)
        if len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        return refused

    def forget(self, key: WriteKey) -> None:
        """Forget a write that was carried out."""
        self._refused.pop(key, None)
