"""The account of the bytes that the server holds for its clients, and whose are given up first. Pure.

Bytes are charged when they arrive and until they are written, so that announcing a body costs nobody
anything. When the account is full, transfers are given up: first slow ones, then those of peers that hold
much more than the one that needs space. One peer may fill the account only as long as no other wants some.
A peer may be a proxy that many clients share, so its share does not matter before that.
"""

import socket
from collections.abc import Callable, Iterator
from typing import Final
from weakref import WeakValueDictionary

from enginewright_serving.server.pace import TransferPace

_SHARE: Final = 1 / 2  # of the limit; a peer that holds more, while others want some,
_OPEN_SHARE: Final = 3 / 4  # finds this share of it full, so that others always find space
_MUCH_MORE: Final = 2.0  # times what a peer would hold: another that holds more gives up transfers
_CROWD: Final = 16  # transfers, above which each reads little at a time
_REMEMBERED_SECONDS: Final = 3.0  # for which a peer that was refused counts as one that wants bytes


class Peer:
    """One remote address."""

    __slots__ = ("__weakref__", "held")

    def __init__(self) -> None:
        self.held = 0  # bytes


class Holding:
    """Bytes of one request or response."""

    __slots__ = ("evict", "is_exempt", "peer", "progress", "size")

    def __init__(self, peer: Peer, evict: Callable[[], None]) -> None:
        """Hold nothing yet; `evict` ends the transfer, whose bytes are no longer charged then."""
        self.peer = peer
        self.evict = evict
        self.size = 0  # bytes
        self.progress: TransferPace | None = None  # of a transfer; what has none is not given up
        self.is_exempt = False  # of the pod's own sidecar: neither refused nor given up

    def close(self) -> None:
        """Refer no more to what would end the transfer, which has ended."""
        self.evict = _nothing


def _nothing() -> None:
    """Do nothing: the transfer has ended."""


class ByteAccount:
    """All bytes that are held."""

    def __init__(self, limit: int, slow_rate: float, clock: Callable[[], float]) -> None:
        """Create it.

        Args:
            limit: bytes in all.
            slow_rate: bytes per second, below which a transfer is the first to be given up.
            clock: seconds.
        """
        self.limit = limit
        self.total = 0
        self._slow_rate = slow_rate
        self._clock = clock
        self._peers: WeakValueDictionary[str, Peer] = WeakValueDictionary()
        self._transfers: set[Holding] = set()
        self._refused: dict[Peer, float] = {}

    def peer(self, address: str) -> Peer:
        """Return the peer with this IP address; of IPv6, all of a /64 network are one."""
        name = _network(address)
        found = self._peers.get(name)
        if found is None:
            found = self._peers[name] = Peer()
        return found

    @property
    def is_crowded(self) -> bool:
        """Whether there are so many transfers that they would delay other requests."""
        return len(self._transfers) > _CROWD

    def charged_response(self, size: int) -> int:
        """Return what to charge for a response, of which one may be larger than the limit."""
        return min(size, int(self.limit * _SHARE))

    def begin(self, holding: Holding, progress: TransferPace) -> None:
        """Let a holding be given up, since it is a transfer now."""
        holding.progress = progress
        self._transfers.add(holding)

    def end(self, holding: Holding) -> None:
        """Keep a holding: its transfer is complete."""
        holding.progress = None
        self._transfers.discard(holding)

    def release(self, holding: Holding) -> None:
        """Charge nothing for a holding any more; idempotent."""
        if holding.progress is not None:
            self.end(holding)
        size = holding.size
        if size:
            holding.size = 0
            holding.peer.held -= size
            self.total -= size

    def hold(self, holding: Holding, size: int) -> bool:
        """Charge a holding with `size` bytes in all; False: there is no space, nothing has changed."""
        added = size - holding.size
        is_safe = self.total + added <= self.limit * _OPEN_SHARE
        if added > 0 and not is_safe and not holding.is_exempt:
            victims = self._victims(holding, added)
            if victims is None:
                self._refused[holding.peer] = self._clock()
                return False
            for each in victims:
                self.release(each)
                each.evict()
        holding.size = size
        holding.peer.held += added
        self.total += added
        return True

    def _victims(self, holding: Holding, added: int) -> list[Holding] | None:
        """Return the transfers whose bytes make enough space, in order; None: there are too few."""
        peer = holding.peer
        held = peer.held + added
        is_large = held > self.limit * _SHARE and self._is_shared(peer)
        needed = self.total + added - self.limit * (_OPEN_SHARE if is_large else 1)
        victims: list[Holding] = []
        for each in self._slow(holding):
            if needed <= 0:
                break
            victims.append(each)
            needed -= each.size
        if needed > 0:
            for each in self._of_larger_peers(held, victims):
                victims.append(each)
                needed -= each.size
                if needed <= 0:
                    break
        return None if needed > 0 else victims

    def _is_shared(self, peer: Peer) -> bool:
        """Whether another peer holds bytes or was refused some a moment ago."""
        old = self._clock() - _REMEMBERED_SECONDS
        self._refused = {each: since for each, since in self._refused.items() if since > old}
        wanting = [*self._refused, *(each for each in self._peers.values() if each.held)]
        return any(each is not peer for each in wanting)

    def _slow(self, holding: Holding) -> list[Holding]:
        """Return the transfers that are slow, and slower than this one, slowest first."""
        below = min(self._slow_rate, _rate(holding))
        found = [each for each in self._candidates(holding) if _rate(each) < below]
        return sorted(found, key=_rate)

    def _of_larger_peers(self, held: int, given_up: list[Holding]) -> Iterator[Holding]:
        """Yield transfers of peers that hold much more than `held`: the largest peer's slowest first."""
        left: dict[Peer, list[Holding]] = {}
        excluded = set(given_up)
        sizes = {each.peer: each.peer.held for each in self._transfers}
        for each in given_up:
            sizes[each.peer] -= each.size
        for each in sorted(self._transfers - excluded, key=_rate, reverse=True):
            if each.size and not each.is_exempt:
                left.setdefault(each.peer, []).append(each)
        while left:
            largest = max(left, key=lambda peer: sizes[peer])
            if sizes[largest] <= held * _MUCH_MORE:
                return
            chosen = left[largest].pop()
            if not left[largest]:
                del left[largest]
            sizes[largest] -= chosen.size
            yield chosen

    def _candidates(self, holding: Holding) -> Iterator[Holding]:
        for each in self._transfers:
            if each is not holding and each.size and not each.is_exempt:
                yield each


def readable(address: str) -> str:
    """Return an IP address as logs show it: an IPv4 address that is mapped to IPv6 as IPv4."""
    plain = address.removeprefix("::ffff:")
    return plain if "." in plain else address


def _rate(holding: Holding) -> float:
    return float("inf") if holding.progress is None else holding.progress.rate


def _network(address: str) -> str:
    """Return an IPv4 address, also if it is mapped to IPv6, or the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    plain = address.rpartition(":")[2]
    if "." in plain:
        return plain
    try:
        return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])[:8].hex()
    except OSError:
        return address
