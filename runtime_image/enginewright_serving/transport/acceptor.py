"""Accepts connections, few at a time.

An event loop's own server accepts for as long as connections arrive: those of a flood would be accepted, and closed
for each other, before anything is read from the ones between them.
"""

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from typing import Final

from enginewright_serving.transport.tls import HANDSHAKES, TlsPort

AT_ONCE: Final = 16  # in one turn of the event loop
_SECONDS: Final = 0.0005  # likewise, since the kernel processes arriving packets in these calls
_REST_SECONDS: Final = 0.001  # after so many at once: those that are open come first
_PAUSE_SECONDS: Final = 0.1  # after a failure
_NO_FILES: Final = (errno.EMFILE, errno.ENFILE)
_log: Final = logging.getLogger(__name__)


class Acceptor:
    """Accepts the connections of one listening socket until it is closed."""

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[], asyncio.BaseProtocol],
        free: Callable[[], bool],
        tls: TlsPort | None = None,
    ) -> None:
        """Own the socket; `connect` creates a protocol, `free` closes a connection when no file can be opened, if one waits."""
        self._socket = listening
        self._connect = connect
        self._free = free
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._connecting: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept no more; idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        began = time.monotonic()
        for _ in range(AT_ONCE):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._take_failure(error)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._serve(accepted))
            self._connecting[task] = None
            task.add_done_callback(self._forget)
            if len(self._connecting) > HANDSHAKES:  # in a flood, clients have given up the oldest
                self._end_oldest()
            if time.monotonic() > began + _SECONDS:
                break
        self._rest(_REST_SECONDS)

    async def _serve(self, accepted: socket.socket) -> None:
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._connect, accepted)
            else:
                await self._tls.connect(accepted, self._connect)
        except (OSError, asyncio.CancelledError):  # the client is gone, or others come first
            accepted.close()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._connecting.pop(task, None)

    def _end_oldest(self) -> None:
        oldest = next(iter(self._connecting))
        self._forget(oldest)
        oldest.cancel()

    def _take_failure(self, error: OSError) -> None:
        if error.errno in _NO_FILES and self._free():
            return
        _log.warning("cannot accept connections: %s", error)
        self._rest(_PAUSE_SECONDS)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)
