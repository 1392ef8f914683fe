"""TLS of one port: the event loop shakes hands once the client has sent its first byte.

Until then a connection takes only a file, and a client that does not speak TLS can get an answer that says so.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from enginewright_serving.transport.settings import TransportSettings

HANDSHAKES: Final = 256  # of one port at a time, each of a hundred kilobytes

_HANDSHAKE: Final = b"\x16"  # the first byte of a client's first record (RFC 8446 5.1)
_DISCARDED_BYTES: Final = 64 * 1024  # at a time
_TLS_ONLY: Final = "this port speaks TLS only; use https, or a secure channel"
_TLS_ONLY_ANSWER: Final = (  # of both ports: clients of gRPC report it too
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b'Content-Length: %d\r\n\r\n{"error":"%b"}' % (len(_TLS_ONLY) + 12, _TLS_ONLY.encode())
)


@dataclass(frozen=True, slots=True)
class TlsPort:
    """How clients of a port are connected."""

    context: Callable[[], ssl.SSLContext]  # of new connections
    settings: TransportSettings

    async def connect(
        self, accepted: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        """Shake hands with a client, and have a new `protocol` serve it; raise OSError if that fails or takes too long."""
        loop, settings = asyncio.get_running_loop(), self.settings
        async with asyncio.timeout(settings.head_seconds):
            await _wait_until_readable(accepted)
            if accepted.recv(1, socket.MSG_PEEK) != _HANDSHAKE:
                await self._refuse(accepted)
            await loop.connect_accepted_socket(
                protocol,
                accepted,
                ssl=self.context(),
                ssl_handshake_timeout=settings.head_seconds,
                # for a client that does not read the end of a response, or does not close
                ssl_shutdown_timeout=settings.linger_seconds + settings.transfer_window,
            )

    async def _refuse(self, accepted: socket.socket) -> None:
        """Tell a client that it must speak TLS; raise OSError once it has closed the connection.

        Closing with unread input resets the connection, and the client may lose the answer, so input is
        discarded for a while.
        """
        loop = asyncio.get_running_loop()
        accepted.send(_TLS_ONLY_ANSWER)
        accepted.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(self.settings.linger_seconds):
            while await loop.sock_recv(accepted, _DISCARDED_BYTES):
                pass
        raise ConnectionAbortedError


async def _wait_until_readable(accepted: socket.socket) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(accepted, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(accepted)
