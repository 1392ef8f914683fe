"""The base of the applications of server and sidecar, for all protocols."""

import asyncio
import logging
import socket
import time
from email.utils import formatdate
from typing import Any, Final, Generic, Protocol, TypeVar

import orjson

from enginewright_serving.transport.acceptor import AT_ONCE
from enginewright_serving.transport.eviction import Eviction, OpenConnection
from enginewright_serving.transport.inflight import InFlight
from enginewright_serving.transport.input_turns import InputTurns
from enginewright_serving.transport.message import JSON_TYPE, HttpResponse
from enginewright_serving.transport.settings import RETRY_AFTER_SECONDS, TransportSettings

RETRY_AFTER: Final = b"Retry-After: %d\r\n" % RETRY_AFTER_SECONDS
_log: Final = logging.getLogger(__name__)
_CHECKED_AT_ONCE: Final = 16  # connections, in a tenth of a millisecond
_CHECK_SECONDS: Final = 0.002  # between so many: those of a thousand take milliseconds
_BACKLOG: Final = 4096  # connections that wait to be accepted; more are retried after a second


class ServedConnection(OpenConnection, Protocol):
    """A connection of any protocol, as its application uses it."""

    def check(self, now: float) -> None:
        """Close it if it exceeds a time limit; `now` is `time.monotonic()`."""

    def close_idle(self) -> None:
        """Close it once its requests are answered."""

    @property
    def counted_requests(self) -> int:
        """Inferences of clients that have arrived in part at least, and whose answer is not yet written."""


_C = TypeVar("_C", bound=ServedConnection)


class ApplicationBase(Generic[_C]):
    """Keeps the connections and the Date header of an application."""

    def __init__(
        self,
        settings: TransportSettings,
        inflight: InFlight | None = None,
        turns: InputTurns | None = None,
    ) -> None:
        """Create it; the applications of a server share `inflight`."""
        self.settings = settings
        self.draining = False
        self.date = b""
        self.connections: set[_C] = set()
        self.inflight = inflight or InFlight(settings)
        self.turns = turns or InputTurns()
        self._eviction = Eviction(time.monotonic, newest=8 * AT_ONCE)
        self.renew_date()

    def renew_date(self) -> None:
        """Write the Date header with the current time."""
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()

    def add_connection(self, connection: _C) -> bool:
        """Add a connection; return False if there are as many as allowed, and none of them waits."""
        limit = self.settings.connections + self.settings.reserved_connections
        has_capacity = len(self.connections) < limit or self.close_one()
        self.connections.add(connection)
        return has_capacity

    def close_one(self) -> bool:
        """Close the connection that is the first to be replaced; return False if none waits for its client."""
        return self._eviction.close_one(self.connections)

    def remove_connection(self, connection: _C) -> None:
        """Remove a connection."""
        self.connections.discard(connection)

    def count_requests(self) -> int:
        """Return the clients' inferences that have arrived in part at least, and are not answered."""
        return sum(connection.counted_requests for connection in self.connections)

    async def check_connections(self) -> None:
        """Close connections that exceed their time limits, few at a time."""
        self._eviction.forget()
        for count, connection in enumerate(tuple(self.connections), 1):
            if connection not in self.connections:
                continue  # closed in a pause
            try:
                connection.check(time.monotonic())
            except Exception:  # noqa: BLE001 - one connection must not end all time limits
                _log.exception("unexpected error while checking a connection")
                connection.abort()
            if not count % _CHECKED_AT_ONCE:
                await asyncio.sleep(_CHECK_SECONDS)


def json_response(
    status: int, document: dict[str, Any] | bytes, headers: bytes = b""
) -> HttpResponse:
    """Return a response with a JSON document, or one that is already encoded."""
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    return HttpResponse(status, JSON_TYPE + headers, [body], len(body))


def refusal_response(status: int, message: str, headers: bytes = b"") -> HttpResponse:
    """Return an error's response, with further header lines."""
    return json_response(status, {"error": message}, headers)


def listen(port: int) -> socket.socket:
    """Return a listening socket for IPv4 and IPv6, or for IPv4 only where IPv6 is unavailable."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port),
                family=socket.AF_INET6,
                backlog=_BACKLOG,
                dualstack_ipv6=True,
            )
        except OSError as error:
            _log.info("IPv6 is unavailable: %s", error)
    return socket.create_server(("", port), backlog=_BACKLOG)
