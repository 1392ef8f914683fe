"""How much of what was written the client has not received: in the transport, and in the kernel's send buffer.

The kernel takes megabytes of a response at once, and more only once a third of its buffer is free, so what it has taken
says for up to a minute nothing about a client that reads 64 KiB/s.
"""

import asyncio
import fcntl
import struct
import termios
from typing import Final

_COUNT: Final = struct.Struct("i")


def count_unacknowledged(transport: asyncio.Transport) -> int:
    """Return the bytes that were written to `transport` and that the client's kernel has not acknowledged."""
    held = transport.get_write_buffer_size()
    socket = transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return held
    # SIOCOUTQ of tcp(7), which has the number of TIOCOUTQ
    queued = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(_COUNT.size))
    return held + int(_COUNT.unpack(queued)[0])
