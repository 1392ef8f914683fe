"""Ends clients whose TLS carries no data: updates of keys, renegotiations and alerts cost time, and no limit counts them.

The event loop's TLS hides them, so they are what the kernel has received of a connection, less what the protocol has.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Final, Protocol, cast

MOST: Final = 64 * 1024  # bytes beside data, which thousands of updates of keys have
# bytes of TLS for each byte of data that are usual: a record with one byte takes 29 at most
_USUAL: Final = 64
_QUEUED: Final = struct.Struct("i")
# tcpi_bytes_received of tcp_info, in linux/tcp.h; since Linux 4.1
_RECEIVED: Final = struct.Struct("128xQ")


class _TlsTransport(Protocol):
    def get_read_buffer_size(self) -> int:
        """Return the bytes that wait to be decrypted."""


class TlsOverhead:
    """What the TLS of one connection has received beside data."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._read = self._count_read()  # so far; its handshake is complete
        self._data = 0  # so far
        self._excess = 0

    def is_usual(self, data: int) -> bool:
        """Whether it is in proportion to `data`, the bytes that the protocol has received so far."""
        read = self._count_read()
        more = read - self._read - _USUAL * (data - self._data)
        self._excess = max(0, self._excess + more)
        self._read, self._data = read, data
        return self._excess <= MOST

    def _count_read(self) -> int:
        """Return the bytes that TLS has read, but for those that wait for the protocol to resume reading."""
        stream: socket.socket | None = self._transport.get_extra_info("socket")
        if stream is None or stream.fileno() < 0:
            return 0
        told = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        if len(told) < _RECEIVED.size:
            return 0
        queued = _QUEUED.unpack(fcntl.ioctl(stream.fileno(), termios.FIONREAD, bytes(_QUEUED.size)))
        buffered = cast("_TlsTransport", self._transport).get_read_buffer_size()
        return int(_RECEIVED.unpack(told)[0]) - int(queued[0]) - buffered
