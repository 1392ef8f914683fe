"""The account of the bytes that the server holds for its clients, and which are given up first. Pure.

Bytes are charged when they arrive and until they are written, so that announcing a body costs nobody
anything. When the account is full, slow transfers are given up for what needs space, slowest first; what
finds none is refused.
"""

from collections.abc import Callable
from typing import Final

from enginewright_serving.transport.pace import TransferPace

_LARGEST_RESPONSE: Final = 1 / 2  # of the limit, as which one that is larger counts
_CROWD: Final = 16  # transfers, above which each reads little at a time


class Holding:
    """Bytes of one request or response."""

    __slots__ = ("evict", "is_exempt", "progress", "size")

    def __init__(self, evict: Callable[[], None]) -> None:
        """Hold nothing yet; `evict` ends the transfer, whose bytes are no longer charged then."""
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

    def __init__(self, limit: int, slow_rate: float) -> None:
        """Create it.

        Args:
            limit: bytes in all.
            slow_rate: bytes per second, below which a transfer is given up for others.
        """
        self.limit = limit
        self.total = 0
        self._slow_rate = slow_rate
        self._transfers: set[Holding] = set()

    @property
    def is_crowded(self) -> bool:
        """Whether there are so many transfers that they would delay other requests."""
        return len(self._transfers) > _CROWD

    def charged_response(self, size: int) -> int:
        """Return what to charge for a response, of which one may be larger than the limit."""
        return min(size, int(self.limit * _LARGEST_RESPONSE))

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
            self.total -= size

    def hold(self, holding: Holding, size: int) -> bool:
        """Charge a holding with `size` bytes in all; False: there is no space, nothing has changed."""
        added = size - holding.size
        needed = self.total + added - self.limit
        if added > 0 and needed > 0 and not holding.is_exempt:
            given_up = self._slower(holding, needed)
            if given_up is None:
                return False
            for each in given_up:
                self.release(each)
                each.evict()
        holding.size = size
        self.total += added
        return True

    def _slower(self, holding: Holding, needed: int) -> list[Holding] | None:
        """Return transfers that are slow, and slower than this one, slowest first; None: they hold too little."""
        below = min(self._slow_rate, _rate(holding))
        slower = [
            each
            for each in self._transfers
            if each is not holding and each.size and not each.is_exempt and _rate(each) < below
        ]
        slower.sort(key=_rate)
        for count, each in enumerate(slower, 1):
            needed -= each.size
            if needed <= 0:
                return slower[:count]
        return None


def _rate(holding: Holding) -> float:
    return float("inf") if holding.progress is None else holding.progress.rate
