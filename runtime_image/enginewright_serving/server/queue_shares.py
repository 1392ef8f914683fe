"""Whose waiting request gives its place to another client's while no more may wait. Pure.

One client may have all places only as long as no other wants some. Beyond that the client with the most
gives up its newest request for one that has much fewer. A client may be a proxy that many share, so
shares do not matter before no more may wait; nothing is counted until then.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar
from weakref import ref

from enginewright_serving.server.account import Peer
from enginewright_serving.server.waiting import Waits

_MUCH_MORE: Final = 2  # times what a client would have: another that has more gives up a request
_SECONDS: Final = 0.02  # for which an order is used: finding it takes a fraction of a millisecond
_USED_UP_SECONDS: Final = 0.002  # the same, once none of it is left

_W = TypeVar("_W", bound=Waits)


class QueueShares(Generic[_W]):
    """What each client has waiting, as of a moment ago."""

    def __init__(self, waiting: Callable[[], Iterable[_W]], clock: Callable[[], float]) -> None:
        """Create it.

        Args:
            waiting: returns what waits, in the order of the queue.
            clock: seconds.
        """
        self._waiting = waiting
        self._clock = clock
        self._found = float("-inf")  # when
        self._counts: Counter[Peer] = Counter()
        # what may be given up, the first last, with what its client has until then; keeps no memory
        self._order: list[tuple[int, ref[_W]]] = []

    def may_take(self, peer: Peer | None) -> bool:
        """Whether another client has much more than this one, so that its request may be given up."""
        if peer is None:
            return False
        age = self._clock() - self._found
        if age > _SECONDS or (age > _USED_UP_SECONDS and not self._order):
            self._look()
        return bool(self._order) and self._order[-1][0] > self._enough(peer)

    def candidates(self, peer: Peer | None, priority: int) -> Iterable[_W]:
        """Yield what may be given up for a request, the first one first; some may not wait any more.

        Args:
            peer: whose request it is; if one is taken, it gets the place.
            priority: of the request: none that is more urgent is given up.
        """
        if peer is None or not self.may_take(peer):
            return
        kept: list[tuple[int, ref[_W]]] = []
        enough = self._enough(peer)
        try:
            while self._order and self._order[-1][0] > enough:
                found = self._order.pop()
                job = found[1]()
                if job is None:
                    continue
                if job.priority >= priority:
                    yield job
                else:
                    kept.append(found)
        finally:
            self._order += reversed(kept)

    def took(self, peer: Peer) -> None:
        """Count a place that a request has got."""
        self._counts[peer] += 1

    def _enough(self, peer: Peer) -> int:
        return _MUCH_MORE * (self._counts[peer] + 1)

    def _look(self) -> None:
        self._found = self._clock()
        jobs = [
            (peer, job)
            for job in self._waiting()
            if (peer := job.call.sender) is not None and not job.call.reserved
        ]
        self._counts = counts = Counter(peer for peer, _ in jobs)
        left = counts.copy()
        order: list[tuple[int, ref[_W]]] = []
        for peer, job in reversed(jobs):  # the newest of the lowest priority first
            if left[peer] > _MUCH_MORE:
                order.append((left[peer], ref(job)))
                left[peer] -= 1
        order.reverse()  # a stable sort leaves the newest of as many last
        order.sort(key=_count)
        self._order = order


def _count(found: tuple[int, object]) -> int:
    return found[0]
