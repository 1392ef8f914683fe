"""How a sidecar reaches each process of a server that has several.

They share the server's ports, on which the kernel chooses a process for each connection. To verify all of
them the sidecar needs to choose itself, so every process listens on a socket of its own as well. Its name
is abstract (unix(7)): valid in the pod's network only, without a file, and free as soon as the process ends.
"""

import hashlib
import socket
from typing import Final

_BACKLOG: Final = 16
_DIGITS: Final = 32


def listen(token: str, process: int) -> socket.socket:
    """Return the listening socket of a process, 0 being the first; OSError if another has it."""
    lane = socket.socket(socket.AF_UNIX)
    try:
        lane.bind(_address(token, process))
        lane.listen(_BACKLOG)
    except OSError:
        lane.close()
        raise
    return lane


def connect(token: str, process: int) -> socket.socket:
    """Return a connection to a process; OSError if it does not listen."""
    lane = socket.socket(socket.AF_UNIX)
    lane.setblocking(False)  # it connects at once, or there are too many connections
    try:
        lane.connect(_address(token, process))
    except OSError:
        lane.close()
        raise
    return lane


def _address(token: str, process: int) -> str:
    """Return the name, from the pod's probe token: several servers may share a network outside a pod."""
    return f"\0enginewright/{hashlib.sha256(f'{token}/{process}'.encode()).hexdigest()[:_DIGITS]}"
