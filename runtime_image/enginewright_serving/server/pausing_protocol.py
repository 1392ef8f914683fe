"""A connection that stops and resumes reading, for a time or, of a slow client, for its turns among many.

What HTTP/1.1 and HTTP/2 share of `asyncio.BufferedProtocol`.
"""

import asyncio
from abc import abstractmethod
from typing import Final, cast

from enginewright_serving.server.reading_turns import ReadingTurns

_TLS_RECORD: Final = 16 * 1024  # bytes, at most
_MUCH_BYTES: Final = 64 * 1024  # read in a turn


class PausingProtocol(asyncio.BufferedProtocol):
    """Reads from its transport, or does not."""

    __slots__ = ("_awaits_turn", "_reading", "_reading_paused", "_transport", "_watched_bytes")

    def __init__(self, reading: ReadingTurns) -> None:
        """Be without a transport; `reading` is shared by the connections of the event loop."""
        self._reading = reading
        self._reading_paused = False
        self._awaits_turn = False  # to be read from
        self._watched_bytes = -1  # read in this turn; -1: it is not the connection's turn
        self._transport: asyncio.Transport | None = None

    @abstractmethod
    def _is_slow_among_many(self) -> bool:
        """Whether the client sends slowly, and is one of many who send."""

    @abstractmethod
    def _hurry(self) -> None:
        """Take the client to be slow no more: so much had arrived that it only waited for its turn."""

    @abstractmethod
    def _continue(self) -> None:
        """Process what was kept and read on, unless something else than the turn of a slow client holds it up."""

    def _use(self, transport: asyncio.BaseTransport) -> asyncio.Transport:
        """Begin to read from a transport, and to write; return it."""
        self._transport = stream = cast("asyncio.Transport", transport)
        # writing pauses as soon as the kernel's buffer is full; that of TLS, which has more behind that
        # (64 KiB, and what is written at a time), not yet for the end of the handshake
        stream.set_write_buffer_limits(0 if stream.can_write_eof() else _TLS_RECORD, 0)
        return stream

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        transport = self._transport
        if not self._reading_paused or self._awaits_turn or transport is None:
            return
        if not transport.is_closing():
            self._reading_paused = False
            transport.resume_reading()

    def _takes_turns(self, size: int) -> bool:
        """After `size` bytes were read, pause until the next turn if the client is slow; False: it is not."""
        if not self._is_slow_among_many():
            self._watched_bytes = -1
            return False
        if self._watched_bytes >= 0:  # its turn goes on
            self._watched_bytes += size
            if self._watched_bytes >= _MUCH_BYTES:
                self._watched_bytes = -1
                self._hurry()
            return True
        self._pause_reading()
        if not self._awaits_turn:
            self._awaits_turn = True
            self._reading.take(self)
        return True

    # Called by `ReadingTurns`.

    def watch(self) -> None:
        """Read, since it is the connection's turn."""
        self._awaits_turn = False
        self._watched_bytes = 0
        self._continue()

    def rest(self) -> bool:
        """Stop reading until the next turn; False: the connection awaits it already, or takes none any more."""
        self._watched_bytes = -1
        if self._awaits_turn or self._transport is None or not self._is_slow_among_many():
            return False
        self._pause_reading()
        self._awaits_turn = True
        return True
