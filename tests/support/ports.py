"""Ports for the servers of tests.

Not from the range of outgoing connections: between the choice and the server's start one of another
test could take it.
"""

import random
import socket
from typing import Final

_FIRST: Final = 10_000
_LAST: Final = 32_000  # below Linux' default `ip_local_port_range`
_random: Final = random.SystemRandom()  # the same seed in other processes does not matter
_given: Final[set[int]] = set()


def free_port() -> int:
    """Return a TCP port that no process listens on, another one each time."""
    while True:
        port = _random.randint(_FIRST, _LAST)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        _given.add(port)
        return port


def hold_port(port: int) -> socket.socket:
    """Keep others from a port of loopback until the socket is closed; connections to it are refused."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # its last connections linger
    held.bind(("127.0.0.1", port))
    return held
