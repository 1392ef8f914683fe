"""The account of the bytes that the server holds for its clients, and which transfers it evicts first. Pure.

Bytes are charged from their arrival until they are written, so announcing a body costs nothing. When the account is
full, slow transfers are evicted for others, slowest first; a request that finds no space is refused.

Large bodies are charged by whole pages, so a thousand that arrive fill the account to its last byte, and would have every
other request refused. So there are spare bytes above the limit, and each holding leaves as many of them as it will be
large: what is small finds space beside what is large, which finds no more than without them.
"""

from collections.abc import Callable
from typing import Final

from enginewright_serving.transport.pace import TransferPace

_LARGEST_RESPONSE: Final = 1 / 2  # of the limit: larger ones count as this
_CROWD: Final = 16  # transfers, above which each reads little at a time
_SPARE: Final = 1 / 16  # of the limit, above it


def _nothing() -> None:
    """Do nothing: there is no transfer to end."""


class Holding:
    """Bytes of one request or response."""

    __slots__ = ("announced", "evict", "is_exempt", "progress", "size")

    def __init__(self, evict: Callable[[], None] = _nothing) -> None:
        """Hold nothing yet; `evict` ends the transfer, once its bytes are released."""
        self.evict = evict
        self.size = 0  # bytes
        self.announced = 0  # bytes that a transfer will have, if known
        self.progress: TransferPace | None = None  # of a transfer; others are not evicted
        self.is_exempt = False  # of the pod's own sidecar: neither refused nor evicted

    def close(self) -> None:
        """Drop the reference to the transfer, which has ended."""
        self.evict = _nothing


class ByteAccount:
    """All bytes that are held."""

    def __init__(self, limit: int, slow_rate: float) -> None:
        """Hold up to `limit` bytes, and the spare ones; evict transfers below `slow_rate` bytes per second for others."""
        self.limit = limit
        self.total = 0
        self._slow_rate = slow_rate
        self._transfers: set[Holding] = set()

    @property
    def is_crowded(self) -> bool:
        """Whether there are so many transfers that they would delay other requests."""
        return len(self._transfers) > _CROWD

    def limit_response(self, size: int) -> int:
        """Return what to charge for a response, of which one may be larger than the limit."""
        return min(size, int(self.limit * _LARGEST_RESPONSE))

    def begin(self, holding: Holding, progress: TransferPace, announced: int = 0) -> None:
        """Count a holding as a transfer, which may be evicted, of as many bytes as are `announced`."""
        holding.progress = progress
        holding.announced = announced
        self._transfers.add(holding)

    def end(self, holding: Holding) -> None:
        """Keep a holding, whose transfer is complete."""
        holding.progress = None
        holding.announced = 0
        self._transfers.discard(holding)

    def release(self, holding: Holding) -> None:
        """Charge nothing for a holding from now on; idempotent."""
        if holding.progress is not None:
            self.end(holding)
        size = holding.size
        if size:
            holding.size = 0
            self.total -= size

    def hold(self, holding: Holding, size: int) -> bool:
        """Charge a holding with `size` bytes in all; change nothing and return False if there is no space."""
        added = size - holding.size
        needed = self.total + added - self.limit
        if added > 0 and needed > 0 and not holding.is_exempt:
            needed -= self._count_spare(max(size, holding.announced))
            evicted = self._slower(holding, needed) if needed > 0 else []
            if evicted is None:
                return False
            for item in evicted:
                self.release(item)
                item.evict()
        holding.size = size
        self.total += added
        return True

    def _count_spare(self, size: int) -> int:
        """Return the bytes above the limit that a holding of `size` bytes may take."""
        return max(0, int(self.limit * _SPARE) - size)

    def _slower(self, holding: Holding, needed: int) -> list[Holding] | None:
        """Return slow transfers, slower than this one, that hold `needed` bytes, slowest first, or None."""
        below = min(self._slow_rate, _rate(holding))
        slower = [
            transfer
            for transfer in self._transfers
            if transfer is not holding
            and transfer.size
            and not transfer.is_exempt
            and _rate(transfer) < below
        ]
        slower.sort(key=_rate)
        for count, item in enumerate(slower, 1):
            needed -= item.size
            if needed <= 0:
                return slower[:count]
        return None


def _rate(holding: Holding) -> float:
    return float("inf") if holding.progress is None else holding.progress.rate
