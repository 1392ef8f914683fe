"""A connection that stops and resumes reading, as HTTP/1.1 and HTTP/2 share it."""

import asyncio
from typing import Final, cast

_TLS_RECORD: Final = 16 * 1024  # bytes, at most


class PausingProtocol(asyncio.BufferedProtocol):
    """Reads from its transport, or does not."""

    __slots__ = ("_reading_paused", "_transport")

    def __init__(self) -> None:
        """Be without a transport."""
        self._reading_paused = False
        self._transport: asyncio.Transport | None = None

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
        if not self._reading_paused or transport is None:
            return
        if not transport.is_closing():
            self._reading_paused = False
            transport.resume_reading()
