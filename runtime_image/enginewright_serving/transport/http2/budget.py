"""Limits how often a peer may do things that cost the server more than the peer."""

import time

from enginewright_serving.transport.http2.errors import ConnectionFaultError, ErrorCode


class FrameBudget:
    """An allowance that time and useful work refill; the connection ends once it is spent."""

    __slots__ = ("_capacity", "_left", "_rate", "_renewed", "_what")

    def __init__(self, what: str, capacity: int, rate: float) -> None:
        """Allow `capacity` of `what` at once and `rate` more per second."""
        self._what = what
        self._capacity = capacity
        self._rate = rate
        self._left: float = capacity
        self._renewed = time.monotonic()

    def earn(self, amount: int) -> None:
        """Allow `amount` more, up to the capacity."""
        self._left = min(self._left + amount, self._capacity)

    def spend(self, amount: int = 1) -> None:
        """Count `amount`; raise ConnectionFaultError if it is too much."""
        self._left -= amount
        if self._left >= 0:
            return
        now = time.monotonic()
        self._left = min(self._left + (now - self._renewed) * self._rate, self._capacity)
        self._renewed = now
        if self._left < 0:
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._what}")
