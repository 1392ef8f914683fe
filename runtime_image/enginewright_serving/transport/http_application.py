"""What connections need of the application behind them."""

from abc import abstractmethod
from typing import Protocol, TypeVar

from enginewright_serving.transport.application import (
    RETRY_AFTER,
    ApplicationBase,
    ServedConnection,
    refusal_response,
)
from enginewright_serving.transport.inflight import InFlight
from enginewright_serving.transport.input_turns import InputTurns
from enginewright_serving.transport.message import HttpRequest, HttpResponse
from enginewright_serving.transport.settings import TransportSettings

_C = TypeVar("_C", bound=ServedConnection)
_C_contra = TypeVar("_C_contra", contravariant=True)  # the connections


class ConnectionApplication(Protocol[_C_contra]):
    """What keeps connections, of any protocol."""

    inflight: InFlight
    turns: InputTurns
    draining: bool

    @property
    def settings(self) -> TransportSettings:
        """The limits."""

    def add_connection(self, connection: _C_contra) -> bool:
        """Add a new connection; return False if no capacity is left."""

    def remove_connection(self, connection: _C_contra) -> None:
        """Remove a connection and the work for it."""


class HttpApplication(ApplicationBase[_C]):
    """What answers requests over HTTP; by default it accepts bodies of any size, and reports nothing."""

    @abstractmethod
    def admit(self, request: HttpRequest) -> HttpResponse | None:
        """Check a request's head; a response refuses the request before its body is read."""

    def check_size(self, request: HttpRequest, size: int) -> HttpResponse | None:
        """Check the bytes of a body, announced or arrived so far; a response refuses them."""
        del request, size
        return None

    def refuse_bytes(self, request: HttpRequest) -> HttpResponse:
        """Build the response to a request whose bytes the account has no space for."""
        del request
        return self.refuse(503, "too many bytes are in flight; try again later", RETRY_AFTER)

    def release(self, request: HttpRequest) -> None:
        """Release the slot and the bytes of the request; idempotent."""
        self.inflight.release(request)

    @abstractmethod
    def serve(self, connection: _C, request: HttpRequest) -> HttpResponse | None:
        """Answer; without a response, `connection.respond` will be called later, and `release` before it."""

    def on_answered(
        self, connection: _C, request: HttpRequest, response: HttpResponse, began: float
    ) -> None:
        """Count a `counted` request whose response the socket has taken; `began` is when its head had arrived."""

    def on_left(self, connection: _C, request: HttpRequest, began: float) -> None:
        """Count a request that is `counted`, whose client has left before its answer was written."""

    def on_refused(
        self, connection: _C, request: HttpRequest, response: HttpResponse, began: float
    ) -> None:
        """Report a request without a route, which was refused."""

    def refuse(self, status: int, message: str, headers: bytes = b"") -> HttpResponse:
        """Build an error response, such as to bytes that are not a valid request."""
        return refusal_response(status, message, headers)
