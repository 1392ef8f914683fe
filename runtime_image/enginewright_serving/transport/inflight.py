"""The memory that requests may take until they are answered, of all protocols together."""

from typing import Final

from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.transport.account import ByteAccount, Holding
from enginewright_serving.transport.call import InferenceCall
from enginewright_serving.transport.settings import SLOW_RATE, TransportSettings

_BESIDE_TENSORS: Final = 64 * 1024  # bytes allowed for the rest of the largest request


class InFlight:
    """Limits the bytes of requests that are not yet answered."""

    def __init__(self, settings: TransportSettings) -> None:
        self.account = ByteAccount(settings.inflight_bytes, SLOW_RATE)
        self._body_limit = settings.body_bytes
        self._json_limit = settings.json_bytes
        self._largest = settings.inflight_largest

    def admit_largest(self, tensors: int) -> None:
        """Raise the limits so that a request with this many bytes of tensors is accepted."""
        self._body_limit = max(self._body_limit, tensors + _BESIDE_TENSORS)
        self.account.limit = max(self.account.limit, self._largest * self._body_limit)

    def check(self, size: int) -> None:
        """Refuse a body that is too large: RequestError 413."""
        if size > self._body_limit:
            raise RequestError(413, f"the body exceeds the limit of {self._body_limit} bytes")

    def check_body(self, size: int, json_length: int | None) -> None:
        """Refuse a body over HTTP that is too large, or whose JSON, by default all of it, is: RequestError 413."""
        self.check(size)
        if (size if json_length is None else json_length) > self._json_limit:
            raise RequestError(
                413,
                f"the JSON exceeds {self._json_limit} bytes;"
                " send tensors in binary (see the binary tensor data extension)",
            )

    def largest_body(self, json_length: int | None) -> int:
        """Return the bytes of the largest body that `check_body` accepts."""
        if json_length is None:
            return min(self._body_limit, self._json_limit)
        return self._body_limit

    def hold(self, call: InferenceCall, size: int) -> None:
        """Count at least `size` bytes for a request; raise RequestError 503 if all together take too much."""
        holding = call.holding
        if holding is None:
            holding = call.holding = Holding()
            holding.is_exempt = call.reserved
        if size > holding.size and not self.account.hold(holding, size):
            raise RequestError(503, "too many bytes are in flight; try again later")

    def reduce(self, call: InferenceCall, size: int) -> None:
        """Count only `size` bytes for a request, whose other memory was freed."""
        if call.holding is not None:
            self.account.hold(call.holding, size)

    def release(self, call: InferenceCall) -> None:
        """Forget the bytes of a request; idempotent."""
        holding, call.holding = call.holding, None
        if holding is not None:
            self.account.release(holding)
