"""Which connection is closed for a new one when there are as many as allowed. Pure.

Connections that wait for their client are closed in the order of `WaitsFor`, those that have waited longest first.
So a client that holds many unused connections never keeps out the kubelet's probes, and a flood of new ones
displaces itself.
"""

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection
from operator import itemgetter
from typing import Final, Protocol

SILENT_SECONDS: Final = 0.25  # in which the first request of a new connection has usually arrived
IDLE_SECONDS: Final = 1.0  # in which a client may be about to send its next request
_ORDER_SECONDS: Final = 0.2  # for which an order is used, as sorting takes a millisecond


class WaitsFor(enum.IntEnum):
    """What a connection waits for; the lowest is closed first."""

    FLOODS = enum.auto()  # its turn, and it has sent requests for some time without a pause
    SILENT = enum.auto()  # a request of which nothing, or only a part of the head, has arrived
    LINGERS = enum.auto()  # its client to close it, after the last response
    STALLED = enum.auto()  # a body or the reading of a response, which hardly move
    IDLE = enum.auto()  # the next request
    NEW = enum.auto()  # its first request, or its turn, not for long
    ACTIVE = enum.auto()  # the next request, not for long, or a body or the reading of a response


class OpenConnection(Protocol):
    """A connection, of any protocol."""

    def waits(self, now: float) -> tuple[WaitsFor, float] | None:
        """Return what it waits for, and since when, or None if it does not wait for its client."""

    def abort(self) -> None:
        """Close it immediately."""


_Waiting = tuple[WaitsFor, float, OpenConnection]


class Eviction:
    """Closes connections for others."""

    def __init__(self, clock: Callable[[], float], newest: int) -> None:
        """Close the `newest` connections last, as they are read from first."""
        self._clock = clock
        self._newest = newest
        self._order: list[_Waiting] = []  # the first to close is last
        self._sorted_at = float("-inf")

    def close_one(self, clients: Collection[OpenConnection]) -> bool:
        """Close the first of the clients that wait; return False if none waits."""
        now = self._clock()
        if now - self._sorted_at < _ORDER_SECONDS and self._close_next(now):
            return True
        self._order, self._sorted_at = self._sort(clients, now), now
        return self._close_next(now)

    def forget(self) -> None:
        """Drop references to connections that may be closed by now."""
        self._order = []

    def _close_next(self, now: float) -> bool:
        while self._order:
            wait, since, client = self._order.pop()
            waits = client.waits(now)
            if waits is not None and (waits == (wait, since) or waits[0] < wait):
                client.abort()
                return True
        return False

    def _sort(self, clients: Collection[OpenConnection], now: float) -> list[_Waiting]:
        waiting = [(*waits, client) for client in clients if (waits := client.waits(now))]
        waiting.sort(key=itemgetter(0, 1))
        first_new = bisect_left(waiting, WaitsFor.NEW, key=itemgetter(0))
        end = bisect_right(waiting, WaitsFor.NEW, key=itemgetter(0))
        begin = max(first_new, end - self._newest)
        order = [*waiting[:begin], *waiting[end:], *waiting[begin:end]]
        order.reverse()
        return order
