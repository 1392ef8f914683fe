"""Which connection is closed for a new one when there are as many as allowed. Pure.

Connections that wait for their client are closed in the order of `WaitsFor`, so that whoever holds many
without using them never keeps out the kubelet's probes. Of those in the same state the peer with the
most loses one first: a flood of new connections displaces itself and not the others.
"""

import enum
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Final, Protocol

from enginewright_serving.server.account import Peer

SILENT_SECONDS: Final = 0.25  # in which the first request of a new connection has usually arrived
IDLE_SECONDS: Final = (
    1.0  # in which a client that was answered may be about to send its next request
)
_ORDER_SECONDS: Final = 1.0  # for which an order is used at most: finding it takes milliseconds
_RENEW_SECONDS: Final = 0.2  # after which the next one is found, a part with each that is closed
_SHORT: Final = 3  # times the newest: a shorter order is used up before the next one is found
_AT_ONCE: Final = (
    64  # connections that are looked at with each that is closed: tens of microseconds
)


class WaitsFor(enum.IntEnum):
    """What a connection waits for; the lowest is closed first."""

    FLOODS = enum.auto()  # its turn, and it has sent requests for some time without a pause
    SILENT = enum.auto()  # a request of which nothing, or only a part of the head, has arrived
    LINGERS = enum.auto()  # its client to close it, after the last response
    STALLED = enum.auto()  # a body or the reading of a response, which hardly move
    IDLE = enum.auto()  # the next request
    NEW = enum.auto()  # its first request, or its turn, not for long
    ANSWERED = enum.auto()  # the next request, not for long
    TRANSFERS = enum.auto()  # a body or the reading of a response


# active ones are in one group, so that a peer that has many transfers is not preferred to its victims
_LAST_GROUP: Final = int(WaitsFor.ANSWERED)
_MOST: Final = 1 << 20  # above all numbers of connections, and of states


class OpenConnection(Protocol):
    """A connection, of any protocol."""

    peer: Peer

    def waits(self, now: float) -> tuple[WaitsFor, float] | None:
        """Return for what it waits, and since when; None: it does not wait for its client."""

    def abort(self) -> None:
        """Close it immediately."""


_Waiting = tuple[WaitsFor, float, OpenConnection]
_Ordering = Generator[None, None, list[_Waiting]]


class Eviction:
    """Closes connections for others."""

    def __init__(self, clock: Callable[[], float], newest: int) -> None:
        """Create it; so many of the newest connections are closed last, peers with few before others."""
        self._clock = clock
        self._newest = newest
        self._order: list[_Waiting] = []  # the first to close is last
        self._found = float("-inf")  # when
        self._next: _Ordering | None = None  # the order that is being found
        self._begun = 0.0  # when

    def close_one(self, clients: Collection[OpenConnection]) -> bool:
        """Close the first of the clients that wait; False: none waits."""
        now = self._clock()
        self._renew(clients, now)
        # the newest of an order are closed only if there are no others by then
        if now - self._found < _ORDER_SECONDS and self._close_next(now, self._newest):
            return True
        self._order, self._found, self._next = _whole(self._ordering(clients, now)), now, None
        return self._close_next(now, 0)

    def forget(self) -> None:
        """Let go of connections that may be closed, if their order is not used any more."""
        if self._clock() - self._found > _ORDER_SECONDS:
            self._order, self._next = [], None

    def _renew(self, clients: Collection[OpenConnection], now: float) -> None:
        """Find a part of the next order, if it will soon be needed."""
        if self._next is None or now - self._begun > _ORDER_SECONDS:
            is_short = len(self._order) < _SHORT * self._newest
            if not is_short and now - self._found < _RENEW_SECONDS:
                return
            self._next, self._begun = self._ordering(list(clients), now), now
        try:
            next(self._next)
        except StopIteration as ended:
            self._order, self._found, self._next = ended.value, self._begun, None

    def _close_next(self, now: float, spared: int) -> bool:
        while len(self._order) > spared:
            wait, since, client = self._order.pop()
            found = client.waits(now)
            if found is not None and (found == (wait, since) or found[0] < wait):
                client.abort()
                return True
        return False

    def _ordering(self, clients: Iterable[OpenConnection], now: float) -> _Ordering:
        """Find the order of those that wait, in parts of a fraction of a millisecond."""
        waiting: list[_Waiting] = []
        for count, each in enumerate(clients, 1):
            if found := each.waits(now):
                waiting.append((*found, each))
            if not count % _AT_ONCE:
                yield
        waiting.sort(key=_since, reverse=True)
        # numbers, since those of an enumeration take longer to compare and to hash
        waits = [int(wait) for wait, _, _ in waiting]
        groups = [
            (min(wait, _LAST_GROUP), client.peer)
            for wait, (_, _, client) in zip(waits, waiting, strict=True)
        ]
        yield
        counts = Counter(groups)
        # one number each: a group after those before it, then peers with few, then what waits less
        keys = [
            -((pair[0] * _MOST - counts[pair]) * _MOST + wait)
            for pair, wait in zip(groups, waits, strict=True)
        ]
        yield
        ordered = [waiting[index] for index in sorted(range(len(keys)), key=keys.__getitem__)]
        # the newest are behind all others, so that they are read from first
        new = [found for found in ordered if found[0] is WaitsFor.NEW][: self._newest]
        if new:
            kept = {id(found) for found in new}
            ordered = [*new, *(found for found in ordered if id(found) not in kept)]
        return ordered


def _whole(ordering: _Ordering) -> list[_Waiting]:
    while True:
        try:
            next(ordering)
        except StopIteration as ended:
            order: list[_Waiting] = ended.value
            return order


def _since(found: _Waiting) -> float:
    return found[1]
