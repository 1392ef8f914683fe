"""What the applications of the server and the sidecar share, whatever protocol they serve."""

import logging
import socket
from email.utils import formatdate
from typing import Any, Final, Generic, TypeVar

import orjson

from enginewright_runtime.serve.server.connection import ClosableConnection, close_waiting
from enginewright_runtime.serve.server.message import JSON_TYPE, HttpResponse
from enginewright_runtime.serve.server.settings import ServerSettings

_log: Final = logging.getLogger(__name__)
_BACKLOG: Final = 1024


_C = TypeVar("_C", bound=ClosableConnection)


class ApplicationBase(Generic[_C]):
    """Keeps the connections and the Date header of an application."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.draining = False
        self.date = b""
        self.connections: set[_C] = set()
        self.renew_date()

    def renew_date(self) -> None:
        """Write the Date header with the current time."""
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()

    def connected(self, connection: _C) -> bool:
        """Add a connection; False: the reserve is used up too, and no connection waits."""
        limit = self.settings.connections + self.settings.reserved_connections
        transfers = self.settings.replaces_transfers
        has_capacity = len(self.connections) < limit or close_waiting(
            self.connections, 1, transfers=transfers, young=True
        )
        self.connections.add(connection)
        return has_capacity

    def disconnected(self, connection: _C) -> None:
        """Remove a connection."""
        self.connections.discard(connection)

    def check_connections(self, now: float) -> None:
        """Close connections that exceed their time limits; `now` is `time.monotonic()`."""
        for connection in tuple(self.connections):
            try:
                connection.check(now)
            except Exception:  # noqa: BLE001 - one connection must not end all time limits
                _log.exception("unexpected error while checking a connection")
                connection.abort()


def json_response(
    status: int, document: dict[str, Any] | bytes, headers: bytes = b""
) -> HttpResponse:
    """Return a response with a JSON document, or one that is already encoded."""
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    return HttpResponse(status, JSON_TYPE + headers, [body], len(body))


def listen(port: int) -> socket.socket:
    """Return a listening socket for IPv4 and IPv6, or for IPv4 only where IPv6 is unavailable."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
        except OSError as error:
            _log.info("IPv6 is unavailable: %s", error)
    return socket.create_server(("", port), backlog=_BACKLOG)
