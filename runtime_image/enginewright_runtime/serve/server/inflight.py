"""The memory that requests may take until they are answered, of all protocols together."""

from typing import Final

from enginewright_runtime.serve.server.call import InferenceCall
from enginewright_runtime.serve.server.settings import ServerSettings
from enginewright_runtime.session.request_errors import RequestError

_BESIDE_TENSORS: Final = 64 * 1024  # bytes allowed for the rest of the largest request


class InFlight:
    """Counts bytes of requests that are not yet answered."""

    def __init__(self, settings: ServerSettings) -> None:
        self._body_limit = settings.body_bytes
        self._limit = settings.inflight_bytes
        self._bytes = 0

    def admit_largest(self, tensors: int) -> None:
        """Raise the limits so that a request with this many bytes of tensors is accepted."""
        self._body_limit = max(self._body_limit, tensors + _BESIDE_TENSORS)
        self._limit = max(self._limit, 4 * self._body_limit)

    def add(self, call: InferenceCall, size: int) -> None:
        """Count `size` more bytes of a request's body.

        Raises:
            RequestError: 413, the body is too large; 503, all are together.
        """
        if call.accounted + size > self._body_limit:
            raise RequestError(413, f"the body exceeds the limit of {self._body_limit} bytes")
        self._reserve(call, size)

    def hold(self, call: InferenceCall, size: int) -> None:
        """Count at least `size` bytes for a request, which is what it takes once it is decoded.

        Raises:
            RequestError: 503, all together take too much.
        """
        more = size - call.accounted
        if more > 0:
            self._reserve(call, more)

    def release(self, call: InferenceCall) -> None:
        """Forget the bytes of a request; idempotent."""
        self._bytes -= call.accounted
        call.accounted = 0

    def _reserve(self, call: InferenceCall, size: int) -> None:
        if self._bytes + size > self._limit and not call.reserved:
            raise RequestError(503, "too many bytes of requests are in flight; try again later")
        self._bytes += size
        call.accounted += size
