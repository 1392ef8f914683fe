"""An inference request that was answered, as the access log and traces report it."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from enginewright_serving.transport.request_context import RequestContext

if TYPE_CHECKING:
    import asyncio


class Answered(NamedTuple):
    """One request of a client. Times are of `time.monotonic()`."""

    context: RequestContext
    protocol: str  # http or grpc
    method: str  # of HTTP, or of the service
    status: int  # as HTTP has it
    grpc_status: str  # its name, "" over HTTP
    began: float  # when its head had arrived
    ended: float  # when its response was written
    received: int  # bytes of its body
    sent: int  # bytes of the response's body
    client: str  # IP address


class Observer(Protocol):
    """Receives every answered request, in the event loop."""

    def add(self, answered: Answered) -> None:
        """Take one request; neither blocks nor fails."""


def client_address(transport: "asyncio.Transport | None") -> str:
    """Return the client's IP address, "" if it is unknown; IPv4 addresses mapped to IPv6 as IPv4."""
    name = None if transport is None else transport.get_extra_info("peername")
    address: str = name[0] if name else ""
    plain = address.removeprefix("::ffff:")
    return plain if "." in plain else address
