"""Whether the server is asked by anybody but its sidecar, from its counts of requests. Pure."""

from collections.abc import Sequence

from enginewright.contract.execution import ComputeBucket


class Traffic:
    """Requests over time; times in seconds."""

    def __init__(self) -> None:
        self._requests: int | None = None  # None: the server has reported no counts yet
        self.served = 0.0  # seconds of a request in the model, on average; 0: unknown
        self._changed = 0.0

    def add(self, buckets: Sequence[ComputeBucket], now: float) -> None:
        """Take in the server's counts as they are at `now`."""
        timed = sum(bucket.count for bucket in buckets)
        if timed:
            self.served = sum(bucket.seconds for bucket in buckets) / timed
        requests = timed + sum(bucket.untimed for bucket in buckets)
        if requests != self._requests:
            if self._requests is not None or requests:
                self._changed = now
            elif not requests:
                self._changed = float("-inf")  # nobody has ever asked
            self._requests = requests

    def idle(self, now: float) -> float:
        """Return for how long there has been no request; 0: unknown."""
        return 0.0 if self._requests is None else now - self._changed
